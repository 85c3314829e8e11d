"""Pictures as the hub draws them, next to `transformers`."""

import pytest

from fleet.errors import InvalidInputError
from fleet.models.bundle import reference_path
from simulations.bench_decoding import decoding


def test_both_draw_and_the_ratio_has_its_spread() -> None:
    pytest.importorskip("transformers")

    rows = decoding(reference_path(), tokens=3, rounds=3, pictures=[1, 2])

    assert [row.subject for row in rows] == ["1 pictures of 3 tokens", "2 pictures of 3 tokens"]
    for row in rows:
        assert 0 < row.least <= row.ratio <= row.most
        assert min(row.ours_per_s, row.theirs_per_s) > 0


def test_more_tokens_than_a_picture_has_are_told() -> None:
    with pytest.raises(InvalidInputError, match="2 to 256 tokens, not 300"):
        decoding(reference_path(), tokens=300, rounds=1)
