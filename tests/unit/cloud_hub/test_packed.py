"""Arrays of a picture come back from the database as they went in, whichever form they took."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.dialects import postgresql, sqlite

from cloud_hub.store.tables.base import SPARSE, Deflated, Hex, Sparse, deflated

DIALECT = sqlite.dialect()
SERVER = postgresql.dialect()  # type: ignore[no-untyped-call]
HEX = "0123456789abcdef"


@given(st.binary(max_size=600), st.floats(0, 1))
def test_an_array_comes_back_whatever_share_of_it_is_zero(data: bytes, share: float) -> None:
    array = np.frombuffer(data, np.uint8).copy()
    array[np.random.default_rng(len(data)).random(len(array)) < share] = 0
    for kind in (Sparse(), Deflated()):
        packed = kind.process_bind_param(array.tobytes(), DIALECT)

        assert kind.process_result_value(packed, DIALECT) == array.tobytes()


@pytest.mark.parametrize("local", [0.6, 0.75, 0.9])
def test_confidences_of_a_picture_take_fewer_bytes_than_deflated(local: float) -> None:
    rng = np.random.default_rng(1)
    array = np.where(rng.random(576) < local, 0, rng.integers(1, 256, 576)).astype(np.uint8)

    packed = Sparse().process_bind_param(array.tobytes(), DIALECT)

    assert packed is not None
    assert packed[0] == SPARSE
    assert len(packed) < len(deflated(array.tobytes()))


def test_what_an_earlier_release_deflated_is_read() -> None:
    assert Sparse().process_result_value(deflated(b"abc" * 80), DIALECT) == b"abc" * 80
    assert {deflated(bytes([first] * n))[0] & 6 for first in range(256) for n in (1, 300)} <= {
        0,
        2,
        4,
    }


@given(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=70)
    | st.text("é", min_size=8, max_size=32)
    | st.sampled_from([16, 32, 64]).flatmap(lambda n: st.text(HEX, min_size=n, max_size=n))
)
def test_a_text_comes_back_and_is_taken_for_no_hash(text: str) -> None:
    packed = Hex().process_bind_param(text, SERVER)

    assert isinstance(packed, bytes)
    assert Hex().process_result_value(packed, SERVER) == text
    assert Hex().process_bind_param(text, DIALECT) == text
    assert (len(packed) in (16, 32)) == (len(text) in (32, 64) and set(text) <= set(HEX))
