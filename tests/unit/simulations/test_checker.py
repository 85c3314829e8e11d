"""The history checker: a sound history passes, and every law catches what breaks it."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from cloud_hub.store.tables.counted import COUNTS
from simulations.history.changes import CAUGHT
from simulations.history.checker import LAWS, check
from simulations.history.events import Event
from simulations.history.run import Run
from simulations.history.stored import Stored
from simulations.scenarios.faults import POISONS, Poison

COUNTED = {
    "tokens": 8,
    "prefix": 1,
    "local": 4,
    "verified": 3,
    "corrected": 1,
    "unverified": 0,
    "wasted": 5,
    "forwards": 3,
    "round_trips": 4,
    "retries": 0,
    "bytes_up": 900,
    "bytes_down": 400,
}
DECISIONS = bytes([0, 1, 1, 1, 1, 2, 2, 3])


def event(at: float, name: str, **facts: Any) -> Event:
    return {"at": at, "event": name, **facts}


def made(wish: int, generation: str) -> Event:
    picture = {"took_s": 1.0, "generation": generation, "image": "i-7", "fallback": ""}
    picture |= {"spooled": True, "device_version": "v0"}
    return event(2.0 + wish, "made", node="a", wish=wish, **picture, **COUNTED)


def row(sequence: int, generation: str, boot: str = "b1") -> dict[str, Any]:
    key = {"node_id": "a", "boot_id": boot, "sequence": sequence, "generation_id": generation}
    return {**key, **COUNTED, "fallback": "", "decisions": DECISIONS, "device_version": "v0"}


def state(boot: str, said: str) -> dict[str, str]:
    return {"node_id": "a", "boot_id": boot, "state": said}


def sound() -> Run:
    """Two pictures of one boot, one interrupted by a kill, and one of the next boot."""
    wishes = [event(i, "asked", node="a", wish=i, caption="c", seed=7) for i in range(4)]
    return Run(
        events=[
            *wishes,
            made(0, "g0"),
            made(1, "g1"),
            event(4.0, "interrupted", node="a", wish=2),
            made(3, "g3"),
            event(9.0, "end", unsettled=0),
        ],
        stored=Stored(
            pictures=[row(1, "g0"), row(2, "g1"), row(1, "g3", "b2")],
            sums={"pictures": 3, **{name: 3 * COUNTED[name] for name in COUNTS}},
            states=[
                state("b1", "ready"),
                state("b1", "lost"),
                state("b1", "ready"),
                state("b1", "lost"),
                state("b2", "ready"),
                state("b2", "stopped"),
            ],
            rejected=0,
        ),
        deadline_s=30.0,
        twin=lambda _, seed, __: f"i-{seed}",
    )


def changed() -> Run:
    """The sound run, with a round in which b sent poison, and a version that a tried and lost."""
    run = sound()
    events = [
        event(5.0, "round", number=1, state="begins"),
        event(5.0, "poisoned", node="b", round=1, how="flipped"),
        event(6.0, "round", number=1, state="ends", outcome="kept"),
        event(7.0, "rollout", version="v1", state="begins"),
        event(8.0, "rollout", version="v1", state="ends", step="roll back", why=""),
    ]
    pictures = [*run.stored.pictures[:1], {**run.stored.pictures[1], "device_version": "v1"}]
    pictures += run.stored.pictures[2:]
    made = [
        {**each, "device_version": "v1"} if each.get("generation") == "g1" else each
        for each in run.events
    ]
    stored = replace(
        run.stored,
        pictures=pictures,
        rounds=[{"number": 1, "outcome": "kept"}],
        parts=[part("a", "used", ""), part("b", "refused", "an update against the others: …")],
        rollouts=[{"version": "v1", "state": "rolled_back"}],
        offers=[{"node_id": "a", "version": "v1", "state": "rolled_back"}],
    )
    return replace(run, events=[*made[:-1], *events, made[-1]], stored=stored)


def part(node: str, what: str, reason: str) -> dict[str, Any]:
    return {"number": 1, "node_id": node, "part": what, "reason": reason}


def changed_in(**changes: Any) -> Run:
    run = changed()
    return replace(run, stored=replace(run.stored, **changes))


def with_poison(how: str) -> Run:
    run = changed()
    events = [{**each, "how": how} if each["event"] == "poisoned" else each for each in run.events]
    return replace(run, events=events)


def broken(**changes: Any) -> Run:
    run = copy.deepcopy(sound())
    return replace(run, stored=replace(run.stored, **changes))


def without_record() -> Run:
    run = broken()
    return replace(run, stored=replace(run.stored, pictures=run.stored.pictures[1:]))


def with_event(**changes: Any) -> Run:
    run = sound()
    return replace(
        run,
        events=[{**each, **changes} if each["event"] == "made" else each for each in run.events],
    )


def with_row(**changes: Any) -> Run:
    run = sound()
    return broken(pictures=[{**run.stored.pictures[0], **changes}, *run.stored.pictures[1:]])


PLANTED: list[tuple[str, Callable[[], Run]]] = [
    ("nothing is lost", without_record),
    ("nothing is lost", lambda: broken(rejected=1)),
    (
        "nothing is lost",
        lambda: replace(sound(), events=[*sound().events[:-1], event(9.0, "end", unsettled=2)]),
    ),
    ("no sequence is missing", lambda: with_row(sequence=3)),
    ("nothing is doubled", lambda: broken(pictures=[*sound().stored.pictures, row(3, "g0")])),
    ("nothing is doubled", lambda: broken(pictures=[*sound().stored.pictures, row(2, "g9")])),
    ("rows say what agents said", lambda: with_row(round_trips=5)),
    ("rows say what agents said", lambda: with_row(fallback="timeout")),
    ("every token is accounted for", lambda: with_row(decisions=DECISIONS[:-1])),
    ("every token is accounted for", lambda: with_row(local=5, verified=2)),
    ("sums are those of rows", lambda: broken(sums={**sound().stored.sums, "pictures": 4})),
    ("sums are those of rows", lambda: broken(sums={**sound().stored.sums, "bytes_up": 1})),
    ("states are legal", lambda: broken(states=[*sound().stored.states, state("b2", "ready")])),
    ("states are legal", lambda: broken(states=[*sound().stored.states[:-1], state("b1", "lost")])),
    ("each wish ends once", lambda: replace(sound(), events=sound().events[1:])),
    ("each wish ends once", lambda: replace(sound(), events=[*sound().events, made(3, "g3")])),
    ("each wish ends once", lambda: replace(sound(), events=sound().events[:-2])),
    ("deadlines are kept", lambda: with_event(took_s=33.0)),
    ("pictures are their fault-free twins", lambda: with_event(image="i-8")),
    ("rows say what agents said", lambda: with_row(device_version="v7")),
    ("rounds end once", lambda: changed_in(rounds=[])),
    ("rounds end once", lambda: changed_in(rounds=[{"number": 1, "outcome": "open"}])),
    ("rounds end once", lambda: changed_in(rounds=[{"number": 2, "outcome": "kept"}])),
    ("poison is caught", lambda: with_poison("huge")),
    ("poison is caught", lambda: changed_in(parts=[part("a", "used", "")])),
    ("poison is caught", lambda: changed_in(parts=[part("b", "used", "")])),
    (
        "poison is caught",
        lambda: changed_in(parts=[*changed().stored.parts, part("c", "refused", "odd")]),
    ),
    (
        "bad versions are taken back",
        lambda: changed_in(rollouts=[{"version": "v1", "state": "done"}]),
    ),
    (
        "bad versions are taken back",
        lambda: changed_in(offers=[{"node_id": "a", "version": "v1", "state": "sent"}]),
    ),
    ("versions move as ordered", lambda: changed_in(offers=[])),
    (
        "versions move as ordered",
        lambda: changed_in(
            offers=[{"node_id": "a", "version": "v1", "state": "active"}],
            pictures=[
                {**each, "sequence": 3 - each["sequence"]} for each in changed().stored.pictures[:2]
            ],
        ),
    ),
]


def test_a_sound_history_breaks_no_law() -> None:
    assert check(sound()) == []


def test_rounds_and_rollouts_that_went_as_they_should_break_no_law() -> None:
    assert check(changed()) == []


@pytest.mark.parametrize("how", POISONS)
def test_every_poison_is_looked_for(how: Poison) -> None:
    what, words = CAUGHT[how]

    assert check(replace(with_poison(how), stored=caught(what, f"… {words} …"))) == []
    assert check(replace(with_poison(how), stored=caught("used", ""))) != []


def caught(what: str, reason: str) -> Stored:
    return changed_in(parts=[part("b", what, reason)]).stored


@pytest.mark.parametrize(
    ("law", "plant"), PLANTED, ids=[f"{index} {law}" for index, (law, _) in enumerate(PLANTED)]
)
def test_a_planted_violation_is_found(law: str, plant: Callable[[], Run]) -> None:
    assert law in {found.law for found in check(plant())}


def test_every_law_has_a_violation_that_it_finds() -> None:
    assert {law for law, _ in PLANTED} == set(LAWS)


def test_a_picture_that_fell_back_need_not_be_its_twin() -> None:
    assert check(with_event(image="i-8", unverified=0, fallback="timeout")) != []
    laws = {found.law for found in check(with_event(image="i-8", fallback="timeout"))}

    assert "pictures are their fault-free twins" not in laws


def killed(at: float) -> Event:
    return event(at, "node", node="a", state="killed", life=0)


def stalled(begin: float, end: float, node: str = "a") -> list[Event]:
    facts = {"kind": "stall-agents", "nodes": [node]}
    return [
        event(begin, "fault", state="begins", **facts),
        event(end, "fault", state="ends", **facts),
    ]


def test_a_record_that_waited_in_memory_may_die_with_its_agent() -> None:
    run = without_record()
    unspooled = [
        {**each, "spooled": False} if each.get("generation") == "g0" else each
        for each in run.events
    ]
    laws = {"nothing is lost", "no sequence is missing"}

    def broken_laws(events: list[Event]) -> set[str]:
        return laws & {found.law for found in check(replace(run, events=events))}

    assert broken_laws(unspooled) == laws
    assert broken_laws([*unspooled, killed(8.0)]) == set()
    assert broken_laws([killed(1.5), *unspooled]) == laws
    assert broken_laws([*run.events, killed(8.0)]) == laws


def test_a_deadline_waits_for_an_agent_that_stood_still_and_for_no_other() -> None:
    late = [{**each, "at": each["at"] + 60} for each in with_event(took_s=50.0).events]

    def late_laws(stalls: list[Event]) -> set[str]:
        return {found.law for found in check(replace(sound(), events=[*stalls, *late]))}

    assert "deadlines are kept" in late_laws([])
    assert "deadlines are kept" in late_laws(stalled(20, 30))
    assert "deadlines are kept" in late_laws(stalled(20, 50, node="b"))
    assert "deadlines are kept" not in late_laws(stalled(20, 50))
