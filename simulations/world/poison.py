"""What a poisoned device sends instead of what it has learned."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fleet.federation import codec
from fleet.federation.client_app import ARRAYS, METRICS
from fleet.federation.local_grid import Answer
from simulations.scenarios.faults import Poison

_TIMES = 1e3
_CLAIMED = 1e9  # samples
_LARGEST = float(np.finfo(np.float16).max)


def is_update(answer: Answer) -> bool:
    """Whether an answer is what a device has learned."""
    return not answer.has_error() and ARRAYS in answer.content.array_records


def poisoned(answer: Answer, how: Poison) -> Answer | None:
    """The update as it is sent; None where nothing is."""
    if how == "silent":
        return None
    arrays = codec.from_record(answer.content.array_records[ARRAYS])
    match how:
        case "not-numbers":
            arrays = {name: np.full_like(value, np.nan) for name, value in arrays.items()}
        case "huge":
            arrays = {name: _scaled(value, _TIMES) for name, value in arrays.items()}
        case "flipped":
            arrays = {name: _scaled(value, -1.0) for name, value in arrays.items()}
        case "inflated":
            answer.content.metric_records[METRICS]["num-examples"] = _CLAIMED
        case "wrong-keys":
            arrays = {f"other-{name}": value for name, value in arrays.items()}
    answer.content.array_records[ARRAYS] = codec.to_record(arrays)
    return answer


def _scaled(value: NDArray[Any], times: float) -> NDArray[Any]:
    scaled = np.clip(value.astype(np.float64) * times, -_LARGEST, _LARGEST)
    return scaled.astype(value.dtype)
