"""How much each node counts: by its samples, and the worst ones more, within bounds."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from fleet.training.losses import robust_weights

_OUTLIER = 3.0  # a loss beyond so many medians counts as that


def node_weights(
    examples: Sequence[int], losses: Sequence[float], ball: float, cap: float
) -> NDArray[np.float64]:
    """Weights [n] of n nodes, with a mean of one.

    A node's samples count by their square root: between equal nodes and equal samples. On top of
    it come the weights that make the mean of the nodes' losses worst within `ball` nats of the
    uniform ones (DRO across nodes), each at most `cap` times uniform. A loss that stands far out
    is cut first, so that no node can buy weight by a bad report.
    """
    sizes = np.sqrt(np.asarray(examples, np.float64))
    loss = np.asarray(losses, np.float64)
    loss = np.minimum(loss, _OUTLIER * np.median(loss))
    robust = robust_weights(torch.from_numpy(loss), ball, cap).double().numpy()
    weights: NDArray[np.float64] = sizes * robust
    weights /= weights.mean()
    return weights
