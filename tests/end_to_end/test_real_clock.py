"""A scenario on the real clock: real broker, hub and agents, held against every law."""

from pathlib import Path

import pytest

from simulations.real.run import RealOrder
from simulations.runs import run_real
from simulations.scenarios.files import parse


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_small_fleet_keeps_every_law_through_a_cut_and_a_killed_worker(tmp_path: Path) -> None:
    scenario = parse(
        {
            "name": "few",
            "about": "Two real agents and two workers.",
            "devices": 2,
            "seconds": 8.0,
            "arrivals": {"law": "steady", "per_minute": 10},
            "generation": {"deadline_s": 240.0, "outage_patience_s": 240.0},
            "hub": {"workers": 2},
            "faults": [
                {"kind": "cut-links", "share": 0.5, "at_s": 2.0, "for_s": 2.0},
                {"kind": "kill-worker", "worker": 1, "at_s": 5.0, "for_s": 2.0},
            ],
        },
        source="a test",
    )

    found = run_real(RealOrder(scenario, 1, tmp_path, crowds=2))

    assert found.violations == []
    assert found.tally.made == found.tally.events["asked"] > 0
    assert found.tally.events["fault"] == 4
