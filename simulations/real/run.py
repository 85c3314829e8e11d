"""A scenario on the real clock: real broker, hub and workers as processes, real agents in crowds.

Each program has its own log in `logs/`; the events of all crowds become one `events.jsonl`.
"""

import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from fleet.errors import InvalidInputError, OutputError, RequestTimeout
from fleet.models.bundle import DEVICE_FOLDER, PUBLIC_KEY
from simulations.history.events import Event
from simulations.history.tally import Tally
from simulations.processes import Program, free_port, program
from simulations.real.crowd import CrowdOrder, write_order
from simulations.scenarios.faults import Fault, KillBroker, KillWorker
from simulations.scenarios.scenario import Scenario
from simulations.site import Site, broker, hub, worker
from simulations.world.fleet import DRAIN_S
from simulations.world.world import DATABASE, EVENTS

ON_REAL_CLOCK = (
    "cut-links",
    "swallow-links",
    "slow-links",
    "kill-worker",
    "kill-broker",
)
_START_S = 300.0
_COMFORT_S = 120.0  # beyond the drain, before a crowd that does not end is ended
_LEAD_S = 0.2  # between the word and the beginning
_POLL_S = 0.2


@dataclass(slots=True)
class Ear:
    """Hears the events of all crowds."""

    files: Sequence[Path]
    tally: Tally
    heard: list[Event] = field(default_factory=list)
    _read: dict[Path, int] = field(default_factory=dict)

    def listen(self) -> None:
        """Takes the whole lines that were written since the last time."""
        for file in self.files:
            with file.open("rb") as stream:
                stream.seek(self._read.get(file, 0))
                data = stream.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._read[file] = self._read.get(file, 0) + len(whole)
            for line in whole.splitlines():
                self.say(json.loads(line))

    def say(self, event: Event) -> None:
        """Takes one event."""
        self.heard.append(event)
        self.tally.add(event)


@dataclass(frozen=True, slots=True)
class RealOrder:
    """What to run, with how many processes of agents, on which family (None: the shipped one)."""

    scenario: Scenario
    seed: int
    out: Path
    crowds: int
    models: Path | None = None
    tick_s: float = 5.0


def run_real(order: RealOrder, on_tick: Callable[[Tally], None] = lambda _: None) -> Tally:
    """Runs a scenario to its end; leaves `events.jsonl` and `hub.db` in the order's folder.

    Raises:
        InvalidInputError: The scenario has faults or devices that only the virtual clock has.
        ProgramError: A program ended, or did not start.
        OutputError: The folder cannot be written.
    """
    _check(order)
    tally = Tally()
    try:
        order.out.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(order.out / "state", ignore_errors=True)
        shutil.rmtree(order.out / "logs", ignore_errors=True)
        site = Site(order.out, free_port(), order.models, own_broker=False, start_s=_START_S)
        heard = _run(order, site, tally, on_tick)
        with (order.out / EVENTS).open("w", encoding="utf-8") as stream:
            for event in sorted(heard, key=lambda event: event["at"]):
                stream.write(json.dumps(event, ensure_ascii=False) + "\n")
        shutil.copyfile(site.state("hub") / DATABASE, order.out / DATABASE)
    except OSError as error:
        raise OutputError(f"{order.out} cannot be written: {error.strerror}") from error
    return tally


@dataclass(slots=True)
class _Server:
    """A program that may be killed and started again."""

    open: Callable[[], AbstractContextManager[Program]]
    _stack: ExitStack = field(default_factory=ExitStack)
    _program: Program | None = None

    def start(self) -> None:
        """Returns when it listens."""
        self._program = self._stack.enter_context(self.open())

    def kill(self) -> None:
        """SIGKILL."""
        if self._program is not None:
            self._program.kill()
        self._stack.close()

    def stop(self) -> None:
        """SIGTERM."""
        self._stack.close()


def _run(
    order: RealOrder, site: Site, tally: Tally, on_tick: Callable[[Tally], None]
) -> list[Event]:
    files = [site.folder / "state" / f"events-{part}.jsonl" for part in range(order.crowds)]
    ear = Ear(files, tally)
    world = {"scenario": order.scenario.name, "seed": order.seed}
    ear.say({"at": 0.0, "event": "world", **world})
    with ExitStack() as stack:
        servers = _servers(site, order.scenario.hub.workers)
        for server in servers.values():
            stack.callback(server.stop)
            server.start()
        crowds = [stack.enter_context(_crowd(order, site, part)) for part in range(order.crowds)]
        deadline = time.monotonic() + _START_S
        for each in crowds:
            each.wait_for("become ready", partial(each.says, "ready\n"), deadline)
        begins_at = time.monotonic() + _LEAD_S
        _write_at_once(site.folder / "state" / "go", repr(begins_at))
        _attend(order, crowds, servers, ear, lambda: time.monotonic() - begins_at, on_tick)
    on_tick(tally)
    return ear.heard


def _attend(
    order: RealOrder,
    crowds: Sequence[Program],
    servers: dict[str, _Server],
    ear: Ear,
    now: Callable[[], float],
    on_tick: Callable[[Tally], None],
) -> None:
    """Brings the faults of servers and listens, until all crowds have ended."""
    to_do = sorted(_actions(order.scenario.faults, servers), key=lambda action: action[0])
    ends_at = order.scenario.quiet_from_s + DRAIN_S + _COMFORT_S
    tick_at = order.tick_s
    while any(each.is_running for each in crowds):
        while to_do and to_do[0][0] <= now():
            _, state, kind, act = to_do.pop(0)
            ear.say({"at": now(), "event": "fault", "state": state, "kind": kind, "nodes": []})
            act()
        if now() > ends_at:
            raise RequestTimeout(f"the agents did not come to rest: see {order.out / 'logs'}")
        ear.listen()
        if now() >= tick_at:
            tick_at = now() + order.tick_s
            on_tick(ear.tally)
        time.sleep(_POLL_S)
    ear.listen()
    for each in crowds:
        if each.process.returncode:
            raise each.failure(f"ended with exit code {each.process.returncode}")


def _actions(
    faults: Sequence[Fault], servers: dict[str, _Server]
) -> Iterator[tuple[float, str, str, Callable[[], None]]]:
    """What is to be done to servers, and when."""
    for fault in faults:
        match fault:
            case KillBroker():
                server = servers["broker"]
            case KillWorker(worker=number):
                server = servers[f"worker {number}"]
            case _:
                continue
        yield fault.at_s, "begins", fault.kind, server.kill
        yield fault.ends_s, "ends", fault.kind, server.start


def _servers(site: Site, workers: int) -> dict[str, _Server]:
    """Broker and workers, in the order in which they start."""
    servers = {
        "broker": _Server(lambda: broker(site)),
        "worker 0": _Server(lambda: hub(site)),
    }
    for number in range(1, workers):
        servers[f"worker {number}"] = _Server(partial(worker, site, f"worker-{number}"))
    return servers


def _crowd(order: RealOrder, site: Site, part: int) -> AbstractContextManager[Program]:
    state, models = site.folder / "state", order.models
    file = state / f"crowd-{part}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    (state / f"events-{part}.jsonl").touch()
    write_order(
        file,
        CrowdOrder(
            scenario=order.scenario.model_dump_json(),
            seed=order.seed,
            part=part,
            parts=order.crowds,
            port=site.port,
            folder=str(state / "nodes"),
            events=str(state / f"events-{part}.jsonl"),
            go=str(state / "go"),
            bundle=str(models / DEVICE_FOLDER) if models else None,
            public_key=str(models / PUBLIC_KEY) if models else None,
        ),
    )
    name = f"crowd-{part}"
    return program(name, ["simulations.real.crowd", str(file)], {}, site.log(name))


def _write_at_once(file: Path, text: str) -> None:
    """So that nobody reads half of it."""
    draft = file.with_suffix(".draft")
    draft.write_text(text, encoding="utf-8")
    draft.replace(file)


def _check(order: RealOrder) -> None:
    if order.crowds > order.scenario.devices:
        raise InvalidInputError(
            f"{order.crowds} processes for {order.scenario.devices} devices: take fewer"
        )
    for fault in order.scenario.faults:
        if fault.kind not in ON_REAL_CLOCK:
            raise InvalidInputError(
                f"the fault {fault.kind!r} needs the virtual clock; the real one has"
                f" {', '.join(ON_REAL_CLOCK)}"
            )
