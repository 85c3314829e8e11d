"""What a device's drafter needs of a caption or class, as bytes: int8 with a scale a block.

The cloud computes it once from the caption; a device that was told keeps it. Rows are with and
without caption, as guidance needs them.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleet.errors import ProtocolError

Floats = NDArray[np.float32]

BLOCK = 64
_ROWS = 4
_LEAST = 1e-7  # the smallest step: below it a block is zero


@dataclass(frozen=True, slots=True, eq=False)
class SentCondition:
    """A condition as it travels.

    Attributes:
        value: [2, D], the virtual value of the cloud's last layer.
        log_n: The virtual position's attention bias.
        state: [2, D], the cloud's state that predicts the first token.
    """

    value: Floats
    log_n: float
    state: Floats


def pack_condition(condition: SentCondition) -> bytes:
    """Return f4 log_n, then of the rows of value and state all steps as f2 and all codes as i8.

    A step is a 127th of the largest number of 64; D numbers of a row take D + 2·⌈D/64⌉ bytes.
    """
    rows = np.concatenate([condition.value, condition.state]).astype(np.float32)
    width = rows.shape[1]
    blocks = np.pad(rows, ((0, 0), (0, -width % BLOCK))).reshape(_ROWS, -1, BLOCK)
    steps = np.maximum(np.abs(blocks).max(axis=2) / 127, _LEAST).astype("<f2")
    codes = np.rint(blocks / steps.astype(np.float32)[..., None]).clip(-127, 127)
    whole = codes.astype(np.int8).reshape(_ROWS, -1)[:, :width]
    log_n = np.array([condition.log_n], "<f4")
    return b"".join(part.tobytes() for part in (log_n, steps, whole))


def unpack_condition(data: bytes, width: int) -> SentCondition:
    """Return the condition of a model of that width.

    Raises:
        ProtocolError: The bytes are another model's, or hold what is no number.
    """
    blocks = -(-width // BLOCK)
    if len(data) != condition_bytes(width):
        raise ProtocolError(f"a condition of {len(data)} bytes is none of a model of width {width}")
    log_n = float(np.frombuffer(data, "<f4", 1)[0])
    steps = np.frombuffer(data, "<f2", _ROWS * blocks, 4).reshape(_ROWS, blocks)
    codes = np.frombuffer(data, np.int8, offset=4 + 2 * _ROWS * blocks).reshape(_ROWS, width)
    if not np.isfinite(steps).all() or not np.isfinite(log_n):
        raise ProtocolError("a condition holds what is no number")
    rows = codes * np.repeat(steps.astype(np.float32), BLOCK, axis=1)[:, :width]
    return SentCondition(rows[:2], log_n, rows[2:])


def condition_bytes(width: int) -> int:
    """Return how many bytes a condition of that width takes."""
    return 4 + _ROWS * (width + 2 * -(-width // BLOCK))
