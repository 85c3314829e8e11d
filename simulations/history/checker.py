"""Proves, from what agents and hub logged of a run, that nothing was lost, doubled or made up.

Each law is a function of the events and the database that yields what breaks it; pure. They hold
for any run that was let come to rest, whatever went wrong in it meanwhile.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cloud_hub.store.tables.counted import COUNTS
from edge_agent.drafts import Mark
from simulations.history import changes
from simulations.history.events import Event
from simulations.history.run import Law, Run
from simulations.history.stored import Row
from simulations.history.tally import ENDS

SLACK_S = 2.0  # beyond its deadline a picture may take: decoding, and a disk


@dataclass(frozen=True, slots=True)
class Violation:
    """A law that a run broke, and where."""

    law: str
    where: str


def check(run: Run) -> list[Violation]:
    """Every violation of every law."""
    return [Violation(name, where) for name, law in LAWS.items() for where in law(run)]


# ── What agents said ──────────────────────────────────────────────────────────────────────


def _each_wish_ends_once(run: Run) -> Iterator[str]:
    ends: Counter[tuple[str, int]] = Counter()
    for event in run.events:
        if event["event"] in ENDS:
            ends[event["node"], event["wish"]] += 1
    asked = {(event["node"], event["wish"]) for event in run.of("asked")}
    for node, wish in sorted(asked | set(ends)):
        if (node, wish) not in asked or ends[node, wish] != 1:
            yield f"{node}, wish {wish}: {ends[node, wish]} ends"


def _deadlines_are_kept(run: Run) -> Iterator[str]:
    stalls = list(_stalls(run))
    for event in run.of("made"):
        begun = event["at"] - event["took_s"]
        stood_s = sum(
            max(min(event["at"], end) - max(begun, begin), 0.0)
            for node, begin, end in stalls
            if node == event["node"]
        )
        if event["took_s"] > run.deadline_s + SLACK_S + stood_s:
            yield f"{event['node']}, wish {event['wish']}: {event['took_s']:.1f} s"


def _pictures_are_their_twins(run: Run) -> Iterator[str]:
    wishes = {(event["node"], event["wish"]): event for event in run.of("asked")}
    for event in run.of("made") if run.twin else ():
        wish = wishes.get((event["node"], event["wish"]))
        if wish is None or event["unverified"] or event["fallback"]:
            continue
        assert run.twin is not None
        twin = run.twin(wish["caption"], wish["seed"], event["device_version"])
        if twin not in {None, event["image"]}:
            yield f"{event['node']}, wish {event['wish']}: another picture than undisturbed"


def _stalls(run: Run) -> Iterator[tuple[str, float, float]]:
    """Node, beginning and end of each time in which an agent's process stood still."""
    since: dict[str, float] = {}
    for event in run.of("fault"):
        for node in event["nodes"] if event["kind"] == "stall-agents" else ():
            if event["state"] == "begins":
                since[node] = event["at"]
            elif node in since:
                yield node, since.pop(node), event["at"] + SLACK_S


# ── What the hub stored of it ─────────────────────────────────────────────────────────────


def _nothing_is_lost(run: Run) -> Iterator[str]:
    gone = {event["generation"] for event in _died_in_memory(run)}
    stored = {row["generation_id"] for row in run.stored.pictures}
    for event in run.of("made"):
        if event["generation"] not in stored | gone:
            yield f"{event['node']}, wish {event['wish']}: {event['generation']} is not stored"
    for event in run.of("end"):
        if event["unsettled"]:
            yield f"{event['unsettled']} pictures or records never came to rest"
    if run.stored.rejected:
        yield f"{run.stored.rejected} records were set aside"


def _no_sequence_is_missing(run: Run) -> Iterator[str]:
    boots: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
    for row in run.stored.pictures:
        boots[row["node_id"], row["boot_id"]].add(row["sequence"])
    gone = Counter(event["node"] for event in _died_in_memory(run))
    for (node, boot), sequences in boots.items():
        missing = sorted(set(range(1, max(sequences) + 1)) - sequences)
        if len(missing) > gone[node]:
            yield f"{node}, boot {boot}: {missing}"


def _died_in_memory(run: Run) -> Iterator[Event]:
    """Pictures whose record was not on disk, because it was full, when the agent was killed."""
    stored = {row["generation_id"] for row in run.stored.pictures}
    waiting: defaultdict[str, list[Event]] = defaultdict(list)
    for event in run.events:
        if event["event"] == "made" and not event["spooled"]:
            waiting[event["node"]].append(event)
        elif event["event"] == "node" and event["state"] == "killed":
            yield from (
                each for each in waiting.pop(event["node"], ()) if each["generation"] not in stored
            )


def _nothing_is_doubled(run: Run) -> Iterator[str]:
    for key in (("generation_id",), ("node_id", "boot_id", "sequence")):
        counts: Counter[tuple[Any, ...]] = Counter()
        counts.update(tuple(row[name] for name in key) for row in run.stored.pictures)
        for values, count in counts.items():
            if count > 1:
                yield f"{' '.join(map(str, values))}: {count} rows"


def _rows_say_what_agents_said(run: Run) -> Iterator[str]:
    rows = {row["generation_id"]: row for row in run.stored.pictures}
    for event in run.of("made"):
        row = rows.get(event["generation"])
        for name in (*COUNTS, "fallback", "device_version") if row else ():
            if row is not None and row[name] != event[name]:
                yield f"{event['generation']}: {name} is {row[name]}, was {event[name]}"


def _every_token_is_accounted_for(run: Run) -> Iterator[str]:
    for row in run.stored.pictures:
        if (said := _by_counts(row)) != (found := _by_decisions(row)):
            yield f"{row['generation_id']}: counts {said}, tokens {found}"


def _sums_are_those_of_rows(run: Run) -> Iterator[str]:
    rows = run.stored.pictures
    for name in ("pictures", *COUNTS):
        found = len(rows) if name == "pictures" else sum(row[name] for row in rows)
        if run.stored.sums.get(name, 0) != found:
            yield f"{name}: {run.stored.sums.get(name, 0)} summed, {found} in rows"


def _states_are_legal(run: Run) -> Iterator[str]:
    """A boot that another one followed never speaks again, nor one that said goodbye."""
    boots: defaultdict[str, list[str]] = defaultdict(list)
    last: dict[str, str] = {}
    for row in run.stored.states:
        node, boot, state = row["node_id"], row["boot_id"], row["state"]
        present = boots[node][-1] if boots[node] else None
        if boot != present and boot in boots[node]:
            yield f"{node}: boot {boot} came back after {present}"
        elif boot == present and last[node] in ("stopped", state):
            yield f"{node}: {state} after {last[node]}"
        if boot != present:
            boots[node].append(boot)
        last[node] = state


def _by_counts(row: Row) -> dict[str, int]:
    return {
        "prefix": row["prefix"],
        "local": row["local"],
        "verified": row["verified"] - row["corrected"],
        "corrected": row["corrected"],
        "unverified": row["unverified"],
        "all": row["tokens"],
    }


def _by_decisions(row: Row) -> dict[str, int]:
    counts: Counter[int] = Counter(row["decisions"])
    named = {mark.name.lower(): counts[mark] for mark in Mark if mark <= Mark.UNVERIFIED}
    return {**named, "all": len(row["decisions"])}


LAWS: dict[str, Law] = {
    "each wish ends once": _each_wish_ends_once,
    "deadlines are kept": _deadlines_are_kept,
    "pictures are their fault-free twins": _pictures_are_their_twins,
    "nothing is lost": _nothing_is_lost,
    "no sequence is missing": _no_sequence_is_missing,
    "nothing is doubled": _nothing_is_doubled,
    "rows say what agents said": _rows_say_what_agents_said,
    "every token is accounted for": _every_token_is_accounted_for,
    "sums are those of rows": _sums_are_those_of_rows,
    "states are legal": _states_are_legal,
    "rounds end once": changes.rounds_end_once,
    "poison is caught": changes.poison_is_caught,
    "bad versions are taken back": changes.bad_versions_are_taken_back,
    "versions move as ordered": changes.versions_move_as_ordered,
}
