"""The forecast: a line through what was seen."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_hub.engine.forecast import Forecast


@given(st.floats(0, 0.1), st.floats(1e-5, 0.01), st.permutations([1, 2, 5, 40, 100, 256]))
def test_forwards_on_a_line_are_foretold(fixed: float, each: float, sizes: list[int]) -> None:
    forecast = Forecast()
    for tokens in sizes * 5:
        forecast.observe(tokens, fixed + each * tokens)

    found = forecast.seconds(3, 200)

    assert found == pytest.approx(3 * fixed + 200 * each, rel=0.25)


def test_forwards_of_one_size_leave_half_of_their_time_to_the_tokens() -> None:
    forecast = Forecast()
    for _ in range(50):
        forecast.observe(10, 0.2)

    assert forecast.seconds(1, 10) == pytest.approx(0.2, rel=0.02)
    assert forecast.seconds(1, 20) == pytest.approx(0.3, rel=0.02)


def test_what_was_is_forgotten() -> None:
    forecast = Forecast()
    for seconds in [1.0] * 100 + [0.01] * 200:
        forecast.observe(10, seconds)

    assert forecast.mean_s == pytest.approx(0.01, rel=0.3)


def test_nothing_seen_foretells_nothing() -> None:
    assert (Forecast().seconds(3, 100), Forecast().is_known) == (0.0, False)


@given(st.lists(st.tuples(st.integers(0, 300), st.floats(0, 10)), min_size=1, max_size=50))
def test_a_forecast_is_never_negative(seen: list[tuple[int, float]]) -> None:
    forecast = Forecast()
    for tokens, seconds in seen:
        forecast.observe(tokens, seconds)

    assert forecast.seconds(1, 0) >= 0
    assert forecast.seconds(1, 300) >= forecast.seconds(1, 10)
