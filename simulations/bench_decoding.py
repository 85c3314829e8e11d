"""Whole pictures as the hub draws them, next to `transformers` with the same layers.

`transformers` is optional (`pip install transformers`): its Llama with random weights of the same
layers, width, heads, feed-forward and codes, in fp32, with a static cache and the same top-k. Both
draw the same number of tokens of as many pictures without guidance, in lock-step, on one thread;
they take turns. Ours is the hub's runner with the picture's shared noise, as a verdict draws it.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from cloud_hub.engine.requests import Run
from cloud_hub.engine.runner import Span
from cloud_hub.engine.torch_runner import TorchRunner
from fleet.decoding.draws import Ask, draw_all
from fleet.errors import InvalidInputError
from fleet.models.bundle import CLOUD_FOLDER
from fleet.models.torch_model import CloudModel
from fleet.models.transformer import TransformerConfig
from fleet.protocol.arrays import FEATURE_BYTES
from fleet.protocol.messages import Sampling
from simulations.bench_forward import in_turns

PICTURES = (1, 32)
_SAMPLING = Sampling(temperature=1.0, top_k=64, guidance=1.0)
_CAPTION = (2, 3)


@dataclass(frozen=True, slots=True)
class Decoding:
    """Tokens a second of processor time, and the ratio's median with its spread over rounds."""

    subject: str
    ours_per_s: float
    theirs_per_s: float
    ratio: float
    least: float
    most: float


def decoding(
    models: Path, *, tokens: int | None = None, rounds: int, pictures: Sequence[int] = PICTURES
) -> list[Decoding]:
    """Ours ÷ `transformers` for so many pictures at once, of `tokens` (default: all of them).

    Raises:
        InvalidInputError: `transformers` cannot be imported, or a picture has fewer tokens.
    """
    torch.set_num_threads(1)
    cloud = CloudModel.load(models / CLOUD_FOLDER)
    asked = tokens or cloud.tokens
    if not 1 < asked <= cloud.tokens:
        raise InvalidInputError(f"a picture has 2 to {cloud.tokens} tokens, not {asked}")
    try:
        peer = _llama(cloud.engine.config)
    except ImportError as error:
        raise InvalidInputError(f"this bench needs transformers: {error}") from error
    return [_compare(cloud, peer, batch, asked, rounds) for batch in pictures]


def _compare(
    cloud: CloudModel, peer: torch.nn.Module, batch: int, tokens: int, rounds: int
) -> Decoding:
    with torch.inference_mode():
        ways = [_ours(cloud, batch, tokens), _theirs(peer, batch, tokens)]
        mine, other = in_turns(ways, rounds, warm_up=1)
    ratios = [theirs / ours for ours, theirs in zip(mine, other, strict=True)]
    made = batch * tokens
    return Decoding(
        f"{batch} pictures of {tokens} tokens",
        made / statistics.median(mine),
        made / statistics.median(other),
        statistics.median(ratios),
        min(ratios),
        max(ratios),
    )


def _ours(cloud: CloudModel, batch: int, tokens: int) -> Callable[[], None]:
    runner = TorchRunner(cloud, batch)

    def work() -> None:
        rows = runner.run([_span(slot, 0, [], caption=_CAPTION) for slot in range(batch)])
        for position in range(tokens):
            where = np.array([position])
            drawn = draw_all([Ask(_SAMPLING, slot, where, rows[slot]) for slot in range(batch)])
            last = [each.tokens.tolist() for each in drawn]
            if position + 1 < tokens:
                rows = runner.run([_span(slot, position, last[slot]) for slot in range(batch)])

    return work


def _span(
    slot: int, start: int, tokens: Sequence[int], caption: tuple[int, ...] | None = None
) -> Span:
    count = len(tokens)
    features = np.zeros((count, FEATURE_BYTES), np.int8)
    run = Run(np.array(tokens, np.int64), np.zeros(count, bool), features)
    return Span(slot, start, run, _SAMPLING.guidance, use_features=False, caption=caption)


def _theirs(peer: torch.nn.Module, batch: int, tokens: int) -> Callable[[], None]:
    prompt = torch.ones(batch, 1, dtype=torch.long)

    def work() -> None:
        drawn = peer.generate(  # type: ignore[operator]
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=tokens,
            do_sample=True,
            top_k=_SAMPLING.top_k,
            cache_implementation="static",
            pad_token_id=0,
        )
        assert drawn.shape == (batch, 1 + tokens)

    return work


def _llama(config: TransformerConfig) -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = LlamaConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.dim,
        intermediate_size=config.ffn,
        num_hidden_layers=config.n_layer,
        num_attention_heads=config.n_head,
        max_position_embeddings=1 + config.n_token,
        eos_token_id=None,  # a picture ends by its number of tokens
    )
    model: torch.nn.Module = LlamaForCausalLM(shape).float().eval()
    return model
