"""Who attends to whom: a condition in front of an image, and a span after a cache's rows."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def prefix_mask(valid: Tensor, length: int) -> Tensor:
    """Return what may be attended to [B, 1, length, length]: causal, no padding, always itself."""
    causal = torch.ones(length, length, dtype=torch.bool, device=valid.device).tril()
    columns = F.pad(valid, (0, length - valid.shape[1]), value=True)[:, None, :]
    itself = torch.eye(length, dtype=torch.bool, device=valid.device)
    return (causal & columns | itself)[:, None]


def prefix_bias(valid: Tensor, length: int, weight: int) -> Tensor:
    """Return the attention bias [B, 1, length, length] where a caption's position counts `weight`.

    Among caption positions alone the weight changes nothing: all have the same.
    """
    bias = torch.zeros(length, device=valid.device)
    bias[: valid.shape[1]] = math.log(weight)
    return bias.masked_fill(~prefix_mask(valid, length), float("-inf"))


def span_bias(lead: Tensor, past: int, length: int) -> Tensor:
    """Return the attention bias [B, 1, length, C + past + length] of a span after `past` rows.

    `lead` [B, C] is that of the condition's cells.
    """
    causal = torch.full((length, length), float("-inf"), device=lead.device).triu(1)
    seen = F.pad(causal, (past, 0))[None, None].expand(len(lead), 1, -1, -1)
    first = lead[:, None, None].expand(-1, 1, length, -1)
    return torch.cat([first, seen.type_as(first)], dim=-1)
