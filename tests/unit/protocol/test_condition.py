"""What a device is told of a caption: small, near what was said, and refused when it is not."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import ProtocolError
from fleet.protocol.condition import (
    SentCondition,
    condition_bytes,
    pack_condition,
    unpack_condition,
)

XL = 1280


def condition(width: int, scale: float = 1.0) -> SentCondition:
    rng = np.random.default_rng(width)
    rows = (rng.standard_normal((4, width)) * scale).astype(np.float32)
    return SentCondition(rows[:2], 2.5, rows[2:])


@given(width=st.integers(1, 300), scale=st.sampled_from([1e-3, 1.0, 50.0]))
def test_a_condition_arrives_within_half_a_step(width: int, scale: float) -> None:
    sent = condition(width, scale)

    found = unpack_condition(pack_condition(sent), width)

    largest = max(np.abs(sent.value).max(), np.abs(sent.state).max())
    for one, other in ((sent.value, found.value), (sent.state, found.state)):
        assert np.abs(one - other).max() <= largest / 127 * 0.51 + 127 * largest / 127 * 1e-3
    assert found.log_n == 2.5


def test_one_large_number_costs_only_its_block() -> None:
    sent = condition(XL)
    sent.state[0, 7] = 1000.0

    found = unpack_condition(pack_condition(sent), XL)

    assert np.abs(found.state[0, 64:] - sent.state[0, 64:]).max() < 0.03
    assert abs(found.state[0, 7] - 1000) < 1


def test_a_caption_of_xl_takes_five_kilobytes() -> None:
    assert len(pack_condition(condition(XL))) == condition_bytes(XL) == 5284


@pytest.mark.parametrize("width", [0, 63, 65, 128])
def test_bytes_of_another_model_are_refused(width: int) -> None:
    data = pack_condition(condition(width)) if width else b""

    with pytest.raises(ProtocolError, match="none of a model of width 64"):
        unpack_condition(data, 64)


def test_what_is_no_number_is_refused() -> None:
    data = bytearray(pack_condition(condition(64)))
    data[4:6] = np.array([np.inf], "<f2").tobytes()

    with pytest.raises(ProtocolError, match="no number"):
        unpack_condition(bytes(data), 64)
