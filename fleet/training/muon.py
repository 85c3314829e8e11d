"""Muon in fp32: momentum whose matrices are made orthogonal by a Newton-Schulz iteration.

torch.optim.Muon iterates in bfloat16, which CPUs without native bfloat16 run many times slower.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

# The quintic of Keller Jordan's Muon: its fixed band lies around 1, not exactly at 1.
_QUINTIC = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5


def orthogonalise(matrices: Tensor) -> Tensor:
    """Return matrices [..., M, N] with their singular values moved near 1."""
    a, b, c = _QUINTIC
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(_ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    result: Tensor = x.mT if tall else x
    return result


class Muon(torch.optim.Optimizer):
    """Optimizer of hidden matrices; a fused `wqkv` is orthogonalised as its three blocks."""

    def __init__(
        self,
        matrices: Iterable[Tensor],
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(list(matrices), defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Move every matrix that has a gradient; there is no closure to evaluate."""
        assert closure is None
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._move(weight, weight.grad, group)

    def _move(self, weight: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        lr, momentum = group["lr"], group["momentum"]
        state = self.state[weight]
        if "velocity" not in state:
            state["velocity"] = torch.zeros_like(weight)
        velocity = state["velocity"].lerp_(gradient, 1 - momentum)
        update = gradient.lerp(velocity, momentum)  # Nesterov
        rows, columns = weight.shape
        blocks = 3 if rows == 3 * columns else 1
        direction = orthogonalise(update.view(blocks, rows // blocks, columns)).view_as(weight)
        scale = max(1.0, rows / blocks / columns) ** 0.5
        weight.mul_(1 - lr * group["weight_decay"]).add_(direction, alpha=-lr * scale)
