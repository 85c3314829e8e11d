"""The cloud's forward next to the machine's sgemm, and decoding next to `transformers`.

All on one thread, in processor time, so other load on the machine changes little. `transformers` is
optional (`pip install transformers`): its Llama with random weights of the same layers, width,
heads, feed-forward and codes, a static cache, sampling with the same top-k.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fleet.decoding.sampling import draw, sharpen
from fleet.errors import InvalidInputError
from fleet.models.bundle import CLOUD_FOLDER
from fleet.models.spans import KVCache, Span
from fleet.models.torch_model import CloudModel
from fleet.models.transformer import TransformerConfig
from fleet.protocol.messages import Sampling

SHAPES = ((1, 1), (1, 8), (8, 4), (32, 4), (64, 4))  # pictures, tokens of each
_WARM_UP = 3
_START = 100  # where the spans of a picture begin
_TOP_K = 64


@dataclass(frozen=True, slots=True)
class Work:
    """A forward of so many guided pictures; a row is a token of one guidance branch."""

    subject: str
    rows: int
    forward_ms: float
    gflop_s: float
    sgemm_gflop_s: float
    ratio: float


@dataclass(frozen=True, slots=True)
class Padding:
    """One forward over spans of different lengths, flattened, next to all padded to the longest."""

    subject: str
    flattened_ms: float
    padded_ms: float
    ratio: float


@dataclass(frozen=True, slots=True)
class Decoding:
    """Tokens a second of plain decoding (no guidance), with the ratio's spread."""

    subject: str
    ours_per_s: float
    theirs_per_s: float
    ratio: float
    least: float
    most: float


def forwards(models: Path, *, rounds: int) -> list[Work]:
    """The bare forward's rate ÷ that of its own matrix products alone."""
    torch.set_num_threads(1)
    cloud = CloudModel.load(models / CLOUD_FOLDER)
    cache = _cache(cloud, 2 * max(pictures for pictures, _ in SHAPES))
    return [_work(cloud, cache, pictures, tokens, rounds) for pictures, tokens in SHAPES]


def _work(cloud: CloudModel, cache: KVCache, pictures: int, tokens: int, rounds: int) -> Work:
    rng = np.random.default_rng(0)
    spans = [
        Span(row, _START, rng.integers(0, cloud.vocab_size, tokens)) for row in range(2 * pictures)
    ]
    rows = 2 * pictures * tokens
    products = _products(cloud.engine.config, rows)
    flop = 2 * rows * sum(count * ins * outs for count, ins, outs in _layers(cloud.engine.config))
    forward = _median(lambda: cloud.forward_spans(cache, spans), rounds)
    sgemm = _median(products, rounds)
    return Work(
        f"{pictures} x {tokens} tokens",
        rows,
        forward * 1e3,
        flop / forward / 1e9,
        flop / sgemm / 1e9,
        sgemm / forward,
    )


def paddings(models: Path, *, rounds: int) -> list[Padding]:
    """What padding every span to the longest would cost."""
    torch.set_num_threads(1)
    cloud = CloudModel.load(models / CLOUD_FOLDER)
    mixes = {
        "backlogs of 1 to 16": [1, 2, 3, 5, 8, 16] * 5,
        "30 prefix steps, 1 re-prefill of 64": [1] * 30 + [64],
        "32 backlogs of 4": [4] * 32,
    }
    cache = _cache(cloud, 64)
    return [_padding(cloud, cache, name, lengths, rounds) for name, lengths in mixes.items()]


def _padding(
    cloud: CloudModel, cache: KVCache, name: str, lengths: list[int], rounds: int
) -> Padding:
    def spans(widths: list[int]) -> list[Span]:
        return [
            Span(2 * index + branch, _START, np.zeros(width, np.int64))
            for index, width in enumerate(widths)
            for branch in (0, 1)
        ]

    mixed, padded = spans(lengths), spans([max(lengths)] * len(lengths))
    flat_s = _median(lambda: cloud.forward_spans(cache, mixed), rounds)
    padded_s = _median(lambda: cloud.forward_spans(cache, padded), rounds)
    return Padding(name, flat_s * 1e3, padded_s * 1e3, padded_s / flat_s)


def _layers(config: TransformerConfig) -> list[tuple[int, int, int]]:
    """The linear layers: how many, inputs, outputs."""
    n, dim, ffn = config.n_layer, config.dim, config.ffn
    return [
        (n, dim, 3 * dim),
        (n, dim, dim),
        (2 * n, dim, ffn),
        (n, ffn, dim),
        (1, dim, config.vocab_size),
    ]


def _products(config: TransformerConfig, rows: int) -> Callable[[], None]:
    operands = [
        (count, torch.randn(rows, ins), torch.randn(ins, outs))
        for count, ins, outs in _layers(config)
    ]

    def multiply() -> None:
        for count, left, right in operands:
            for _ in range(count):
                torch.mm(left, right)

    return multiply


def decoding(models: Path, *, tokens: int, rounds: int) -> list[Decoding]:
    """Ours ÷ `transformers`, tokens a second, for 1 and 32 pictures.

    Raises:
        InvalidInputError: `transformers` cannot be imported.
    """
    torch.set_num_threads(1)
    cloud = CloudModel.load(models / CLOUD_FOLDER)
    try:
        peer = _llama(cloud.engine.config)
    except ImportError as error:
        raise InvalidInputError(f"--peer needs transformers: {error}") from error
    return [_compare(cloud, peer, batch, tokens, rounds) for batch in (1, 32)]


def _compare(
    cloud: CloudModel, peer: torch.nn.Module, batch: int, tokens: int, rounds: int
) -> Decoding:
    cache = _cache(cloud, batch)
    sampling = Sampling(temperature=1.0, top_k=_TOP_K, guidance=1.0)
    rng = np.random.default_rng(0)

    def ours() -> None:
        last = np.zeros(batch, np.int64)
        for position in range(tokens):
            spans = [Span(row, position, last[row : row + 1]) for row in range(batch)]
            logits = cloud.forward_spans(cache, spans).numpy()
            noise = rng.gumbel(size=logits.shape).astype(np.float32)
            last = draw(sharpen(logits, sampling), noise)

    prompt = torch.ones(batch, 1, dtype=torch.long)

    def theirs() -> None:
        peer.generate(  # type: ignore[operator]
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            do_sample=True,
            top_k=_TOP_K,
            cache_implementation="static",
            pad_token_id=0,
        )

    with torch.inference_mode():
        mine, other = _times(ours, rounds), _times(theirs, rounds)
    ratios = [b / a for a, b in zip(mine, other, strict=True)]
    made = batch * tokens
    return Decoding(
        f"{batch} pictures",
        made / statistics.median(mine),
        made / statistics.median(other),
        statistics.median(ratios),
        min(ratios),
        max(ratios),
    )


def _llama(config: TransformerConfig) -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = LlamaConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.dim,
        intermediate_size=config.ffn,
        num_hidden_layers=config.n_layer,
        num_attention_heads=config.n_head,
        max_position_embeddings=1024,
    )
    model: torch.nn.Module = LlamaForCausalLM(shape).eval()
    return model


def _cache(cloud: CloudModel, rows: int) -> KVCache:
    cache = cloud.new_cache(rows)
    condition = cloud.condition_pair([2, 3])
    for row in range(rows):
        cache.begin(row, condition, row % 2)
    return cache


def _median(work: Callable[[], object], rounds: int) -> float:
    return statistics.median(_times(work, rounds))


def _times(work: Callable[[], object], rounds: int) -> list[float]:
    """Seconds of processor time of each of `rounds`, after some to warm up."""
    times = []
    for _ in range(rounds + _WARM_UP):
        begun = time.process_time()
        work()
        times.append(time.process_time() - begun)
    return times[_WARM_UP:]
