"""The report of a run: its numbers, its page, and what it says of broken laws."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from simulations.history.checker import LAWS, Violation
from simulations.history.events import Event
from simulations.report.findings import Findings, tables
from simulations.report.page import page, write_report
from simulations.scenarios.files import parse
from simulations.scenarios.population import population

COUNTS = {
    "tokens": 100,
    "prefix": 6,
    "local": 70,
    "verified": 24,
    "corrected": 6,
    "unverified": 0,
    "wasted": 40,
    "round_trips": 12,
    "forwards": 20,
    "bytes_up": 9000,
    "bytes_down": 3000,
}


def findings(*violations: Violation) -> Findings:
    """Ten pictures of two devices, one of them finished without the cloud."""
    scenario = parse(
        {
            "name": "small",
            "about": "A <small> test.",
            "devices": 2,
            "seconds": 20.0,
            "links": [{"name": "wifi", "share": 0.5}, {"name": "4g", "share": 0.5}],
            "faults": [{"kind": "cut-links", "at_s": 5.0, "for_s": 3.0, "share": 0.5}],
        },
        source="a test",
    )
    fleet = population(scenario, 1)
    events: list[Event] = [{"at": 0.0, "event": "world", "scenario": "small", "seed": 1}]
    for wish in range(10):
        about: dict[str, Any] = {"node": fleet[wish % 2].node, "wish": wish}
        made = {"took_s": 1.0 + wish, "fallback": "timeout" if wish == 9 else "", **COUNTS}
        events.append({"at": float(wish), "event": "asked", "caption": "google: fox", **about})
        events.append({"at": 1.0 + 2 * wish, "event": "made", **about, **made})
    return Findings(scenario, 1, "virtual", fleet, events, violations, real_s=0.5)


def test_the_numbers_are_those_of_the_events() -> None:
    said = {table.title: table for table in tables(findings())}
    whole = {row[0]: row[1] for row in said["The run"].rows}

    assert whole["pictures asked for"] == "10: 10 made"
    assert whole["pictures/s, until the last one"] == "0.50"
    assert whole["cloud share (forwards / tokens)"] == "0.200"
    assert whole["finished without the cloud"] == "1"
    assert [row[:2] for row in said["By network"].rows] == [("4g", "5"), ("wifi", "5")]
    assert [row[4] for row in said["By style"].rows] == ["0.75"]
    assert said["Faults"].rows == (("cut-links", "5", "8", "1"),)
    assert said["Broken laws"].rows == ((f"none of {len(LAWS)}", ""),)


def test_the_page_stands_alone_and_names_what_is_wrong() -> None:
    found = findings(Violation("nothing is lost", "node-1, <wish> 3"))

    shown = page(found, tables(found))

    assert shown.count("<svg") == 2
    assert "A &lt;small&gt; test." in shown
    assert "node-1, &lt;wish&gt; 3" in shown
    assert 'class="broken"' in shown
    for outside in ("<script", "src=", "@import", "<link"):
        assert outside not in shown


def test_the_same_run_gives_the_same_page() -> None:
    pages = [page(found, tables(found)) for found in (findings(), findings())]

    assert pages[0] == pages[1]
    clips = re.findall(r'<clipPath id="([^"]+)"', pages[0])
    assert len(clips) == len(set(clips)) > 0
    assert set(re.findall(r"url\(#([^)]+)\)", pages[0])) <= set(clips)


def test_a_run_without_pictures_has_a_report_too() -> None:
    found = findings()
    nothing = Findings(found.scenario, 1, "virtual", found.fleet, found.events[:1], (), real_s=0.1)

    whole = tables(nothing)[0]

    assert ("pictures asked for", "0") in whole.rows
    assert page(nothing, tables(nothing)).count("<svg") == 2


def test_both_forms_are_written(tmp_path: Path) -> None:
    said = write_report(tmp_path, findings())

    assert (tmp_path / "report.txt").read_text() == said
    assert (tmp_path / "index.html").read_text().startswith("<!doctype html>")


def test_rounds_and_rollouts_have_tables_where_there_were_some() -> None:
    calm = findings()
    changed = replace(
        calm,
        events=[
            *calm.events,
            {"at": 5.0, "event": "poisoned", "node": "a", "round": 1, "how": "huge"},
            {"at": 5.0, "event": "poisoned", "node": "b", "round": 1, "how": "huge"},
            {"at": 6.0, "event": "round", "number": 1, "state": "ends", "outcome": "kept"},
            {"at": 8.0, "event": "rollout", "version": "v1", "state": "begins"},
            {
                "at": 9.0,
                "event": "rollout",
                "version": "v1",
                "state": "ends",
                "step": "roll back",
                "why": "it is worse",
            },
        ],
    )

    shown = {table.title: table.rows for table in tables(changed)}

    assert not {"Rounds", "Rollouts"} & {table.title for table in tables(calm)}
    assert shown["Rounds"] == (("1", "6", "kept", "2 huge"),)
    assert shown["Rollouts"] == (("v1", "9", "roll back", "it is worse"),)
