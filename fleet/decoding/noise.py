"""Shared noise: the same numbers on a device and in the cloud, from a seed and a position.

Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) turns a
counter and a key into 128 bits. The key is the picture's seed, the counter is (position,
block, 0, stream), and a block holds the bits of four codes. So any row can be computed alone,
in any order, on any machine.
"""

import sys
from collections.abc import Sequence
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from fleet.errors import InvalidInputError

Words = NDArray[np.uint32]

_ROUNDS = 10
_MULTIPLIERS = np.array([0xD2511F53, 0xCD9E8D57], np.uint64)
_KEY_STEPS = np.array([0x9E3779B9, 0xBB67AE85], np.uint64)
_KEY_BUMPS = np.arange(_ROUNDS, dtype=np.uint64)[:, None] * _KEY_STEPS  # [rounds, 2]
_LOW = np.uint64(0xFFFFFFFF)
LEAST, GREATEST = (float(-np.log(-np.log(u))) for u in (2.0**-25, 1 - 2.0**-25))  # Gumbel noise
_LOW_HALF, _HIGH_HALF = (0, 1) if sys.byteorder == "little" else (1, 0)  # of a 64-bit number


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
    return _gumbel(uniform(seed, positions, vocab_size, stream))


def gumbel_at(
    seeds: NDArray[np.uint64], positions: NDArray[np.int64], codes: NDArray[np.int64]
) -> NDArray[np.float32]:
    """The numbers [n] that `gumbel` has for single codes [n], each of a picture of its own."""
    key = (seeds & _LOW).astype(np.uint32), (seeds >> np.uint64(32)).astype(np.uint32)
    draw = np.array(Stream.DRAW)
    words = philox((positions, codes >> 2, np.zeros((), np.int64), draw), key)
    return _gumbel(_between(np.choose(codes & 3, words)))


def _gumbel(numbers: NDArray[np.float64]) -> NDArray[np.float32]:
    # In place: taking fresh memory costs as much as half of the arithmetic.
    for _ in range(2):
        np.negative(np.log(numbers, out=numbers), out=numbers)
    return numbers.astype(np.float32)


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
    return _between(bits(seed, positions, count, stream))


def _between(words: Words) -> NDArray[np.float64]:
    numbers = (words >> np.uint32(8)).astype(np.float64)
    numbers += 0.5
    numbers *= 2.0**-24
    return numbers


def bits(seed: int, positions: NDArray[np.int64], count: int, stream: Stream) -> Words:
    """Random words [n, count].

    Raises:
        InvalidInputError: The seed is not within 64 bits, or a position not within 32.
    """
    rows = np.asarray(positions, np.int64)
    if not 0 <= seed < 1 << 64:
        raise InvalidInputError(f"seed {seed} must lie between 0 and 2^64 - 1")
    if rows.ndim != 1 or rows.view(np.uint64).max(initial=0) > _LOW:
        raise InvalidInputError("positions must be a list of numbers between 0 and 2^32 - 1")
    blocks = np.arange((count + 3) // 4)
    words = np.empty((len(rows), len(blocks), 4), np.uint32)
    counter = (rows[:, None], blocks, np.zeros((), np.int64), np.array(stream))
    for lane, word in enumerate(philox(counter, (seed & 0xFFFFFFFF, seed >> 32))):
        words[:, :, lane] = word
    return words.reshape(len(rows), 4 * len(blocks))[:, :count]


def philox(
    counter: Sequence[NDArray[np.integer]], key: tuple[int, int] | tuple[Words, Words]
) -> list[Words]:
    """Four words for every counter under one key of two words, or each under its own.

    The counter's four arrays of 32-bit numbers are broadcast to one shape, that of each word; the
    words of the keys are numbers, or arrays of that shape.
    """
    shape = np.broadcast_shapes(*(word.shape for word in counter))
    # The words 0 and 2 are multiplied in a round, 1 and 3 are not: both of a pair go at once,
    # since few rows are asked for at a time, and a call of numpy costs more than its numbers.
    even, odd = np.empty((2, *shape), np.uint32), np.empty((2, *shape), np.uint32)
    even[0], odd[0], even[1], odd[1] = counter
    pair = (2,) + (1,) * len(shape)
    multipliers = _MULTIPLIERS.reshape(pair)
    start = np.array(key, np.uint64)
    keys = (start + _KEY_BUMPS.reshape(_ROUNDS, 2, *(1,) * (start.ndim - 1))) & _LOW
    for words in keys.astype(np.uint32).reshape(_ROUNDS, 2, *(start.shape[1:] or pair[1:])):
        halves = (even * multipliers)[..., None].view(np.uint32)  # the other pair's next words
        odd ^= words
        even, odd = halves[::-1, ..., _HIGH_HALF] ^ odd, halves[::-1, ..., _LOW_HALF]
    return [even[0], odd[0], even[1], odd[1]]
