"""Poisoned rounds and a bad rollout: caught by the hub, and found out where it is blinded."""

from pathlib import Path

import pytest

from cloud_hub.rollout import controller
from cloud_hub.rollout.plan import Decision
from fleet.federation.gate import Limits
from fleet.federation.plan import Plan
from simulations.profile import load_profile
from simulations.report.findings import Findings
from simulations.runs import run
from simulations.scenarios.faults import POISONS
from simulations.scenarios.files import load
from simulations.scenarios.scenario import Scenario
from simulations.world.world import Order

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def findings(scenario: Scenario, out: Path) -> Findings:
    return run(Order(scenario, 1, out, load_profile()))


def only(kind: str, how: str = "") -> Scenario:
    """The shipped scenario with one of its faults, until that is over."""
    whole = load("learning")
    fault = next(
        each for each in whole.faults if each.kind == kind and getattr(each, "how", "") == how
    )
    seconds = fault.at_s + (5.0 if how else fault.for_s)
    rounds = whole.rounds if how else None
    changes = {"faults": (fault,), "seconds": seconds, "rounds": rounds}
    return whole.model_copy(update=changes)


def test_every_poison_is_caught_and_the_bad_version_taken_back(tmp_path: Path) -> None:
    found = findings(load("learning"), tmp_path)

    assert found.violations == []
    assert {each["how"] for each in found.events if each["event"] == "poisoned"} == set(POISONS)
    outcomes = [each["outcome"] for each in found.events if "outcome" in each]
    assert outcomes == ["kept"] * 6
    (decided,) = [each for each in found.events if "step" in each]
    assert decided["step"] == "roll back"
    assert len({each["device_version"] for each in found.made}) == 2


def test_a_gate_that_lets_all_in_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Plan, "limits", Limits(opposed=-2, refuse=1e9))

    found = findings(only("poison-updates", "flipped"), tmp_path)

    assert {each.law for each in found.violations} == {"poison is caught"}
    assert "flipped was used" in found.violations[0].where


def test_a_bad_version_that_stays_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def widen(*_: object) -> Decision:
        return Decision("widen", "it looks fine")

    monkeypatch.setattr(controller, "decide", widen)

    found = findings(only("bad-rollout"), tmp_path)

    assert {each.law for each in found.violations} == {"bad versions are taken back"}
