"""A transformer's layers in torch, for spans: any device, any precision.

Every matrix product here has a shape that rounds up to fixed steps (tokens and queries by 4, keys
by 32). Kernels choose how they add by the shape, so a token's numbers stay the same to the bit
whatever else is in the batch and however its picture was cut into spans (seen with torch 2.13 on
x86-64; elsewhere to rounding).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fleet.models.span_cache import KEY_STEP, KVCache, Places, Span, round_up
from fleet.models.span_layers import SpanLayer, lay_out
from fleet.models.transformer import Transformer

QUERY_STEP = TOKEN_STEP = 4

_CALL = 1 << 14  # numbers of keys that are read in the time that one more call of attention takes


class TorchLayers:
    """See `Layers`; weights are the model's own."""

    lanes = 1
    step = TOKEN_STEP

    def __init__(self, model: Transformer) -> None:
        """Moves the weights in memory, see `lay_out`."""
        lay_out(model)
        self._model = model
        self._layers = [SpanLayer.of(block) for block in model.blocks]
        # [C + T, 1, 1, head_dim / 2]
        self._turns = torch.view_as_complex(model.rotation.float())[:, None, None]

    def run(self, x: Tensor, cache: KVCache, spans: Sequence[Span], places: Places) -> Tensor:
        """See `Layers.run`."""
        plan = _plan(cache, spans, places, len(x))
        turns = self._turns[plan.turns]
        for layer, keys, values in zip(self._layers, cache.keys, cache.values, strict=True):
            cells = keys.squeeze(-1), values
            parts = layer.project(x, turns)
            for held, new in zip(cells, parts[: plan.count, 1:].unbind(1), strict=True):
                held.transpose(1, 2)[plan.rows, plan.cells] = new
            layer.finish(x, _attend(parts[:, 0], cells, plan))
        hidden: Tensor = self._model.norm(x[: plan.count])
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """See `Layers.logits`."""
        made: Tensor = self._model.output(hidden)
        return made.float()


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
    turns: Tensor  # [N], padded, place of each token in the rotation table
    gather: Tensor  # [N], padded, the padded query of each token
    rows: Tensor  # [count], cache row of each token
    cells: Tensor  # [count], cache cell of each token
    spread: Tensor  # [Q], the token of each padded query
    groups: list[_Group]


def _plan(cache: KVCache, spans: Sequence[Span], places: Places, padded: int) -> _Plan:
    device, count = cache.values.device, len(places.rows)
    counts = np.array([len(span.tokens) for span in spans])
    widths = round_up(counts, QUERY_STEP)
    further = np.cumsum(widths - counts) - (widths - counts)  # padding before each span
    queries = np.arange(count) + np.repeat(further, counts)
    spread = np.zeros(int(widths.sum()), np.int64)
    spread[queries] = np.arange(count)
    ends = np.zeros((2, padded), np.int64)
    ends[:, :count] = places.turns, queries
    turns, gather = torch.from_numpy(ends).to(device).unbind()
    return _Plan(
        count=count,
        turns=turns,
        gather=gather,
        rows=torch.from_numpy(places.rows).to(device),
        cells=torch.from_numpy(places.cells).to(device),
        spread=torch.from_numpy(spread).to(device),
        groups=_groups(cache, spans, widths.tolist(), device),
    )


def _groups(
    cache: KVCache, spans: Sequence[Span], widths: list[int], device: torch.device
) -> list[_Group]:
    reaches = [int(round_up(cache.lead + span.end, KEY_STEP)) for span in spans]
    worth = _CALL // (cache.values.shape[2] * cache.values.shape[4])
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


def _attend(q: Tensor, cells: tuple[Tensor, Tensor], plan: _Plan) -> Tensor:
    """Mix the values of a layer's cells for queries [N, H, head_dim]; [N, D]."""
    padded, mixed = q[plan.spread], []
    for group in plan.groups:
        size, _, length, reach = group.bias.shape
        keys, values = (each[group.rows, :, :reach] for each in cells)
        own = padded[group.queries].unflatten(0, (size, length)).transpose(1, 2)
        out = F.scaled_dot_product_attention(own, keys, values, attn_mask=group.bias)
        mixed.append(out.transpose(1, 2).flatten(2).flatten(0, 1))
    return torch.cat(mixed)[plan.gather]
