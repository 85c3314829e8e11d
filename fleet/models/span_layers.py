"""The layers of a token model as the span engine runs them: few operators, sums in place.

What a small batch costs is operators and the reading of weights, so residuals are added by the
product that makes them, queries and keys are turned by one complex product where they lie, and
weights lie in memory as a product reads them: in fp16 where that loses nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

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
class Product:
    """A linear layer without gradients: its weights packed in fp16, or those of the layer itself.

    Sums are fp32 either way. A packed product gives a row the same bits whatever rows are beside
    it; it needs FBGEMM (x86 with AVX2).
    """

    weight: Tensor  # [inputs, outputs]
    bias: Tensor | None
    packed: Any  # FBGEMM's weights, or None

    @classmethod
    def of(cls, layer: nn.Linear) -> "Product":
        """Return the product of a layer whose weights `lay_out` has moved.

        Packed weights are a copy, half as large; only weights that fp16 holds exactly are packed.
        """
        weight = layer.weight.detach()
        bias = None if layer.bias is None else layer.bias.detach()
        packed = torch.ops.quantized.linear_prepack_fp16(weight, bias) if _packs(weight) else None
        return cls(weight.t(), bias, packed)

    def __call__(self, x: Tensor) -> Tensor:
        """Return [N, outputs] of x [N, inputs]."""
        if self.packed is not None:
            made: Tensor = torch.ops.quantized.linear_dynamic_fp16(x, self.packed)
            return made
        made = torch.mm(x, self.weight)
        return made if self.bias is None else made.add_(self.bias)

    def add_to(self, total: Tensor, x: Tensor) -> None:
        """Add the product of x [N, inputs] to `total` [N, outputs], in place; without a bias."""
        if self.packed is not None:
            total.add_(self(x))
        else:
            total.addmm_(x, self.weight)


def all_packed(products: Iterable[Product]) -> bool:
    """Return whether no row of a product depends on how many there are."""
    return all(product.packed is not None for product in products)


def _packs(weight: Tensor) -> bool:
    can = weight.device.type == "cpu" and "fbgemm" in torch.backends.quantized.supported_engines
    return can and weight.dtype == torch.float32 and torch.equal(weight.half().float(), weight)


@dataclass(frozen=True, slots=True, eq=False)
class SpanLayer:
    """One layer of a block."""

    heads: int
    eps: Tensor  # []
    attention_norm: Tensor  # [D]
    wqkv: Product  # [D, 3D]
    wo: Product  # [D, D]
    ffn_norm: Tensor  # [D]
    w1: Product  # [D, F]
    w3: Product  # [D, F]
    w2: Product  # [F, D]
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
            wqkv=Product.of(attention.wqkv),
            wo=Product.of(attention.wo),
            ffn_norm=block.ffn_norm.weight.detach(),
            w1=Product.of(feed_forward.w1),
            w3=Product.of(feed_forward.w3),
            w2=Product.of(feed_forward.w2),
            head_norms=norms if isinstance(norms[0], HeadNorm) else None,
        )

    @property
    def products(self) -> tuple[Product, ...]:
        """All of its products."""
        return self.wqkv, self.wo, self.w1, self.w3, self.w2

    def project(self, x: Tensor, turns: Tensor) -> Tensor:
        """Return queries, keys and values [N, 3, H, head_dim], queries and keys turned.

        Args:
            x: [N, D].
            turns: complex64 [N, 1, 1, head_dim / 2], each token's rotations.
        """
        made = self.wqkv(_normalised(x, self.attention_norm, self.eps))
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
        self.wo.add_to(x, mixed)
        y = _normalised(x, self.ffn_norm, self.eps)
        self.w2.add_to(x, F.silu(self.w1(y), inplace=True).mul_(self.w3(y)))


def _normalised(x: Tensor, weight: Tensor, eps: Tensor) -> Tensor:
    """Do what `RMSNorm` does, in five operators; torch's own takes fourteen."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    scale = torch.addcmul(eps, length, length, value=1 / x.shape[-1]).rsqrt_()
    return (x * scale).type_as(x).mul_(weight)
