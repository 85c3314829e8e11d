"""Laws of the shared noise."""

import hashlib
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.decoding.noise import Stream, bits, gumbel, philox, uniform
from fleet.errors import InvalidInputError
from tests.unit.decoding.laws import chi_square_z

# Published with Random123 1.14 (kat_vectors): counter, key, result of philox4x32-10.
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
]  # fmt: skip


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_philox_gives_the_published_words(counter: str, key: str, expected: str) -> None:
    words = [np.array([int(word, 16)], np.uint32) for word in counter.split()]
    low, high = (int(word, 16) for word in key.split())

    result = philox(words, (low, high))

    assert expected == " ".join(f"{int(word[0]):08x}" for word in result)


def test_a_block_of_noise_never_changes() -> None:
    words = bits(7, np.arange(256), 1024, Stream.DRAW)
    noise = gumbel(7, np.arange(256), 1024)

    assert hashlib.sha256(words.astype("<u4").tobytes()).hexdigest() == (
        "047b6db137f54bb5ff46e60283332da884d2e9019af6a7205eb1bce6696ee082"
    )
    assert hashlib.sha256(noise.astype("<f4").tobytes()).hexdigest() == (
        "8acf605f72b655beb0681858ccdbd2595ff67766f06c0b02f947423fb6a8455a"
    )


def test_a_code_s_noise_comes_from_its_block_and_lane() -> None:
    seed = 0x299F31D0_A4093822
    counter = [np.array([word], np.uint32) for word in (5, 2, 0, Stream.CORRECT)]

    words = bits(seed, np.array([5]), 12, Stream.CORRECT)

    expected = philox(counter, (0xA4093822, 0x299F31D0))
    assert [int(word[0]) for word in expected] == words[0, 8:].tolist()


@given(
    st.integers(0, 2**64 - 1), st.lists(st.integers(0, 2**32 - 1), max_size=5), st.integers(1, 70)
)
def test_a_row_does_not_depend_on_its_company(seed: int, rows: list[int], count: int) -> None:
    positions = np.array(rows, np.int64)

    together = gumbel(seed, positions, 70)

    assert together.shape == (len(rows), 70)
    assert together.dtype == np.float32
    for index, position in enumerate(rows):
        alone = gumbel(seed, np.array([position]), count)
        np.testing.assert_array_equal(alone[0], together[index, :count])


def test_noise_has_the_mean_and_the_variance_of_gumbel_s_law() -> None:
    noise = gumbel(1, np.arange(1000), 1000).astype(np.float64)

    assert abs(noise.mean() - np.euler_gamma) < 5 * np.sqrt(np.pi**2 / 6 / noise.size)
    assert abs(noise.var() - np.pi**2 / 6) < 0.02
    assert np.isfinite(noise).all()


def test_uniform_numbers_fill_a_hundred_cells_evenly_and_never_touch_the_ends() -> None:
    numbers = uniform(2, np.arange(500), 1000, Stream.ACCEPT)

    counts = np.bincount((numbers * 100).astype(int).ravel(), minlength=100)
    assert abs(chi_square_z(counts.astype(float), np.full(100, 5000.0))) < 4
    assert numbers.min() > 0
    assert numbers.max() < 1


def test_the_extreme_words_give_finite_noise() -> None:
    ends = (np.array([0, 0xFFFFFFFF], np.uint64) >> np.uint64(8)).astype(np.float64)
    numbers = (ends + 0.5) * 2.0**-24

    assert np.isfinite(-np.log(-np.log(numbers))).all()


def test_seeds_positions_and_streams_are_uncorrelated() -> None:
    base = gumbel(3, np.arange(64), 1024)
    others = [
        gumbel(4, np.arange(64), 1024),
        gumbel(3 + (1 << 32), np.arange(64), 1024),
        gumbel(3, np.arange(64, 128), 1024),
        gumbel(3, np.arange(64), 1024, Stream.CORRECT),
        np.roll(base, 1, axis=0),
        np.roll(base, 1, axis=1),
    ]

    for other in others:
        correlation = np.corrcoef(base.ravel(), other.ravel())[0, 1]
        assert abs(correlation) < 5 / np.sqrt(base.size)
        assert (base == other).mean() < 0.001


def test_the_noise_of_a_whole_picture_takes_less_than_sixty_milliseconds_of_a_core() -> None:
    times = []
    for seed in range(7):
        start = time.process_time()
        gumbel(seed, np.arange(256), 1024)
        times.append(time.process_time() - start)

    assert min(times) < 0.06


@pytest.mark.parametrize(
    ("seed", "positions"),
    [(-1, [0]), (1 << 64, [0]), (0, [-1]), (0, [1 << 32]), (0, [[0]])],
)
def test_what_does_not_fit_the_counter_is_refused(seed: int, positions: list[int]) -> None:
    with pytest.raises(InvalidInputError):
        gumbel(seed, np.array(positions), 8)
