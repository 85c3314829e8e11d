"""A transformer's layers by compiled kernels, where its weights are numbers of fp16."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fleet.models import span_kernels as kernels
from fleet.models.layers import RMSNorm
from fleet.models.span_cache import KVCache, Places, Precision, Span
from fleet.models.transformer import Transformer, TransformerConfig

Panels = NDArray[np.uint16] | NDArray[np.uint32]

_UNROLLED = 8  # inputs of a product are a multiple of it
_WORTH = 16  # tokens: fewer are not shared among threads


class CompiledLayers:
    """See `Layers`; spans are shared among as many threads as torch has for its products.

    Weights are copies in fp16, half as large as those in fp32, which conditions still read.
    """

    lanes = kernels.LANES
    step = 1

    def __init__(self, weights: kernels.Weights, output: Panels, model: Transformer) -> None:
        self._weights, self._output = weights, output
        self._vocab = model.config.vocab_size
        self._turns = model.rotation.numpy()  # [C + T, head_dim / 2, 2]
        self._pool: ThreadPoolExecutor | None = None

    @classmethod
    def of(cls, model: Transformer, precision: Precision = "fp16") -> Self | None:
        """Return the layers of a model, or None where the kernels cannot give its numbers.

        `bf16` rounds weights and what they are multiplied with; sums stay fp32.
        """
        blocks, last = model.blocks, model.norm
        if not isinstance(last, RMSNorm) or not _fits(model, precision):
            return None
        norms = [(b.attention_norm.weight, b.ffn_norm.weight) for b in blocks]
        weights = kernels.Weights(
            wide=model.config.ffn,
            norms=np.array([[each.detach().numpy() for each in pair] for pair in norms]),
            wqkv=np.stack([packed(b.attention.wqkv, precision) for b in blocks]),
            wo=np.stack([packed(b.attention.wo, precision) for b in blocks]),
            w1=np.stack([packed(b.feed_forward.w1, precision) for b in blocks]),
            w3=np.stack([packed(b.feed_forward.w3, precision) for b in blocks]),
            w2=np.stack([packed(b.feed_forward.w2, precision) for b in blocks]),
            last=last.weight.detach().numpy(),
            eps=np.array([model.config.norm_eps], np.float32),
        )
        layers = cls(weights, packed(model.output, precision), model)
        layers._compile(model.config)
        return layers

    def run(self, x: Tensor, cache: KVCache, spans: Sequence[Span], places: Places) -> Tensor:
        """See `Layers.run`."""
        cells = kernels.Cells(cache.keys.numpy(), cache.values.numpy())
        turns, hidden = self._turns[places.turns], x.numpy()

        def run(part: slice) -> None:
            tokens = kernels.Tokens(places.rows[part], places.cells[part], turns[part])
            kernels.run(hidden[part], self._weights, cells, cache.bias, tokens)

        self._share(run, [len(span.tokens) for span in spans])
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """See `Layers.logits`."""
        made = torch.empty(len(hidden), self._vocab)
        x, out = hidden.contiguous().numpy(), made.numpy()
        self._share(
            lambda part: kernels.multiply(x[part], self._output, out[part]), [1] * len(hidden)
        )
        return made

    def _compile(self, config: TransformerConfig) -> None:
        """Compile now what would be compiled with the first pass."""
        shape = (config.n_layer, 0, config.n_head, 0)
        cells = kernels.Cells(
            np.zeros((*shape, config.head_dim, kernels.LANES), np.float32),
            np.zeros((*shape, config.head_dim), np.float32),
        )
        x, lead = np.zeros((0, config.dim), np.float32), np.zeros((0, config.lead), np.float32)
        tokens = kernels.Tokens(np.zeros(0, np.int64), np.zeros(0, np.int64), self._turns[:0])
        kernels.run(x, self._weights, cells, lead, tokens)
        kernels.multiply(x, self._output, np.zeros((0, self._vocab), np.float32))

    def _share(self, work: Callable[[slice], None], counts: Sequence[int]) -> None:
        """Do work on all tokens, in parts of whole spans, which do not depend on each other."""
        ends = np.cumsum(counts)
        threads = min(torch.get_num_threads(), int(ends[-1]) // _WORTH)
        cuts = [int(ends[-1]) * part // threads for part in range(1, threads)]
        cuts = sorted(
            {int(ends[index]) for index in np.searchsorted(ends, cuts)} | {0, int(ends[-1])}
        )
        parts = [slice(*pair) for pair in pairwise(cuts)]
        if len(parts) > 1 and self._pool is None:
            self._pool = ThreadPoolExecutor(torch.get_num_threads() - 1, "span")
        others = [self._pool.submit(work, part) for part in parts[1:]] if self._pool else []
        work(parts[0])
        for other in others:
            other.result()


def packed(layer: nn.Linear, precision: Precision = "fp16") -> Panels:
    """Return a layer's weights in panels, as `span_kernels.multiply` reads them."""
    outputs, inputs = layer.weight.shape
    whole = torch.zeros(-(-outputs // kernels.PANEL) * kernels.PANEL, inputs)
    whole[:outputs] = layer.weight.detach()
    kind = torch.float16 if precision == "fp16" else torch.bfloat16
    panels = whole.to(kind).view(torch.int16).numpy().view(np.uint16)
    panels = panels.reshape(-1, kernels.PANEL, inputs)
    if precision == "bf16":  # two inputs in a number
        panels = np.ascontiguousarray(panels).view(np.uint32)
    return np.ascontiguousarray(panels.transpose(0, 2, 1))


def _fits(model: Transformer, precision: Precision) -> bool:
    """Return whether the kernels compute a model: for `fp16` in weights that it holds exactly."""
    parts = [*model.layers.modules(), model.output]
    weights = [part.weight for part in parts if isinstance(part, nn.Linear)]
    return (
        model.rotation.device.type == "cpu"
        and model.config.head_dim % kernels.LANES == 0
        and not any(name.endswith(".bias") for name, _ in model.layers.named_parameters())
        and all(weight.shape[1] % _UNROLLED == 0 for weight in weights)
        and all(weight.dtype == torch.float32 for weight in weights)
        and (precision == "bf16" or all(torch.equal(w.half().float(), w) for w in weights))
    )
