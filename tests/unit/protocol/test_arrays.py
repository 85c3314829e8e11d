"""Arrays survive as bytes, and lengths that do not fit are refused."""

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.decoding.residual import QuantisedLaw, law_to_send
from fleet.decoding.top_laws import NO_LAWS, TopLaws, top_laws
from fleet.errors import ProtocolError
from fleet.protocol.arrays import (
    FEATURE_BYTES,
    pack_confidences,
    pack_features,
    pack_laws,
    pack_mask,
    pack_scores,
    pack_tokens,
    pack_top_laws,
    score_limit,
    unpack_confidences,
    unpack_features,
    unpack_laws,
    unpack_mask,
    unpack_scores,
    unpack_tokens,
    unpack_top_laws,
)


@given(st.lists(st.integers(0, 0xFFFF), max_size=300))
def test_tokens_survive(tokens: list[int]) -> None:
    packed = pack_tokens(np.array(tokens, np.int64))

    assert len(packed) == 2 * len(tokens)
    assert unpack_tokens(packed).tolist() == tokens


@given(st.lists(st.booleans(), max_size=300))
def test_bitmaps_survive(mask: list[bool]) -> None:
    packed = pack_mask(np.array(mask, bool))

    assert len(packed) == (len(mask) + 7) // 8
    assert unpack_mask(packed, len(mask)).tolist() == mask


@given(st.integers(0, 20), st.randoms(use_true_random=False))
def test_features_survive(count: int, random: Random) -> None:
    features = np.array(
        [random.randint(-128, 127) for _ in range(count * FEATURE_BYTES)], np.int8
    ).reshape(count, FEATURE_BYTES)

    assert np.array_equal(unpack_features(pack_features(features), count), features)


@given(st.lists(st.floats(1e-12, 1e2), min_size=1, max_size=50))
def test_scores_come_back_within_seven_percent(scores: list[float]) -> None:
    back = unpack_scores(pack_scores(np.array(scores)))

    assert np.all(np.abs(back / np.array(scores) - 1) <= 0.07)


@given(st.lists(st.floats(0, 1), max_size=50))
def test_confidences_come_back_within_a_step(confidences: list[float]) -> None:
    back = unpack_confidences(pack_confidences(np.array(confidences)))

    assert np.all(np.abs(back - np.array(confidences)) <= 0.5 / 255 + 1e-12)


def test_scores_beyond_the_scale_take_its_ends() -> None:
    packed = pack_scores(np.array([0.0, -1.0, 1e-30, 1e3, np.inf, np.nan, -np.inf]))

    assert list(packed) == [0, 0, 0, 255, 255, 255, 255]


@given(st.integers(0, 253))
def test_a_limit_parts_the_scores_of_a_code_from_those_of_the_next(code: int) -> None:
    limit = score_limit(code)

    below, above = pack_scores(np.array([limit * (1 - 1e-9), limit * (1 + 1e-9)]))

    assert (below, above) == (code, code + 1)


def test_the_order_of_scores_survives() -> None:
    scores = np.geomspace(1e-12, 1e2, 1000)

    assert np.all(np.diff(unpack_scores(pack_scores(scores))) >= 0)


def some_law(seed: int, size: int) -> QuantisedLaw:
    return law_to_send(np.random.default_rng(seed).normal(size=size) * 3)


@given(st.lists(st.integers(0, 2**32 - 1), max_size=5), st.sampled_from([2, 50, 1024, 65_536]))
def test_draft_laws_come_back_as_they_went(seeds: list[int], size: int) -> None:
    laws = [some_law(seed, size) for seed in seeds]

    back = unpack_laws(pack_laws(laws), size)

    assert len(back) == len(laws)
    for law, same in zip(laws, back, strict=True):
        np.testing.assert_array_equal(law.codes, same.codes)
        np.testing.assert_array_equal(law.counts, same.counts)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\x01", "end within"),
        (b"\x00\x00", "end within"),
        (b"\x01\x00\x05\x00", "end within"),
        (b"\x01\x00\x05\x00\xfe", "sum to 255"),
        (b"\x01\x00\x32\x00\xff", "below 50"),
        (b"\x02\x00\x05\x00\x05\x00\x7f\x7f", "rise"),
    ],
)
def test_bytes_that_are_no_laws_are_refused(data: bytes, said: str) -> None:
    with pytest.raises(ProtocolError, match=said):
        unpack_laws(data, 50)


def some_laws() -> TopLaws:
    logits = np.random.default_rng(0).normal(size=(3, 50), scale=3).astype(np.float32)
    return top_laws(np.array([4, 5, 9]), np.array([49, 0, 7]), logits, 6)


def test_the_cloud_s_laws_come_back_as_they_were() -> None:
    laws = some_laws()

    data = pack_top_laws(laws)
    found = unpack_top_laws(data, 50)

    assert len(data) == 2 + 3 * (2 + 2 + 6 * 4)
    for name in TopLaws.__slots__:
        np.testing.assert_array_equal(getattr(found, name), getattr(laws, name))
    assert (pack_top_laws(NO_LAWS), len(unpack_top_laws(b"", 50))) == (b"", 0)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\x01", "not the cloud's laws"),
        (b"\x01\x00", "not the cloud's laws"),
        (pack_top_laws(some_laws())[:-1], "not the cloud's laws"),
        (b"\x01\x00" + bytes(2) + b"\x32\x00" + bytes(4), "not below 50"),
        (b"\x01\x00" + bytes(4) + b"\x32\x00" + bytes(2), "not below 50"),
        (b"\x01\x00" + bytes(6) + b"\x00\x7e", "no number"),
        (b"\x01\x00" + bytes(6) + b"\x00\x3c", "above 0"),
    ],
)
def test_bytes_that_are_not_the_cloud_s_laws_are_refused(data: bytes, said: str) -> None:
    with pytest.raises(ProtocolError, match=said):
        unpack_top_laws(data, 50)


def test_bit_order_is_the_lowest_first() -> None:
    assert pack_mask(np.array([True, False, False, True, *[False] * 5, True])) == b"\x09\x02"


def test_lengths_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ProtocolError, match="3 bytes is not a whole number of u16"):
        unpack_tokens(b"abc")
    with pytest.raises(ProtocolError, match="bitmap of 1 bytes does not hold 9 entries"):
        unpack_mask(b"\0", 9)
    with pytest.raises(ProtocolError, match="bitmap of 3 bytes does not hold 9 entries"):
        unpack_mask(b"\0\0\0", 9)
    with pytest.raises(ProtocolError, match="47 feature bytes for 1 local tokens"):
        unpack_features(bytes(47), 1)
