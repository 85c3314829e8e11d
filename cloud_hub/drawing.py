"""One picture of the cloud model alone, without devices: to look at a model before it is served."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cloud_hub.engine.requests import Run
from cloud_hub.engine.runner import Runner, Span
from fleet.decoding.noise import gumbel
from fleet.decoding.sampling import draw, sharpen
from fleet.protocol.arrays import FEATURE_BYTES
from fleet.protocol.messages import Sampling


def draw_tokens(
    runner: Runner, caption: tuple[int, ...], seed: int, sampling: Sampling
) -> NDArray[np.int64]:
    """The tokens [T] that a device under verify-all gets for the same caption and seed."""
    noise = gumbel(seed, np.arange(runner.positions), runner.vocab_size)
    tokens = np.zeros(runner.positions, np.int64)
    first = Span(0, 0, _run(tokens[:0]), sampling.guidance, use_features=False, caption=caption)
    logits = runner.prepare([first])()[0]
    for position in range(runner.positions):
        law = sharpen(logits[-1:], sampling)
        tokens[position] = draw(law, noise[position : position + 1])[0]
        if position + 1 < runner.positions:
            run = _run(tokens[position : position + 1])
            span = Span(0, position, run, sampling.guidance, use_features=False)
            logits = runner.prepare([span])()[0]
    return tokens


def draw_picture(
    folder: Path, caption: str, seed: int, sampling: Sampling, device: str
) -> NDArray[np.uint8]:
    """The picture [side, side, 3] that an added model draws.

    Raises:
        BundleError: The folder holds no added model, or a file is not what was added.
        InvalidInputError: The model cannot read the caption.
    """
    from cloud_hub.engine.torch_runner import TorchRunner
    from fleet.models.linked import decode_tokens, linked_tokenizer, load_linked

    model = load_linked(folder, device)
    words = tuple(model.captions.encode(caption))
    tokens = draw_tokens(TorchRunner(model, 1), words, seed, sampling)
    return decode_tokens(linked_tokenizer(folder), tokens)


def _run(tokens: NDArray[np.int64]) -> Run:
    count = len(tokens)
    return Run(tokens, np.zeros(count, bool), np.zeros((count, FEATURE_BYTES), np.int8))
