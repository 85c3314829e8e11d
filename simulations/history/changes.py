"""Laws on what changes a fleet's models: rounds that learn from devices, and rollouts to them."""

from collections import defaultdict
from collections.abc import Iterator

from simulations.history.run import Run
from simulations.history.stored import Row
from simulations.scenarios.faults import Poison

# What a round says of a node that sent each poison: its part, and words of the reason.
CAUGHT: dict[Poison, tuple[str, str]] = {
    "not-numbers": ("refused", "not finite"),
    "huge": ("refused", "an update of norm"),
    "flipped": ("refused", "an update against the others"),
    "inflated": ("used", "counted as"),
    "wrong-keys": ("refused", "instead of"),
    "silent": ("silent", "no answer"),
}


def poison_is_caught(run: Run) -> Iterator[str]:
    """Whoever sent poison is named with the reason of its kind, and nobody else is refused."""
    parts = {(row["node_id"], row["number"]): row for row in run.stored.parts}
    sent = {(event["node"], event["round"]): event["how"] for event in run.of("poisoned")}
    for (node, number), how in sorted(sent.items()):
        row, (part, words) = parts.get((node, number)), CAUGHT[how]
        if row is None or row["part"] != part or words not in row["reason"]:
            said = f"{row['part']} ({row['reason']})" if row else "no part"
            yield f"{node}, round {number}: {how} was {said}"
    for (node, number), row in sorted(parts.items()):
        if row["part"] == "refused" and (node, number) not in sent:
            yield f"{node}, round {number}: sound, but refused: {row['reason']}"


def rounds_end_once(run: Run) -> Iterator[str]:
    """Rounds that ended are 1, 2, 3 …, each as its run heard it, and none is open."""
    told = [(event["number"], event["outcome"]) for event in run.of("round") if "outcome" in event]
    stored = [(row["number"], row["outcome"]) for row in run.stored.rounds]
    if stored != told or [number for number, _ in told] != list(range(1, len(told) + 1)):
        yield f"told {told}, stored {stored}"


def bad_versions_are_taken_back(run: Run) -> Iterator[str]:
    """Every rollout of a scenario ends with the version off all devices, and on none that was not
    a canary."""
    states = {row["version"]: row["state"] for row in run.stored.rollouts}
    for event in run.of("rollout"):
        version, state = event["version"], states.get(event["version"], "not stored")
        if event["state"] == "ends" and (event["step"], state) != ("roll back", "rolled_back"):
            yield f"{version}: {event['step']}, {state}"
    for row in run.stored.offers:
        if row["version"] in states and row["state"] != "rolled_back":
            yield f"{row['node_id']}: {row['version']} is {row['state']}"


def versions_move_as_ordered(run: Run) -> Iterator[str]:
    """A boot runs versions that its node was offered, newer and newer; back only from one that was
    taken back."""
    ranks = {row["version"]: rank for rank, row in enumerate(run.stored.rollouts, 1)}
    offers = {(row["node_id"], row["version"]): row["state"] for row in run.stored.offers}
    boots: defaultdict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in run.stored.pictures:
        boots[row["node_id"], row["boot_id"]].append(row)
    for (node, boot), rows in sorted(boots.items()):
        before = ""
        for row in sorted(rows, key=lambda row: int(row["sequence"])):
            version = row["device_version"]
            if version in ranks and (node, version) not in offers:
                yield f"{node}, boot {boot}: {version} was never offered"
            is_back = before != "" and ranks.get(version, 0) < ranks.get(before, 0)
            if is_back and offers.get((node, before)) != "rolled_back":
                yield f"{node}, boot {boot}: {version} after {before}"
            before = version
