"""What a round trains: a change of the interval head, linear in fixed features of the device.

The center's logits are W·h + C·A·h and the radius's are (U + E)·D·h + b + e, where W, U, D and b
are the device's head, A [r, D] projects to its r main directions (or is left out: rank 0), and
C, E and e are trained from zero. Because A and D stay as they are, the mean of several nodes'
changes is the change of the mean, which for two trained factors it would not be; and because a
change starts at zero, half precision carries it well.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from fleet.errors import InvalidInputError
from fleet.interval import MAX_RADIUS
from fleet.models.head_weights import HeadWeights

NAMES = ("center", "radius", "radius_bias")

Arrays = Mapping[str, NDArray[Any]]


def main_directions(head: HeadWeights, rank: int) -> NDArray[np.float32]:
    """A [r, D]: the directions of hidden states in which the center's logits differ most.

    With rank 0 there are none, and the change of the center has a full matrix.
    """
    if rank == 0:
        return np.zeros((0, head.dim), np.float32)
    _, _, right = np.linalg.svd(head.center.astype(np.float64), full_matrices=False)
    return np.ascontiguousarray(right[:rank], np.float32)


def no_change(head: HeadWeights, directions: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
    """The change that changes nothing."""
    return {
        "center": np.zeros((head.vocab_size, len(directions) or head.dim), np.float32),
        "radius": np.zeros_like(head.radius_up),
        "radius_bias": np.zeros_like(head.radius_bias),
    }


def changed(
    head: HeadWeights, directions: NDArray[np.float32], change: Arrays, stretch: float = 1.0
) -> HeadWeights:
    """The head with a change put into its weights, and its radii stretched (`calibrate`)."""
    center = change["center"].astype(np.float32)
    return HeadWeights(
        head.center + (center @ directions if len(directions) else center),
        head.radius_down,
        stretch * (head.radius_up + change["radius"].astype(np.float32)),
        stretch * (head.radius_bias + change["radius_bias"].astype(np.float32)),
        head.center_bias,
    )


class HeadChange(nn.Module):
    """A head and a change of it that can be trained."""

    def __init__(self, head: HeadWeights, directions: NDArray[np.float32], change: Arrays) -> None:
        """Takes a change as it came.

        Raises:
            InvalidInputError: It is not one of this head.
        """
        super().__init__()
        wanted = {name: value.shape for name, value in no_change(head, directions).items()}
        found = {name: value.shape for name, value in change.items()}
        if found != wanted:
            raise InvalidInputError(f"a change of shapes {found} does not fit a head of {wanted}")
        self.base = {
            "center": torch.tensor(head.center),
            "down": torch.tensor(head.radius_down),
            "radius": torch.tensor(head.radius_up),
            "bias": torch.tensor(head.radius_bias),
            "center_bias": torch.tensor(head.center_bias),
        }
        self.directions = torch.from_numpy(directions)
        self.center = _parameter(change["center"])
        self.radius = _parameter(change["radius"])
        self.radius_bias = _parameter(change["radius_bias"])

    def forward(self, guided: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return center logits and radii [n, V] of hidden states [n, D], guided and plain."""
        base = self.base
        features = guided @ self.directions.T if len(self.directions) else guided
        center = guided @ base["center"].T + features @ self.center.T
        if len(base["center_bias"]):
            center = center + base["center_bias"]
        narrow = hidden @ base["down"].T if len(base["down"]) else hidden
        before = narrow @ (base["radius"] + self.radius).T + base["bias"] + self.radius_bias
        return center, F.softplus(before).clamp(max=MAX_RADIUS)

    def arrays(self, dtype: type[np.floating[Any]] = np.float16) -> dict[str, NDArray[Any]]:
        """Return the change as it is now."""
        return {name: getattr(self, name).detach().numpy().astype(dtype) for name in NAMES}


def _parameter(values: NDArray[Any]) -> nn.Parameter:
    return nn.Parameter(torch.from_numpy(values.astype(np.float32)))
