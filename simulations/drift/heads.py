"""A family's interval head as plain weights, and the family with another one."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fleet.models.checkpoint import DeviceParts
from fleet.models.head_weights import HeadWeights
from fleet.models.interval_head import IntervalHead
from simulations.evaluation.family import Family


def head_of(family: Family) -> HeadWeights:
    """The device's head."""
    head = family.parts.head
    center = _floats(head.center.weight)
    down = _floats(head.radius_down.weight) if head.rank else np.zeros((0, center.shape[1]), "f4")
    return HeadWeights(center, down, _floats(head.radius_up.weight), _floats(head.radius_up.bias))


@torch.no_grad()
def with_head(family: Family, weights: HeadWeights) -> Family:
    """The family with another head on the same device network."""
    transformer = deepcopy(family.device)
    head = IntervalHead(transformer.output, family.parts.head.rank)
    head.center.weight.copy_(torch.from_numpy(weights.center))
    head.radius_up.weight.copy_(torch.from_numpy(weights.radius_up))
    head.radius_up.bias.copy_(torch.from_numpy(weights.radius_bias))
    if head.rank:
        head.radius_down.weight.copy_(torch.from_numpy(weights.radius_down))
    parts = DeviceParts(transformer, head.eval())
    return replace(family, device=transformer, parts=parts)


def _floats(values: Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    found: np.ndarray[tuple[int, ...], np.dtype[np.float32]] = values.detach().numpy().copy()
    return found
