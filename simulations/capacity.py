"""How many devices a hub serves, from measured costs; pure.

A worker runs one forward at a time over all requests that wait then: a queue with service in
batches, of length fixed + requests x each. Its waits follow from a short simulation of that queue
alone, with Poisson arrivals; a world (`simulations/world`) says whether that is true, where it can
go, and this goes on to a million devices.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_REQUESTS = 20_000  # of one simulated queue
_WARM_UP = 2_000
_STEPS = 24  # of a bisection


@dataclass(frozen=True, slots=True)
class Demand:
    """What one picture asks of the hub, on average."""

    requests: float
    tokens: float  # that forwards run for it


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of a worker's forward."""

    forward_s: float
    token_s: float
    request_s: float

    def each_s(self, demand: Demand) -> float:
        """What one request adds to a forward."""
        return self.request_s + self.token_s * demand.tokens / demand.requests


@dataclass(frozen=True, slots=True)
class Load:
    """A worker at work on so many devices; seconds from a request's arrival to its answer."""

    devices: int
    busy: float  # share of the time that it could not do without, 1: no more devices
    batch: float  # requests in a forward
    p50_s: float
    p95_s: float
    mean_s: float


def load(
    devices: int, per_minute: float, demand: Demand, costs: Costs, most: int, seed: int = 0
) -> Load:
    """A worker with so many devices; a forward takes at most `most` requests.

    Raises:
        ValueError: They ask for more than it can do.
    """
    rate = devices * per_minute / 60 * demand.requests
    busy = rate * (costs.each_s(demand) + costs.forward_s / most)
    if busy >= 1:
        raise ValueError(f"{devices} devices ask for {busy:.2f} of a worker")
    waits, forwards = queue(rate, costs.forward_s, costs.each_s(demand), most, seed)
    p50_s, p95_s = np.quantile(waits, [0.5, 0.95])
    return Load(
        devices, busy, len(waits) / forwards, float(p50_s), float(p95_s), float(waits.mean())
    )


def queue(
    rate: float, forward_s: float, each_s: float, most: int, seed: int
) -> tuple[NDArray[np.float64], float]:
    """Seconds from arrival to answer of many requests, and the forwards that served them."""
    rng = np.random.default_rng(seed)
    arrivals = rng.exponential(1 / rate, _REQUESTS).cumsum().tolist()
    answered = np.empty(_REQUESTS)
    first, now, forwards = 0, 0.0, 0
    while first < _REQUESTS:
        now = max(now, arrivals[first])
        last = min(bisect_right(arrivals, now), first + most)
        now += forward_s + (last - first) * each_s
        answered[first:last] = now
        first, forwards = last, forwards + 1
    waits = (answered - arrivals)[_WARM_UP:]
    return waits, forwards * len(waits) / _REQUESTS


def most_devices(
    p95_s: float, per_minute: float, demand: Demand, costs: Costs, most: int
) -> Load | None:
    """The most devices that one worker answers within `p95_s`, 19 of 20 times; None: not one."""
    each = per_minute / 60 * demand.requests * (costs.each_s(demand) + costs.forward_s / most)
    low, high = 0, int(1 / each)
    best: Load | None = None
    for _ in range(_STEPS):
        middle = (low + high + 1) // 2
        if middle == low:
            break
        found = _load_or_none(middle, per_minute, demand, costs, most)
        if found is not None and found.p95_s <= p95_s:
            low, best = middle, found
        else:
            high = middle - 1
    return best


def _load_or_none(
    devices: int, per_minute: float, demand: Demand, costs: Costs, most: int
) -> Load | None:
    try:
        return load(devices, per_minute, demand, costs, most)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Scale:
    """A fleet, and the workers that it takes."""

    devices: int
    workers: int
    pictures_per_s: float
    requests_per_s: float
    megabits_per_s: float  # both ways, payloads and topics


def scales(
    fleets: Sequence[int], per_minute: float, best: Load, demand: Demand, picture_bytes: float
) -> Iterator[Scale]:
    """What fleets of several sizes need, each worker as far as `best`."""
    for devices in fleets:
        pictures = devices * per_minute / 60
        yield Scale(
            devices,
            -(-devices // best.devices),
            pictures,
            pictures * demand.requests,
            pictures * picture_bytes * 8 / 1e6,
        )
