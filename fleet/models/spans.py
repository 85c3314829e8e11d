"""Spans of many pictures through one transformer, on a cache that is written in place.

Every matrix product here has a shape that rounds up to fixed steps (tokens and queries by 4,
keys by 32). Kernels choose how they add by the shape, so a token's numbers stay the same to the
bit whatever else is in the batch and however its picture was cut into spans (seen with torch
2.13 on x86-64; elsewhere to rounding).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fleet.models.conditions import Condition, Prompt
from fleet.models.transformer import Transformer

TOKEN_STEP = 4
KEY_STEP = 32


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
        self.lead = config.lead
        cells = _round_up(self.lead + config.n_token, KEY_STEP)
        shape = (config.n_layer, 2, rows, config.n_head, cells, config.head_dim)
        dtype = transformer.tok_embeddings.weight.dtype
        # [L, 2, rows, H, cells, head_dim]
        self.cells = torch.zeros(shape, device=device, dtype=dtype)
        self.bias = torch.zeros(rows, self.lead, device=device)  # of the condition's keys
        self.offsets = np.full(rows, config.caption_length)  # rotation of position 0

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.cells.shape[2]

    def begin(self, row: int, condition: Condition | Prompt, index: int) -> None:
        """Give a row the condition at `index` of a batch of conditions, and nothing else.

        What the last picture left is cleared: its cells are masked, but 0 · NaN is NaN.
        """
        self.cells[:, :, row] = 0
        if isinstance(condition, Condition):
            self.cells[:, 1, row, :, 0] = condition.value[:, index]
            self.bias[row, 0] = condition.log_n[index]
            return
        length = int(condition.lengths[index])
        self.cells[:, :, row, :, : self.lead] = condition.rows[:, :, index]
        self.bias[row] = 0
        self.bias[row, : self.lead - length] = float("-inf")
        self.offsets[row] = length


class SpanEngine:
    """A transformer that runs spans."""

    def __init__(self, transformer: Transformer) -> None:
        self.transformer = transformer.eval()
        self.config = transformer.config

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

        Spans of consecutive rows attend together, so pass them in the order of their rows.

        Args:
            cache: Receives the spans' keys and values.
            spans: At most one a row.
            added: [N, D], what is added to the token embeddings, over all spans' tokens.

        Returns:
            Hidden states [N, D] of all spans' tokens.
        """
        plan = _plan(cache, spans, self.device)
        padded = None if added is None else _pad_rows(added, len(plan.tokens))
        x = self.transformer.embed(plan.tokens, padded)[None]
        rotation = self.transformer.rotation[plan.turns]
        for layer, block in enumerate(self.transformer.blocks):
            q, k, v = block.project(x, rotation)  # [1, H, N, head_dim]
            keys, values = cache.cells[layer]
            _write(keys, k[0], plan)
            _write(values, v[0], plan)
            x = block.finish(x, _attend(q[0], keys, values, plan)[None])
        hidden: Tensor = self.transformer.norm(x)[0, : plan.count]
        return hidden

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits [N, V], fp32, of hidden states [N, D]."""
        rows = _pad_rows(hidden, _round_up(len(hidden), TOKEN_STEP))
        logits: Tensor = self.transformer.output(rows)[: len(hidden)].float()
        return logits


@dataclass(frozen=True, slots=True)
class _Group:
    """Spans of consecutive rows and of one rounded length, which attend in one call."""

    rows: slice
    offset: int  # of its first query among the padded queries
    queries: int  # of one span, rounded up
    bias: Tensor  # [G, 1, queries, keys]


@dataclass(frozen=True, slots=True)
class _Plan:
    """Where every token of a pass comes from and goes to."""

    count: int  # tokens, without padding
    tokens: Tensor  # [N], padded at the end
    cells: Tensor  # [count], cache cell of each token
    turns: Tensor  # [N], padded, place of each token in the rotation table
    rows: Tensor  # [count], cache row of each token
    spread: Tensor  # [Q], the token of each padded query
    gather: Tensor  # [N], the padded query of each token
    groups: list[_Group]


def _plan(cache: KVCache, spans: Sequence[Span], device: torch.device) -> _Plan:
    counts = np.array([len(span.tokens) for span in spans])
    widths = _round_up(counts, TOKEN_STEP)
    count = int(counts.sum())
    inside = np.concatenate([np.arange(n) for n in counts])
    queries = np.repeat(np.cumsum(widths) - widths, counts) + inside
    spread = np.zeros(int(widths.sum()), np.int64)
    spread[queries] = np.arange(count)
    extra = _round_up(count, TOKEN_STEP) - count
    positions = np.repeat(np.array([span.start for span in spans]), counts) + inside
    rows = np.repeat(np.array([span.row for span in spans]), counts)

    def move(values: NDArray[np.int64], padding: int = 0) -> Tensor:
        return torch.from_numpy(np.pad(values, (0, padding))).to(device)

    return _Plan(
        count=count,
        tokens=move(np.concatenate([span.tokens for span in spans]).astype(np.int64), extra),
        cells=move(cache.lead + positions),
        turns=move(cache.offsets[rows] + positions, extra),
        rows=move(rows),
        spread=move(spread),
        gather=move(queries, extra),
        groups=_groups(cache, spans, [int(width) for width in widths]),
    )


def _groups(cache: KVCache, spans: Sequence[Span], widths: list[int]) -> list[_Group]:
    offsets = [0, *accumulate(widths)]
    groups, first = [], 0
    for index in range(1, len(spans) + 1):
        if index < len(spans) and _joins(spans, widths, index):
            continue
        chosen = spans[first:index]
        rows = slice(chosen[0].row, chosen[-1].row + 1)
        bias = _bias(cache.bias[rows], chosen, widths[first])
        groups.append(_Group(rows, offsets[first], widths[first], bias))
        first = index
    return groups


def _joins(spans: Sequence[Span], widths: list[int], index: int) -> bool:
    follows = spans[index].row == spans[index - 1].row + 1
    return follows and widths[index] == widths[index - 1]


def _bias(lead: Tensor, spans: Sequence[Span], queries: int) -> Tensor:
    """Return the bias [G, 1, queries, keys] of spans after conditions of bias `lead` [G, C]."""
    device, first = lead.device, lead.shape[1]
    keys = _round_up(first + max(span.end for span in spans), KEY_STEP)
    starts = torch.tensor([span.start for span in spans], device=device)
    # A query sees up to its own cell.
    last = starts[:, None, None] + torch.arange(queries, device=device)[:, None] + first
    hidden = torch.arange(keys, device=device) > last  # [G, queries, keys]
    bias = torch.zeros(hidden.shape, device=device).masked_fill_(hidden, float("-inf"))
    bias[:, :, :first] = lead[:, None]
    return bias[:, None]


def _attend(q: Tensor, keys: Tensor, values: Tensor, plan: _Plan) -> Tensor:
    """Mix values [H, N, head_dim] for queries [H, N, head_dim]; keys are views of the cache."""
    heads, _, width = q.shape
    padded, mixed = q[:, plan.spread], []
    for group in plan.groups:
        size, _, length, reach = group.bias.shape
        own = padded[:, group.offset : group.offset + size * length]
        out = F.scaled_dot_product_attention(
            own.view(heads, size, length, width).transpose(0, 1),
            keys[group.rows, :, :reach],
            values[group.rows, :, :reach],
            attn_mask=group.bias,
        )
        mixed.append(out.transpose(0, 1).flatten(1, 2))
    return torch.cat(mixed, dim=1)[:, plan.gather]


def _write(cells: Tensor, new: Tensor, plan: _Plan) -> None:
    """Put new keys or values [H, N, head_dim] into cells [rows, H, cells, head_dim]."""
    own = new[:, : plan.count].transpose(0, 1)
    cells[plan.rows, :, plan.cells] = own


def _pad_rows(values: Tensor, length: int) -> Tensor:
    return F.pad(values, (0, 0, 0, length - len(values)))


def _round_up(size: Any, step: int) -> Any:
    return -(-size // step) * step
