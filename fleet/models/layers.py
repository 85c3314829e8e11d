"""The layers of a token model: normalisation, attention, SwiGLU, and the rotation of pairs."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

NORM_EPS = 1e-5
ROPE_BASE = 10000.0


class RMSNorm(nn.Module):
    """Root mean square normalisation, in fp32 whatever the input."""

    def __init__(self, dim: int, eps: float = NORM_EPS) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps)
        return (wide * scale).type_as(x) * self.weight


class HiddenHead(nn.Module):
    """A norm and a hidden layer between the last block and the output."""

    def __init__(self, dim: int, hidden: int, eps: float) -> None:
        super().__init__()
        self.norm = RMSNorm(dim, eps)
        self.hidden = nn.Linear(dim, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.hidden(self.norm(x)))


class HeadNorm(nn.Module):
    """Layer normalisation of each head's queries or keys, with weights of its own a head."""

    def __init__(self, n_head: int, head_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n_head, head_dim))
        self.bias = nn.Parameter(torch.zeros(n_head, head_dim))

    def forward(self, x: Tensor) -> Tensor:
        """Return x [B, T, H, head_dim] normalised."""
        return F.layer_norm(x, x.shape[-1:], eps=NORM_EPS) * self.weight + self.bias


class Attention(nn.Module):
    """Multi-head attention in two halves, so that every engine mixes rows in its own way."""

    def __init__(self, dim: int, n_head: int, *, qk_norm: bool = False) -> None:
        super().__init__()
        self.n_head = n_head
        self.wqkv = nn.Linear(dim, 3 * dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        self.q_normalization = HeadNorm(n_head, dim // n_head) if qk_norm else nn.Identity()
        self.k_normalization = HeadNorm(n_head, dim // n_head) if qk_norm else nn.Identity()

    def project(self, x: Tensor, rotation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return rotated queries, rotated keys and values, each [B, H, T, head_dim]."""
        batch, length, dim = x.shape
        q, k, v = self.wqkv(x).split(dim, dim=-1)
        shape = (batch, length, self.n_head, dim // self.n_head)
        q, k = self.q_normalization(q.view(shape)), self.k_normalization(k.view(shape))
        q, k = rotate(q, rotation), rotate(k, rotation)
        return q.transpose(1, 2), k.transpose(1, 2), v.view(shape).transpose(1, 2)

    def merge(self, mixed: Tensor) -> Tensor:
        """Return the output [B, T, D] of mixed values [B, H, T, head_dim]."""
        merged: Tensor = self.wo(mixed.transpose(1, 2).flatten(2))
        return merged


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, dim: int, ffn: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(dim, ffn, bias=False)
        self.w3 = nn.Linear(dim, ffn, bias=False)
        self.w2 = nn.Linear(ffn, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.w2(F.silu(self.w1(x)) * self.w3(x))
        return result


class TransformerBlock(nn.Module):
    """One layer: `project` before the attention, `finish` after it."""

    def __init__(
        self, attention: Attention, feed_forward: FeedForward, *, eps: float, dropout: float
    ) -> None:
        super().__init__()
        self.attention = attention
        self.feed_forward = feed_forward
        dim = attention.wo.in_features
        self.attention_norm, self.ffn_norm = RMSNorm(dim, eps), RMSNorm(dim, eps)
        self.dropout = nn.Dropout(dropout)

    def project(self, x: Tensor, rotation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values [B, H, T, head_dim] of the layer's input [B, T, D]."""
        return self.attention.project(self.attention_norm(x), rotation)

    def finish(self, x: Tensor, mixed: Tensor) -> Tensor:
        """Return the layer's output from its input and the mixed values [B, H, T, head_dim]."""
        x = x + self.dropout(self.attention.merge(mixed))
        result: Tensor = x + self.dropout(self.feed_forward(self.ffn_norm(x)))
        return result


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Turn interleaved pairs of x [B, T, H, head_dim] by a table [(B,) T, head_dim / 2, 2]."""
    pairs = x.float().unflatten(-1, (-1, 2))
    cos, sin = rotation[..., None, :, 0], rotation[..., None, :, 1]
    first, second = pairs[..., 0], pairs[..., 1]
    turned = torch.stack([first * cos - second * sin, second * cos + first * sin], dim=-1)
    return turned.flatten(-2).type_as(x)


def grid_rotation(caption_length: int, grid: int, head_dim: int) -> Tensor:
    """Return cosines and sines [C + grid², head_dim / 2, 2]; zeros, not identity, for captions."""
    half = head_dim // 2
    frequencies = ROPE_BASE ** (-torch.arange(0, half, 2).float() / half)
    angles = torch.arange(grid).float()[:, None] * frequencies  # [grid, head_dim / 4]
    rows = angles[:, None].expand(grid, grid, -1)
    columns = angles[None, :].expand(grid, grid, -1)
    cells = torch.cat([rows, columns], dim=-1).flatten(0, 1)  # [grid², head_dim / 2]
    table = torch.stack([cells.cos(), cells.sin()], dim=-1)
    return torch.cat([torch.zeros(caption_length, half, 2), table])


def line_rotation(length: int, head_dim: int, base: float) -> Tensor:
    """Return cosines and sines [length, head_dim / 2, 2] of positions in a row, as of text."""
    frequencies = base ** (-torch.arange(0, head_dim, 2).float() / head_dim)
    angles = torch.arange(length).float()[:, None] * frequencies
    return torch.stack([angles.cos(), angles.sin()], dim=-1)
