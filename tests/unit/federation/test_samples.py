"""The ring on disk: bounded, readable after a crash, and of numbers only."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fleet.errors import InvalidInputError
from fleet.federation.samples import DATA_FILE, HELD_OUT_BLOCK, SampleRing
from tests.unit.federation.toy import toy_samples, toy_shape


def test_samples_come_back_as_they_went_in(tmp_path: Path) -> None:
    samples = toy_samples(1, 40)

    SampleRing.create(tmp_path, toy_shape()).append(samples)
    found = SampleRing.open(tmp_path).read()

    for name in type(samples).__slots__:
        np.testing.assert_array_equal(getattr(found, name), getattr(samples, name))


def test_the_newest_overwrite_the_oldest_and_the_file_stays_bounded(tmp_path: Path) -> None:
    shape = replace(toy_shape(), capacity=30)
    ring = SampleRing.create(tmp_path, shape)

    for _ in range(5):
        ring.append(toy_samples(1, 17))
    found = ring.read()

    assert found.sequence.tolist() == list(range(85 - 30 + 1, 86))
    assert (tmp_path / DATA_FILE).stat().st_size == 30 * shape.dtype.itemsize


def test_numbers_go_on_after_a_restart(tmp_path: Path) -> None:
    SampleRing.create(tmp_path, toy_shape()).append(toy_samples(1, 5))

    again = SampleRing.create(tmp_path, toy_shape())
    again.append(toy_samples(2, 5))

    assert again.read().sequence.tolist() == list(range(1, 11))


@pytest.mark.parametrize("place", [0, 8, 13, 30, -1])
def test_a_torn_record_is_not_read(tmp_path: Path, place: int) -> None:
    ring = SampleRing.create(tmp_path, toy_shape())
    ring.append(toy_samples(1, 3))
    data = bytearray((tmp_path / DATA_FILE).read_bytes())
    size = ring.shape.dtype.itemsize
    data[size + place % size] ^= 0xFF
    (tmp_path / DATA_FILE).write_bytes(bytes(data))

    assert ring.read().sequence.tolist() == [1, 3]


def test_a_file_cut_short_gives_what_is_whole(tmp_path: Path) -> None:
    ring = SampleRing.create(tmp_path, toy_shape())
    ring.append(toy_samples(1, 3))
    data = (tmp_path / DATA_FILE).read_bytes()
    (tmp_path / DATA_FILE).write_bytes(data[:-5])

    assert ring.read().sequence.tolist() == [1, 2]


def test_another_network_begins_an_empty_ring(tmp_path: Path) -> None:
    SampleRing.create(tmp_path, toy_shape()).append(toy_samples(1, 5))

    other = SampleRing.create(tmp_path, toy_shape("another"))

    assert len(other.read()) == 0


def test_every_fifth_block_is_held_out_for_good(tmp_path: Path) -> None:
    ring = SampleRing.create(tmp_path, replace(toy_shape(), capacity=500))
    ring.append(toy_samples(1, 6 * HELD_OUT_BLOCK - 1))
    _, before = ring.read().split()
    ring.append(toy_samples(2, 300))

    training, held_out = ring.read().split()

    last = [*range(5 * HELD_OUT_BLOCK, 6 * HELD_OUT_BLOCK)]
    assert before.sequence.tolist() == [*range(1, HELD_OUT_BLOCK), *last]
    # The ring has overwritten the first block; the other one is held out still.
    assert held_out.sequence.tolist() == [*last, *range(10 * HELD_OUT_BLOCK, 684)]
    assert len(training) + len(held_out) == 500


def test_samples_without_a_law_are_not_trained_on() -> None:
    samples = toy_samples(1, 20)
    bare = replace(samples, log_probs=np.full_like(samples.log_probs, -np.inf))

    training, held_out = bare.split()

    assert (len(training), len(held_out)) == (0, 0)


def test_a_record_has_no_place_for_a_caption_a_picture_or_a_position() -> None:
    names = set(toy_shape().dtype.names or ())

    assert names == {
        "sequence",
        "checksum",
        "cloud",
        "token",
        "hidden",
        "guided",
        "codes",
        "log_probs",
    }


def test_no_ring_is_said_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="there are no samples in"):
        SampleRing.open(tmp_path)
