"""The layers of a token model as torch runs spans: few operators, sums in place.

What a small batch costs is operators and the reading of weights, so residuals are added by the
product that makes them, queries and keys are turned by one complex product where they lie, and
weights lie in memory as a product reads them.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fleet.models.layers import HeadNorm, TransformerBlock


def lay_out(model: nn.Module) -> None:
    """Move the weights of all linear layers, in place: row i for input i, as `x @ W` reads them.

    Their shape and numbers stay [outputs, inputs]; only their strides change.
    """
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            layer.weight.data = layer.weight.data.t().contiguous().t()


@dataclass(frozen=True, slots=True, eq=False)
class SpanLayer:
    """One layer of a block, without gradients; weights are the block's own, [inputs, outputs]."""

    heads: int
    eps: Tensor  # []
    attention_norm: Tensor  # [D]
    wqkv: Tensor  # [D, 3D]
    wo: Tensor  # [D, D]
    ffn_norm: Tensor  # [D]
    w1: Tensor  # [D, F]
    w3: Tensor  # [D, F]
    w2: Tensor  # [F, D]
    head_norms: tuple[nn.Module, nn.Module] | None  # of queries and keys

    @classmethod
    def of(cls, block: TransformerBlock) -> "SpanLayer":
        """Return the layer of a block, whose weights `lay_out` has moved."""
        attention, feed_forward = block.attention, block.feed_forward
        norms = attention.q_normalization, attention.k_normalization
        return cls(
            heads=attention.n_head,
            eps=torch.tensor(block.attention_norm.eps, device=attention.wo.weight.device),
            attention_norm=block.attention_norm.weight.detach(),
            wqkv=_weight(attention.wqkv),
            wo=_weight(attention.wo),
            ffn_norm=block.ffn_norm.weight.detach(),
            w1=_weight(feed_forward.w1),
            w3=_weight(feed_forward.w3),
            w2=_weight(feed_forward.w2),
            head_norms=norms if isinstance(norms[0], HeadNorm) else None,
        )

    def project(self, x: Tensor, turns: Tensor) -> Tensor:
        """Return queries, keys and values [N, 3, H, head_dim], queries and keys turned.

        Args:
            x: [N, D].
            turns: complex64 [N, 1, 1, head_dim / 2], each token's rotations.
        """
        made = torch.mm(_normalised(x, self.attention_norm, self.eps), self.wqkv)
        parts = made.view(len(x), 3, self.heads, -1)
        turned = parts[:, :2]
        if self.head_norms is not None:
            for part, norm in zip(turned.unbind(1), self.head_norms, strict=True):
                part.copy_(norm(part))
        pairs = turned.float().unflatten(-1, (-1, 2))
        torch.view_as_complex(pairs).mul_(turns)
        if parts.dtype != torch.float32:  # else `pairs` are the parts themselves
            turned.copy_(pairs.flatten(-2))
        return parts

    def finish(self, x: Tensor, mixed: Tensor) -> None:
        """Make the layer's output out of its input x [N, D], in place; mixed values [N, D]."""
        x.addmm_(mixed, self.wo)
        y = _normalised(x, self.ffn_norm, self.eps)
        gated = F.silu(torch.mm(y, self.w1), inplace=True).mul_(torch.mm(y, self.w3))
        x.addmm_(gated, self.w2)


def _weight(layer: nn.Linear) -> Tensor:
    return layer.weight.detach().t()


def _normalised(x: Tensor, weight: Tensor, eps: Tensor) -> Tensor:
    """Do what `RMSNorm` does, in five operators; torch's own takes fourteen."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    scale = torch.addcmul(eps, length, length, value=1 / x.shape[-1]).rsqrt_()
    return (x * scale).type_as(x).mul_(weight)
