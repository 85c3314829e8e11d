"""Records under random SIGKILLs of agents, hub, broker and database: what is lost, what doubled.

Devices that only report, a hub that only records, mosquitto and PostgreSQL are processes of their
own; the parts in them are the product's: spool, delivery, recording, store. Kill `n` of a seed
falls on the same victim, at work for the same time, while others may still be starting.
What the folder holds is enough to go on after an interruption: spools, ledgers, the database, and
how many kills there were.
"""

import json
import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

from cloud_hub.store.database import Database
from fleet.errors import InvalidInputError, OutputError
from simulations.broker import mosquitto_program
from simulations.kills.agent import DRAIN_S, ENOUGH, ledger_of
from simulations.kills.database import postgres_programs, url_of
from simulations.kills.victims import Victim
from simulations.processes import free_port

START_S = 60.0
LONGEST_UP_S, LONGEST_DOWN_S = 2.0, 1.0
_PROGRESS = "progress.json"
_LOOK_S = 0.1
_MIB = 1 << 20
_KINDS = ("agent", "hub", "broker", "database")


@dataclass(frozen=True, slots=True)
class Order:
    """How much is to happen, and where.

    Attributes:
        out: Folder of logs, spools and progress; one of an earlier run with the same seed goes on.
        rate: Records a second of each agent.
        pause_s: The database stands still so long (SIGSTOP) after the kills; 0: it does not.
    """

    out: Path
    count: int
    seed: int
    agents: int
    rate: float
    pause_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Found:
    """What became of the records.

    Attributes:
        subject: What was done to whom.
        made: Records that agents' ledgers name.
        lost: Of these, those that are not in the database.
        doubled: Rows beyond one for a record, and what the sums count beyond or below the rows.
        hub_mib: The hub's memory; at its most in a pause, else at the end.
    """

    subject: str
    made: int
    stored: int
    lost: int
    doubled: int
    seconds: float
    hub_mib: float


@dataclass(slots=True)
class _Progress:
    """What is kept between interruptions."""

    seed: int
    port: int  # the database's
    kills: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_KINDS, 0))

    @property
    def count(self) -> int:
        """Kills so far."""
        return sum(self.kills.values())


def bench(order: Order, say: Callable[[str], None]) -> list[Found]:
    """Kills, waits until all agents are rid of their records, and counts.

    Raises:
        InvalidInputError: mosquitto or PostgreSQL is not installed, or the folder is of another
            seed.
        ProgramError: A program ended by itself, or did not come to its end.
        OutputError: The folder cannot be written.
    """
    mosquitto_program()
    postgres_programs()
    try:
        order.out.mkdir(parents=True, exist_ok=True)
        order.out.chmod(0o755)  # where PostgreSQL runs as another account
        (order.out / ENOUGH).unlink(missing_ok=True)
        return _run(order, _read(order), say)
    except OSError as error:
        raise OutputError(f"{order.out} cannot be written: {error}") from error


def _run(order: Order, progress: _Progress, say: Callable[[str], None]) -> list[Found]:
    began = time.monotonic()
    with ExitStack() as stack:
        victims = _victims(order, progress)
        for victim in victims.values():
            stack.callback(victim.stop)
            victim.start()
        deadline = time.monotonic() + START_S
        for victim in victims.values():
            victim.wait_ready(deadline)
        for number in range(progress.count, order.count):
            _kill(number, order, victims, progress, say)
        mib = _pause(order, victims, say) if order.pause_s else 0.0
        say("waiting until every record has its receipt")
        (order.out / ENOUGH).touch()
        for name, victim in victims.items():
            if name.startswith("agent"):
                victim.wait_ended(time.monotonic() + DRAIN_S + START_S)
        mib = mib or victims["hub"].memory_bytes() / _MIB
        killed = ", ".join(f"{progress.kills[kind]} {kind}" for kind in _KINDS)
        done = f"{progress.count} kills ({killed})"
        if order.pause_s:
            done += f", database paused {order.pause_s:g} s"
        return [_count(order, url_of(progress.port), done, time.monotonic() - began, mib)]


def _kill(
    number: int,
    order: Order,
    victims: dict[str, Victim],
    progress: _Progress,
    say: Callable[[str], None],
) -> None:
    rng = random.Random(f"{order.seed} {number}")
    kind = rng.choice(_KINDS)
    name = f"agent-{rng.randrange(order.agents)}" if kind == "agent" else kind
    victims[name].wait_ready(time.monotonic() + START_S)
    time.sleep(rng.uniform(0, LONGEST_UP_S))
    for each in victims.values():
        each.check()
    victims[name].kill()
    progress.kills[kind] += 1
    _write(order, progress)
    say(f"kill {number + 1} of {order.count}: {name}")
    time.sleep(rng.uniform(0, LONGEST_DOWN_S))
    victims[name].start()


def _pause(order: Order, victims: dict[str, Victim], say: Callable[[str], None]) -> float:
    """The hub's memory at its most, in MiB, while the database stands still."""
    hub, database = victims["hub"], victims["database"]
    for victim in victims.values():
        victim.wait_ready(time.monotonic() + START_S)
    time.sleep(LONGEST_UP_S)
    most = before = hub.memory_bytes()
    say(f"database paused for {order.pause_s:g} s; the hub has {before / _MIB:.0f} MiB")
    database.stall()
    try:
        ends_at = time.monotonic() + order.pause_s
        while time.monotonic() < ends_at:
            time.sleep(_LOOK_S)
            most = max(most, hub.memory_bytes())
    finally:
        database.go_on()
    say(f"the hub had {most / _MIB:.0f} MiB at most")
    return most / _MIB


def _count(order: Order, url: str, done: str, seconds: float, mib: float) -> Found:
    """Holds ledgers against the database."""
    made = {
        (f"agent-{index}", *line.split())
        for index in range(order.agents)
        for line in ledger_of(order.out, f"agent-{index}").read_text("ascii").splitlines()
    }
    with Database(url) as database:
        names = "SELECT node_id, boot_id, sequence FROM v_picture"
        _, rows = database.select(names, 1 << 31)
        _, ((summed,),) = database.select("SELECT SUM(pictures) FROM picture_sum", 1)
    stored = {(node, boot, str(sequence)) for node, boot, sequence in rows}
    doubled = len(rows) - len(stored) + abs(int(summed or 0) - len(rows))
    return Found(done, len(made), len(rows), len(made - stored), doubled, seconds, mib)


# ── Victims and progress ──────────────────────────────────────────────────────────────────


def _victims(order: Order, progress: _Progress) -> dict[str, Victim]:
    out, port = order.out, free_port()

    def victim(name: str, *arguments: str, says: str | None = "ready\n") -> Victim:
        return Victim(name, [f"simulations.{arguments[0]}", *arguments[1:]], out / "logs", says)

    found = {
        "database": victim(
            "database", "kills.database", str(out / "postgres"), str(progress.port), says=None
        ),
        "broker": victim("broker", "broker", str(port), "--kind", "mosquitto", says=None),
        "hub": victim("hub", "kills.hub", str(port), url_of(progress.port)),
    }
    found["database"].listens_on = progress.port
    found["broker"].listens_on = port
    for index in range(order.agents):
        name = f"agent-{index}"
        rate = str(order.rate)
        found[name] = victim(name, "kills.agent", str(out.resolve()), name, str(port), rate)
    return found


def _read(order: Order) -> _Progress:
    file = order.out / _PROGRESS
    if not file.exists():
        progress = _Progress(order.seed, free_port())
        _write(order, progress)
        return progress
    found = json.loads(file.read_text("utf-8"))
    if found["seed"] != order.seed:
        raise InvalidInputError(
            f"{order.out} holds a run of --seed {found['seed']}: take that, or another folder"
        )
    return _Progress(**found)


def _write(order: Order, progress: _Progress) -> None:
    draft = order.out / f"{_PROGRESS}.draft"
    draft.write_text(json.dumps(asdict(progress)), "utf-8")
    draft.replace(order.out / _PROGRESS)
