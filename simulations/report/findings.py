"""What a run came to, as tables of text; pure."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from simulations.history.checker import LAWS, Violation
from simulations.history.events import Event
from simulations.history.tally import ENDS, Tally
from simulations.scenarios.population import Resident, struck
from simulations.scenarios.scenario import Scenario

_SECONDS = {"virtual": "seconds simulated / taken", "real": "seconds / with start and end"}


@dataclass(frozen=True, slots=True)
class Table:
    """A titled table; the first column names its rows."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Findings:
    """A run that is over."""

    scenario: Scenario
    seed: int
    clock: str
    fleet: Sequence[Resident]
    events: Sequence[Event]
    violations: Sequence[Violation]
    real_s: float  # that the run took

    @cached_property
    def tally(self) -> Tally:
        """Over all events."""
        return _tally(self.events)

    @cached_property
    def made(self) -> list[Event]:
        """The finished pictures."""
        return [event for event in self.events if event["event"] == "made"]

    def grouped(self, key: Callable[[Event], str]) -> dict[str, Tally]:
        """Finished pictures by a key, sorted."""
        groups: defaultdict[str, list[Event]] = defaultdict(list)
        for event in self.made:
            groups[key(event)].append(event)
        return {name: _tally(groups[name]) for name in sorted(groups)}

    @cached_property
    def by_link(self) -> dict[str, Tally]:
        """Finished pictures by their device's network."""
        links = {one.node: one.link.name for one in self.fleet}
        return self.grouped(lambda event: links[event["node"]])

    @cached_property
    def fault_spans(self) -> list[tuple[str, float, float]]:
        """Kind, beginning and end of each fault, in seconds."""
        return [(fault.kind, fault.at_s, fault.ends_s) for fault in self.scenario.faults]


def tables(found: Findings) -> list[Table]:
    """Everything that a report says in numbers."""
    kinds = {one.node: one.kind.name for one in found.fleet}
    styles = {
        (event["node"], event["wish"]): event["caption"].partition(":")[0]
        for event in found.events
        if event["event"] == "asked"
    }
    return [
        _whole(found),
        _split("By network", found.by_link),
        _split("By kind of device", found.grouped(lambda event: kinds[event["node"]])),
        _split("By style", found.grouped(lambda event: styles[event["node"], event["wish"]])),
        _faults(found),
        *_changes(found),
        _laws(found),
    ]


def _whole(found: Findings) -> Table:
    tally = found.tally
    ends = ", ".join(f"{tally.events[end]} {end}" for end in ENDS if tally.events[end])
    rows = (
        ("devices, workers", f"{len(found.fleet)}, {found.scenario.hub.workers}"),
        ("pictures asked for", f"{tally.events['asked']}: {ends}" if ends else "0"),
        ("pictures/s, until the last one", f"{_rate(found):.2f}"),
        ("seconds of a picture, p50 / p95 / p99", _quantiles(tally, 0.5, 0.95, 0.99)),
        ("cloud share (forwards / tokens)", _share("forwards", tally)),
        ("local share", _share("local", tally)),
        ("finished without the cloud", str(tally.made - tally.fallbacks[""])),
        (_SECONDS[found.clock], f"{tally.at_s:.0f} / {found.real_s:.0f}"),
    )
    return Table("The run", ("", found.scenario.name), rows)


def _rate(found: Findings) -> float:
    """Over the time in which they were asked for, or longer where they took longer."""
    ends = max([found.scenario.seconds, *found.tally.made_at])
    return found.tally.made / ends


def _split(title: str, groups: dict[str, Tally]) -> Table:
    columns = (
        "",
        "pictures",
        "s p50 / p95",
        "cloud share",
        "accepted",
        "round trips",
        "kB up / down",
        "without cloud",
    )
    return Table(title, columns, tuple(_group(name, tally) for name, tally in groups.items()))


def _group(name: str, tally: Tally) -> tuple[str, ...]:
    made, sums = max(tally.made, 1), tally.summed
    accepted = 1 - sums["corrected"] / sums["verified"] if sums["verified"] else None
    return (
        name,
        str(tally.made),
        _quantiles(tally, 0.5, 0.95),
        _share("forwards", tally),
        f"{accepted:.2f}" if accepted is not None else "–",
        f"{sums['round_trips'] / made:.1f}",
        f"{sums['bytes_up'] / made / 1e3:.1f} / {sums['bytes_down'] / made / 1e3:.1f}",
        str(tally.made - tally.fallbacks[""]),
    )


def _faults(found: Findings) -> Table:
    struck_on = partial(struck, found.scenario, found.seed)
    rows = tuple(
        (fault.kind, f"{fault.at_s:g}", f"{fault.ends_s:g}", str(len(struck_on(index)) or ""))
        for index, fault in enumerate(found.scenario.faults)
    )
    return Table("Faults", ("", "from s", "to s", "devices"), rows)


def _changes(found: Findings) -> Iterator[Table]:
    """Rounds and rollouts, where there were some."""
    poison = Counter(
        (event["round"], event["how"]) for event in found.events if event["event"] == "poisoned"
    )
    rounds = tuple(
        (
            str(event["number"]),
            f"{event['at']:g}",
            event["outcome"],
            ", ".join(
                f"{count} {how}"
                for (number, how), count in poison.items()
                if number == event["number"]
            ),
        )
        for event in found.events
        if event["event"] == "round" and event["state"] == "ends"
    )
    if rounds:
        yield Table("Rounds", ("", "ended, s", "outcome", "poisoned devices"), rounds)
    rollouts = tuple(
        (event["version"], f"{event['at']:g}", event["step"], event["why"])
        for event in found.events
        if event["event"] == "rollout" and event["state"] == "ends"
    )
    if rollouts:
        yield Table("Rollouts", ("", "ended, s", "decision", "why"), rollouts)


def _laws(found: Findings) -> Table:
    rows = tuple((each.law, each.where) for each in found.violations)
    return Table("Broken laws", ("", "where"), rows or ((f"none of {len(LAWS)}", ""),))


def _quantiles(tally: Tally, *shares: float) -> str:
    return " / ".join(f"{tally.latency_s(share):.2f}" for share in shares)


def _share(name: str, tally: Tally) -> str:
    return f"{tally.summed[name] / max(tally.summed['tokens'], 1):.3f}"


def _tally(events: Iterable[Event]) -> Tally:
    tally = Tally()
    for event in events:
        tally.add(event)
    return tally
