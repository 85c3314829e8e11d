"""When a schedule begins a run: each condition, and the sentence that it gives."""

from dataclasses import replace

import pytest

from cloud_hub.rounds.conditions import LIMITS, Serving, look
from cloud_hub.rounds.job_store import trigger_of
from cloud_hub.store.schedule import Facts, Judged, Kind
from fleet.errors import InvalidInputError
from fleet.ids import ModelVersion

SERVING = Serving(ModelVersion("cloud-2"), 0.1)
CALM = Facts(
    last_day=Judged(2000, 200),
    week_before=Judged(9000, 900),
    judged_since_run=50_000,
    clouds=frozenset({"cloud-1", "cloud-2"}),
)


@pytest.mark.parametrize(
    ("kind", "facts", "holds", "why"),
    [
        ("cron", CALM, True, "it is time"),
        ("drift", CALM, False, "from 90.0% to 90.0%"),
        ("drift", replace(CALM, last_day=Judged(2000, 300)), True, "from 90.0% to 85.0%"),
        ("drift", replace(CALM, last_day=Judged(2000, 100)), False, "from 90.0% to 95.0%"),
        ("drift", replace(CALM, last_day=Judged(999, 900)), False, "fewer than 1000"),
        ("drift", replace(CALM, week_before=Judged(0, 0)), False, "fewer than 1000"),
        ("cloud", CALM, False, "cloud-2 was trained on"),
        ("cloud", replace(CALM, clouds=frozenset({"cloud-1"})), True, "cloud-2 was not yet"),
        ("samples", CALM, False, "about 5000 samples are fresh, of 10000"),
        ("samples", replace(CALM, judged_since_run=100_000), True, "about 10000 samples"),
    ],
)
def test_a_condition_holds_or_says_why_not(kind: Kind, facts: Facts, holds: bool, why: str) -> None:
    found = look(kind, LIMITS[kind], facts, SERVING)

    assert found.holds == holds
    assert why in found.why


def test_a_line_that_is_no_crontab_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="'every night' is no crontab line"):
        trigger_of("every night")
