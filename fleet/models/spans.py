"""Spans of many pictures through one transformer, on a cache that is written in place.

Every matrix product here has a shape that rounds up to fixed steps (queries by 4, keys by 32, and
tokens by 4 unless all weights are packed). Kernels choose how they add by the shape, so a token's
numbers stay the same to the bit whatever else is in the batch and however its picture was cut into
spans (seen with torch 2.13 on x86-64; elsewhere to rounding).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fleet.models.conditions import Condition, Prompt
from fleet.models.span_layers import Product, SpanLayer, all_packed, lay_out
from fleet.models.transformer import Transformer

TOKEN_STEP = 4
KEY_STEP = 32

_CALL = 1 << 14  # numbers of keys that are read in the time that one more call of attention takes


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """Tokens of one cache row that follow each other; the row must hold all tokens before.

    Attributes:
        row: The cache row.
        start: The picture position of the first token.
        tokens: [n], n >= 1.
        features: int8 [n, 48], zero where a token has none; None where no token has one.
    """

    row: int
    start: int
    tokens: NDArray[np.int64]
    features: NDArray[np.int8] | None = None

    @property
    def end(self) -> int:
        """The position after the last token."""
        return self.start + len(self.tokens)


class KVCache:
    """Keys and values of all rows, in the weights' precision.

    The first cells of a row are its condition's: one for a collapsed condition, whose key is 0,
    or those of a whole prompt. Those of the picture's positions follow. A row is rolled back by
    starting a span at an earlier position: later cells are never read.
    """

    def __init__(self, transformer: Transformer, rows: int) -> None:
        config, device = transformer.config, transformer.rotation.device
        self.lead, self.places = config.lead, config.n_token
        cells = _round_up(self.lead + config.n_token, KEY_STEP)
        shape = (config.n_layer, 2, rows, config.n_head, cells, config.head_dim)
        dtype = transformer.tok_embeddings.weight.dtype
        # [L, 2, rows, H, cells, head_dim]
        self.cells = torch.zeros(shape, device=device, dtype=dtype)
        # [rows * T, D], what the conditions add to the embeddings
        self.sketch: Tensor | None = None
        if transformer.sketch is not None:
            sketched = (rows * self.places, config.dim)
            self.sketch = torch.zeros(sketched, device=device, dtype=dtype)
        self.bias = np.zeros((rows, self.lead), np.float32)  # of the condition's keys
        self.offsets = np.full(rows, config.caption_length)  # rotation of position 0

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.cells.shape[2]

    @property
    def nbytes(self) -> int:
        """The memory of all rows."""
        return self.cells.nbytes + (0 if self.sketch is None else self.sketch.nbytes)

    def begin(self, row: int, condition: Condition | Prompt, index: int) -> None:
        """Give a row the condition at `index` of a batch of conditions, and nothing else.

        What the last picture left is cleared: its cells are masked, but 0 · NaN is NaN.
        """
        self.cells[:, :, row] = 0
        self.cells[:, :, row, :, : self.lead] = condition.cells[:, :, index]
        self.bias[row] = condition.bias[index].float().cpu()
        if isinstance(condition, Prompt):
            self.offsets[row] = int(condition.lengths[index])
        elif self.sketch is not None and condition.sketch is not None:
            first = row * self.places
            self.sketch[first : first + self.places] = condition.sketch[index]


class SpanEngine:
    """A transformer that runs spans; it moves the weights in memory, see `lay_out`."""

    def __init__(self, transformer: Transformer) -> None:
        self.transformer = transformer.eval()
        self.config = transformer.config
        lay_out(transformer)
        self._layers = [SpanLayer.of(block) for block in transformer.blocks]
        self._output = Product.of(transformer.output)
        products = [self._output, *(p for layer in self._layers for p in layer.products)]
        self._step = 1 if all_packed(products) else TOKEN_STEP
        # [C + T, 1, 1, head_dim / 2]
        self._turns = torch.view_as_complex(transformer.rotation.float())[:, None, None]

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.transformer.rotation.device

    def new_cache(self, rows: int) -> KVCache:
        """Return a cache for `rows` rows, all of its memory taken now."""
        return KVCache(self.transformer, rows)

    @torch.inference_mode()
    def run(self, cache: KVCache, spans: Sequence[Span], added: Tensor | None = None) -> Tensor:
        """Run all spans in one pass; hidden state i of a span predicts position start + i + 1.

        Spans of rows equally far apart attend together, so pass them in the order of their rows.

        Args:
            cache: Receives the spans' keys and values.
            spans: At most one a row.
            added: [N, D], what is added to the token embeddings, over all spans' tokens.

        Returns:
            Hidden states [N, D] of all spans' tokens.
        """
        plan = _plan(cache, spans, self._step, self.device)
        padded = None if added is None else _pad_rows(added, len(plan.tokens))
        x = self.transformer.embed(plan.tokens, padded)
        if cache.sketch is not None:
            x[: plan.count].add_(cache.sketch.index_select(0, plan.places))
        turns = self._turns[plan.turns]
        for layer, cells in zip(self._layers, cache.cells, strict=True):
            parts = layer.project(x, turns)
            _write(cells, parts[: plan.count, 1:], plan)
            layer.finish(x, _attend(parts[:, 0], cells, plan))
        hidden: Tensor = self.transformer.norm(x[: plan.count])
        return hidden

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits [N, V], fp32, of hidden states [N, D]."""
        rows = _pad_rows(hidden, _round_up(len(hidden), self._step))
        return self._output(rows)[: len(hidden)].float()


@dataclass(frozen=True, slots=True)
class _Group:
    """Spans of rows equally far apart and of one rounded length, which attend in one call."""

    rows: slice
    queries: slice  # of all padded queries
    bias: Tensor  # [G, 1, queries of one span, keys]


@dataclass(frozen=True, slots=True)
class _Plan:
    """Where every token of a pass comes from and goes to."""

    count: int  # tokens, without padding
    tokens: Tensor  # [N], padded at the end
    turns: Tensor  # [N], padded, place of each token in the rotation table
    gather: Tensor  # [N], the padded query of each token
    rows: Tensor  # [count], cache row of each token
    cells: Tensor  # [count], cache cell of each token
    places: Tensor  # [count], row of each token in the cache's sketch
    spread: Tensor  # [Q], the token of each padded query
    groups: list[_Group]


def _plan(cache: KVCache, spans: Sequence[Span], step: int, device: torch.device) -> _Plan:
    counts = np.array([len(span.tokens) for span in spans])
    widths = _round_up(counts, TOKEN_STEP)
    count = int(counts.sum())
    inside = np.arange(count) - np.repeat(np.cumsum(counts) - counts, counts)
    rows = np.repeat([span.row for span in spans], counts)
    positions = np.repeat([span.start for span in spans], counts) + inside
    queries = np.repeat(np.cumsum(widths) - widths, counts) + inside
    padded = np.zeros((3, _round_up(count, step)), np.int64)
    np.concatenate([span.tokens for span in spans], out=padded[0, :count])
    padded[1, :count] = cache.offsets[rows] + positions
    padded[2, :count] = queries
    spread = np.zeros(int(widths.sum()), np.int64)
    spread[queries] = np.arange(count)
    tokens, turns, gather = torch.from_numpy(padded).to(device).unbind()
    return _Plan(
        count=count,
        tokens=tokens,
        turns=turns,
        gather=gather,
        rows=torch.from_numpy(rows).to(device),
        cells=torch.from_numpy(cache.lead + positions).to(device),
        places=torch.from_numpy(rows * cache.places + positions).to(device),
        spread=torch.from_numpy(spread).to(device),
        groups=_groups(cache, spans, widths.tolist(), device),
    )


def _groups(
    cache: KVCache, spans: Sequence[Span], widths: list[int], device: torch.device
) -> list[_Group]:
    reaches = [int(_round_up(cache.lead + span.end, KEY_STEP)) for span in spans]
    worth = _CALL // (cache.cells.shape[3] * cache.cells.shape[5])
    groups, offset = [], 0
    for chosen in _cut(spans, widths, reaches, worth):
        own, width, size = spans[chosen], widths[chosen.start], chosen.stop - chosen.start
        step = own[1].row - own[0].row if size > 1 else 1
        rows = slice(own[0].row, own[-1].row + 1, step)
        bias = _bias(cache.bias[rows], own, width, max(reaches[chosen]))
        queries = slice(offset, offset + size * width)
        groups.append(_Group(rows, queries, torch.from_numpy(bias).to(device)))
        offset = queries.stop
    return groups


def _cut(
    spans: Sequence[Span], widths: list[int], reaches: list[int], worth: int
) -> Iterator[slice]:
    """Yield the spans of each group: all of one width, in rows that lie equally far apart.

    A group reads as many keys in every row as its longest span needs. A span joins if the keys
    that are then read in vain cost less than a call of its own: `worth` keys of one row.
    """
    first, reach, step = 0, reaches[0], 0
    for index in range(1, len(spans)):
        joint, size = max(reach, reaches[index]), index - first
        gap = spans[index].row - spans[index - 1].row
        follows = gap > 0 and (size == 1 or gap == step)
        wasted = (joint - reach) * size + joint - reaches[index]
        if follows and widths[index] == widths[index - 1] and wasted <= worth:
            reach, step = joint, gap
            continue
        yield slice(first, index)
        first, reach = index, reaches[index]
    yield slice(first, len(spans))


def _bias(
    lead: NDArray[np.float32], spans: Sequence[Span], queries: int, keys: int
) -> NDArray[np.float32]:
    """Return the bias [G, 1, queries, keys] of spans after conditions of bias `lead` [G, C]."""
    first = lead.shape[1]
    starts = np.array([span.start for span in spans])
    # A query sees up to its own cell.
    last = starts[:, None] + np.arange(first, first + queries)  # [G, queries]
    bias = np.where(np.arange(keys) > last[:, :, None], np.float32(-np.inf), np.float32(0))
    bias[:, :, :first] = lead[:, None]
    return bias[:, None]


def _attend(q: Tensor, cells: Tensor, plan: _Plan) -> Tensor:
    """Mix the values of a layer's cells for queries [N, H, head_dim]; [N, D]."""
    padded, mixed = q[plan.spread], []
    for group in plan.groups:
        size, _, length, reach = group.bias.shape
        out = F.scaled_dot_product_attention(
            padded[group.queries].unflatten(0, (size, length)).transpose(1, 2),
            cells[0, group.rows, :, :reach],
            cells[1, group.rows, :, :reach],
            attn_mask=group.bias,
        )
        mixed.append(out.transpose(1, 2).flatten(2).flatten(0, 1))
    return torch.cat(mixed)[plan.gather]


def _write(cells: Tensor, new: Tensor, plan: _Plan) -> None:
    """Put new keys and values [count, 2, H, head_dim] into cells [2, rows, H, cells, head_dim]."""
    cells.permute(1, 3, 0, 2, 4)[plan.rows, plan.cells] = new


def _pad_rows(values: Tensor, length: int) -> Tensor:
    return F.pad(values, (0, 0, 0, length - len(values)))


def _round_up(size: Any, step: int) -> Any:
    return -(-size // step) * step
