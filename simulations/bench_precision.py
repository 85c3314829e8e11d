"""What bf16 products cost in quality and give in speed, next to those of the release.

Pictures of a scenario's captions are drawn with the release's products; both kinds then say their
laws along these pictures. Times are of forwards in turns, on one thread.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fleet.decoding.draws import Ask, draw_all
from fleet.models.bundle import CLOUD_FOLDER, DEVICE_FOLDER, PUBLIC_KEY, VOCABULARY, Bundle
from fleet.models.caption import CaptionVocabulary
from fleet.models.span_cache import KVCache, Span
from fleet.models.torch_model import CloudModel
from fleet.protocol.messages import Sampling
from simulations.bench_forward import in_turns
from simulations.scenarios.scenario import Captions

Tokens = NDArray[np.int64]

SPANS = ((1, 1), (32, 1), (32, 8))  # pictures, tokens of each
_START = 100


@dataclass(frozen=True, slots=True)
class Cost:
    """Of the laws by bf16 products, over all positions of some pictures.

    Attributes:
        tv: Mean total variation distance to the release's laws, at the release's temperature.
        tv_p99: Its 99th percentile.
        same: Share of positions where the same noise draws the same token.
        whole: Share of pictures that come out the same, token for token, drawn by themselves.
    """

    subject: str
    tv: float
    tv_p99: float
    same: float
    whole: float


@dataclass(frozen=True, slots=True)
class Speed:
    """A forward by bf16 products; the ratio's median with its spread over rounds."""

    subject: str
    fp16_ms: float
    bf16_ms: float
    ratio: float
    least: float
    most: float


def precision(models: Path, *, pictures: int, rounds: int) -> tuple[list[Cost], list[Speed]]:
    """Quality of bf16 products along pictures drawn without guidance, and their speed.

    Raises:
        BundleError: A file of the family is missing, or is not what was signed.
    """
    torch.set_num_threads(1)
    exact = CloudModel.load(models / CLOUD_FOLDER)
    rounded = CloudModel.load(models / CLOUD_FOLDER, precision="bf16")
    manifest = Bundle.open(models / DEVICE_FOLDER, models / PUBLIC_KEY).manifest
    vocabulary = CaptionVocabulary.load(models / CLOUD_FOLDER / VOCABULARY)
    words = [vocabulary.encode(caption) for caption in _captions(pictures)]
    tokens, laws = _draw(exact, words, manifest.sampling)
    theirs, _ = _draw(rounded, words, manifest.sampling)
    given = _laws(rounded, words, tokens)
    temperature = manifest.sampling.temperature
    apart = ((laws / temperature).softmax(-1) - (given / temperature).softmax(-1)).abs().sum(-1) / 2
    again = _drawn(given, manifest.sampling)
    cost = Cost(
        f"bf16, {len(words)} pictures",
        float(apart.mean()),
        float(apart.quantile(0.99)),
        float((again == tokens).mean()),
        float((theirs == tokens).all(axis=1).mean()),
    )
    return [cost], [_speed(exact, rounded, *shape, rounds) for shape in SPANS]


def _captions(count: int) -> list[str]:
    """Captions of all styles in turn, of things from all over the themes."""
    order = Captions()
    things = [thing for theme in order.themes.values() for thing in theme]
    chosen = np.linspace(0, len(things) - 1, count).round().astype(int)
    styles = order.styles
    return [f"{styles[i % len(styles)]}: {things[thing]}" for i, thing in enumerate(chosen)]


def _begin(cloud: CloudModel, words: Sequence[Sequence[int]]) -> tuple[KVCache, Tensor]:
    """A cache that holds the captions, and the logits [B, V] of position 0."""
    cache, first = cloud.new_cache(len(words)), []
    for row, caption in enumerate(words):
        condition = cloud.condition_pair(caption)
        cache.begin(row, condition, 0)
        first.append(cloud.start_logits(condition)[:1])
    return cache, torch.cat(first)


def _draw(
    cloud: CloudModel, words: Sequence[Sequence[int]], sampling: Sampling
) -> tuple[Tokens, Tensor]:
    """Pictures [B, T] and the logits [B, T, V] that they were drawn from."""
    cache, logits = _begin(cloud, words)
    tokens, laws = np.zeros((len(words), cloud.tokens), np.int64), []
    for position in range(cloud.tokens):
        laws.append(logits)
        tokens[:, position] = _drawn(logits[:, None], sampling, position)[:, 0]
        spans = [
            Span(row, position, own[position : position + 1]) for row, own in enumerate(tokens)
        ]
        logits = cloud.forward_spans(cache, spans)
    return tokens, torch.stack(laws, dim=1)


def _laws(cloud: CloudModel, words: Sequence[Sequence[int]], tokens: Tokens) -> Tensor:
    """The logits [B, T, V] along given pictures."""
    cache, first = _begin(cloud, words)
    rest = cloud.forward_spans(cache, [Span(row, 0, own[:-1]) for row, own in enumerate(tokens)])
    return torch.cat([first[:, None], rest.unflatten(0, (len(tokens), -1))], dim=1)


def _drawn(logits: Tensor, sampling: Sampling, start: int = 0) -> Tokens:
    """What each picture's noise draws from its logits [B, n, V] at positions from `start`."""
    positions = np.arange(start, start + logits.shape[1])
    asks = [Ask(sampling, row, positions, own) for row, own in enumerate(logits.numpy())]
    return np.stack([drawn.tokens for drawn in draw_all(asks)])


def _speed(
    exact: CloudModel, rounded: CloudModel, pictures: int, tokens: int, rounds: int
) -> Speed:
    rng = np.random.default_rng(0)
    spans = [
        Span(row, _START, rng.integers(0, exact.vocab_size, tokens)) for row in range(pictures)
    ]
    caches = [_begin(cloud, [[2, 3]] * pictures)[0] for cloud in (exact, rounded)]
    works = [
        partial(cloud.forward_spans, cache, spans)
        for cloud, cache in zip((exact, rounded), caches, strict=True)
    ]
    plain, fast = in_turns(works, rounds, warm_up=3)
    ratios = [slow / quick for slow, quick in zip(plain, fast, strict=True)]
    return Speed(
        f"{pictures} x {tokens} tokens",
        statistics.median(plain) * 1e3,
        statistics.median(fast) * 1e3,
        statistics.median(ratios),
        min(ratios),
        max(ratios),
    )
