"""Back-off between links: jitter under a ceiling that doubles, and falls only when earned."""

from hypothesis import given
from hypothesis import strategies as st

from fleet.transport.broker import Backoff, BrokerSettings

fractions = st.floats(0, 1, exclude_max=True)


@given(st.lists(fractions, min_size=1, max_size=40))
def test_a_wait_stays_under_a_ceiling_that_doubles_up_to_the_cap(draws: list[float]) -> None:
    numbers = iter(draws)
    backoff = Backoff(1.0, 60.0, 30.0, lambda: next(numbers))

    for failures, draw in enumerate(draws):
        assert backoff.wait_s(lived_s=0) == min(60.0, 2.0**failures) * draw


def test_a_short_life_does_not_shorten_the_next_wait() -> None:
    backoff = Backoff(1.0, 60.0, 30.0, lambda: 1.0)

    waits = [backoff.wait_s(lived_s=29.0) for _ in range(8)]

    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]


def test_a_long_life_does() -> None:
    backoff = Backoff(1.0, 60.0, 30.0, lambda: 1.0, failures=9)

    assert backoff.wait_s(lived_s=30.0) == 1.0


@given(fractions)
def test_who_was_thrown_out_waits_at_least_half_the_cap(draw: float) -> None:
    backoff = Backoff(1.0, 60.0, 30.0, lambda: draw)

    assert 30 <= backoff.wait_s(lived_s=1000.0, taken_over=True) <= 60


def test_a_password_does_not_show() -> None:
    settings = BrokerSettings.model_validate({"password": "hunter2"})

    assert "hunter2" not in repr(settings) + settings.model_dump_json()
