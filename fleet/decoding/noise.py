"""Shared noise: the same numbers on a device and in the cloud, from a seed and a position.

Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) turns a
counter and a key into 128 bits. The key is the picture's seed, the counter is (position,
block, 0, stream), and a block holds the bits of four codes. So any row can be computed alone,
in any order, on any machine.
"""

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from fleet.errors import InvalidInputError

Words = NDArray[np.uint32]

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


class Stream(IntEnum):
    """Which use a number has: streams of one seed and position are independent."""

    DRAW = 0  # the draw that device and cloud share
    ACCEPT = 1  # whether the residual rule accepts
    CORRECT = 2  # what the residual rule puts in place of a rejected token
    COIN = 3  # the policy that asks by coin
    CHECK = 4  # whether a draft is spot-checked


def gumbel(
    seed: int, positions: NDArray[np.int64], vocab_size: int, stream: Stream = Stream.DRAW
) -> NDArray[np.float32]:
    """Standard Gumbel noise [n, V] for the positions [n] of the picture with this seed.

    Computed in float64 from 24 bits a code and rounded once, to float32.

    Raises:
        InvalidInputError: The seed is not within 64 bits, or a position not within 32.
    """
    return (-np.log(-np.log(uniform(seed, positions, vocab_size, stream)))).astype(np.float32)


def coin(seed: int, positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """One number between 0 and 1 for each position [n]: the score of the policy "random".

    A function of seed and position, so a position that is drafted again tosses the same coin.

    Raises:
        InvalidInputError: The seed is not within 64 bits, or a position not within 32.
    """
    return uniform(seed, positions, 1, Stream.COIN)[:, 0]


def uniform(
    seed: int, positions: NDArray[np.int64], count: int, stream: Stream
) -> NDArray[np.float64]:
    """Numbers strictly between 0 and 1, [n, count]: odd multiples of 2^-25.

    Raises:
        InvalidInputError: The seed is not within 64 bits, or a position not within 32.
    """
    high = (bits(seed, positions, count, stream) >> np.uint32(8)).astype(np.float64)
    return (high + 0.5) * 2.0**-24


def bits(seed: int, positions: NDArray[np.int64], count: int, stream: Stream) -> Words:
    """Random words [n, count].

    Raises:
        InvalidInputError: The seed is not within 64 bits, or a position not within 32.
    """
    rows = np.asarray(positions, np.int64)
    if not 0 <= seed < 1 << 64:
        raise InvalidInputError(f"seed {seed} must lie between 0 and 2^64 - 1")
    if rows.ndim != 1 or (rows < 0).any() or (rows >= 1 << 32).any():
        raise InvalidInputError("positions must be a list of numbers between 0 and 2^32 - 1")
    blocks = np.arange((count + 3) // 4, dtype=np.uint32)
    counter = (rows.astype(np.uint32)[:, None], blocks[None, :], np.uint32(0), np.uint32(stream))
    words = philox(np.broadcast_arrays(*counter), (seed & 0xFFFFFFFF, seed >> 32))
    return np.stack(words, axis=-1).reshape(len(rows), 4 * len(blocks))[:, :count]


def philox(counter: tuple[Words, ...] | list[Words], key: tuple[int, int]) -> list[Words]:
    """Four words for every counter (four arrays of one shape) under one key of two words."""
    words = [word.astype(np.uint64) for word in counter]
    for index in range(_ROUNDS):
        bumped = zip(key, _KEY_STEPS, strict=True)
        keys = [np.uint64((word + index * step) & 0xFFFFFFFF) for word, step in bumped]
        first, second = words[0] * _MULTIPLIERS[0], words[2] * _MULTIPLIERS[1]
        words = [
            (second >> _HALF) ^ words[1] ^ keys[0],
            second & _LOW,
            (first >> _HALF) ^ words[3] ^ keys[1],
            first & _LOW,
        ]
    return [word.astype(np.uint32) for word in words]
