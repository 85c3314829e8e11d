"""How much each node counts: by its samples, and the worst ones more, within bounds."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from fleet.training.losses import robust_weights

_OUTLIER = 3.0  # a loss beyond so many medians counts as that


def node_weights(
    examples: Sequence[int],
    losses: Sequence[tuple[float, float]],  # each with its standard error
    ball: float,
    cap: float,
) -> NDArray[np.float64]:
    """Weights [n] of n nodes, with a mean of one.

    A node's samples count by their square root: between equal nodes and equal samples. On top of
    it come the weights that make the mean of the nodes' losses worst within a ball around the
    uniform ones (DRO across nodes), each at most `cap` times uniform. The ball is `ball` nats times
    the share of the spread that is the nodes' own: where they are alike, whoever is worst is so by
    chance, and weight would only be taken from the others' samples.
    """
    sizes = np.sqrt(np.asarray(examples, np.float64))
    loss, error = np.asarray(losses, np.float64).T
    loss = np.minimum(loss, _OUTLIER * np.median(loss))  # no node buys weight by a bad report
    own = ball * own_share(loss, np.minimum(error, loss))
    robust = robust_weights(torch.from_numpy(loss), own, cap).double().numpy()
    weights: NDArray[np.float64] = sizes * robust
    weights /= weights.mean()
    return weights


def own_share(losses: NDArray[np.float64], errors: NDArray[np.float64]) -> float:
    """The share of the variance of losses [n] that their errors [n] surely do not explain.

    The heterogeneity I² of Higgins and Thompson (2002) with equal weights, and with as much for
    chance as two standard errors of the variance of n losses allow it.
    """
    if len(losses) < 2 or not (spread := float(losses.var(ddof=1))):
        return 0.0
    chance = float(np.square(errors).mean()) * (1 + 2 * (2 / (len(losses) - 1)) ** 0.5)
    return float(max(1 - chance / spread, 0.0))
