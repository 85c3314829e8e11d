"""A scenario on the real clock: real broker, hub and workers as processes, real agents in crowds.

Each program has its own log in `logs/`; the events of all crowds become one `events.jsonl`.
"""

import json
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from fleet.errors import InvalidInputError, OutputError, RequestTimeout
from fleet.models.bundle import DEVICE_FOLDER, PUBLIC_KEY
from simulations.broker import Kind, mosquitto_program
from simulations.history.events import Event
from simulations.history.tally import Tally
from simulations.processes import free_port
from simulations.real.actions import Action, actions_of
from simulations.real.crowd import CrowdOrder
from simulations.real.crowds import Crowd
from simulations.real.ear import Ear
from simulations.real.parts import Part, parts_of
from simulations.real.servers import Servers, servers_of
from simulations.results import claim
from simulations.scenarios.faults import VIRTUAL_ONLY
from simulations.scenarios.population import population
from simulations.scenarios.scenario import Scenario
from simulations.site import Site
from simulations.world.fleet import DRAIN_S
from simulations.world.world import DATABASE, EVENTS

_START_S = 300.0
_COMFORT_S = 120.0  # beyond the drain, before a crowd that does not end is ended
_LEAD_S = 0.2  # between the word and the beginning
_POLL_S = 0.2
_MOST_PROCESSES = 64  # of agents, those that signals fall on included


@dataclass(frozen=True, slots=True)
class RealOrder:
    """What to run, with how many processes of agents, on which family (None: the shipped one)."""

    scenario: Scenario
    seed: int
    out: Path
    crowds: int
    models: Path | None = None
    broker: Kind = "trial"
    tick_s: float = 5.0


def run_real(order: RealOrder, on_tick: Callable[[Tally], None] = lambda _: None) -> Tally:
    """Runs a scenario to its end; leaves `events.jsonl` and `hub.db` in the order's folder.

    Raises:
        InvalidInputError: The scenario has faults or devices that only the virtual clock has.
        ProgramError: A program ended, or did not start.
        OutputError: The folder cannot be written, or holds something else.
    """
    _check(order)
    tally = Tally()
    try:
        claim(order.out)
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


def _run(
    order: RealOrder, site: Site, tally: Tally, on_tick: Callable[[Tally], None]
) -> list[Event]:
    ear = Ear([], tally)
    world = {"scenario": order.scenario.name, "seed": order.seed}
    ear.say({"at": 0.0, "event": "world", **world})
    begins_at: list[float] = []

    def now() -> float:
        return round(time.monotonic() - begins_at[0], 6)

    with ExitStack() as stack:
        servers = servers_of(site, order.scenario.hub.workers, order.broker)
        stack.callback(servers.lock.leave)
        for server in servers.all:
            stack.callback(server.stop)
            server.start(waits=True)
        parts = parts_of(order.scenario, order.seed, order.crowds)
        crowds = [_crowd(order, site, ear, part, number) for number, part in enumerate(parts)]
        for crowd in crowds:
            stack.callback(crowd.stop)
            crowd.start()
        deadline = time.monotonic() + _START_S
        for crowd in crowds:
            crowd.wait_ready(deadline)
        begins_at.append(time.monotonic() + _LEAD_S)
        _write_at_once(site.folder / "state" / "go", repr(begins_at[0]))
        actions = [
            action
            for index, fault in enumerate(order.scenario.faults)
            for action in actions_of(fault, _those_of(crowds, parts, index), servers, now)
        ]
        _attend(order, crowds, servers, ear, (actions, now, on_tick))
    on_tick(tally)
    return ear.heard


def _attend(
    order: RealOrder,
    crowds: Sequence[Crowd],
    servers: Servers,
    ear: Ear,
    plan: tuple[list[Action], Callable[[], float], Callable[[Tally], None]],
) -> None:
    """Brings the faults of processes and listens, until all is over and all crowds have ended."""
    actions, now, on_tick = plan
    to_do = sorted(actions, key=lambda action: action.at_s)
    ends_at = order.scenario.quiet_from_s + DRAIN_S + _COMFORT_S
    tick_at = order.tick_s
    while to_do or _running(crowds):
        while to_do and to_do[0].at_s <= now():
            action = to_do.pop(0)
            nodes, said = list(action.nodes), {"state": action.state, "kind": action.kind}
            ear.say({"at": now(), "event": "fault", **said, "nodes": nodes})
            action.act()
        if now() > ends_at:
            raise RequestTimeout(f"the agents did not come to rest: see {order.out / 'logs'}")
        for server in servers.all:
            server.check()
        ear.listen()
        if now() >= tick_at:
            tick_at = now() + order.tick_s
            ear.tally.at_s = now()  # also where nothing happens
            on_tick(ear.tally)
        time.sleep(_POLL_S)
    ear.listen()


def _running(crowds: Sequence[Crowd]) -> list[Crowd]:
    """All of those that live; raises ProgramError if one of them all has failed."""
    return [crowd for crowd in crowds if crowd.is_running]


def _those_of(crowds: Sequence[Crowd], parts: Sequence[Part], fault: int) -> list[Crowd]:
    """The crowds that a fault, by its number, falls on."""
    pairs = zip(crowds, parts, strict=True)
    return [crowd for crowd, part in pairs if fault in part.faults]


def _crowd(order: RealOrder, site: Site, ear: Ear, part: Part, number: int) -> Crowd:
    state, models = site.folder / "state", order.models
    fleet = population(order.scenario, order.seed)
    told = CrowdOrder(
        scenario=order.scenario.model_dump_json(),
        seed=order.seed,
        places=list(part.places),
        first_wishes={},
        port=site.port,
        folder=str(state / "nodes"),
        events="",
        go=str(state / "go"),
        bundle=str(models / DEVICE_FOLDER) if models else None,
        public_key=str(models / PUBLIC_KEY) if models else None,
    )
    nodes = [str(fleet[place].node) for place in part.places]
    return Crowd(f"crowd-{number}", nodes, told, site, ear)


def _write_at_once(file: Path, text: str) -> None:
    """So that nobody reads half of it."""
    draft = file.with_suffix(".draft")
    draft.write_text(text, encoding="utf-8")
    draft.replace(file)


def _check(order: RealOrder) -> None:
    scenario = order.scenario
    if order.crowds > scenario.devices:
        raise InvalidInputError(
            f"{order.crowds} processes for {scenario.devices} devices: take fewer"
        )
    for fault in scenario.faults:
        if fault.kind in VIRTUAL_ONLY:
            raise InvalidInputError(
                f"the fault {fault.kind!r} needs the virtual clock: take it out, or run the"
                " scenario with --clock virtual"
            )
    if scenario.rounds is not None:
        raise InvalidInputError(
            "the table [rounds] needs the virtual clock: take it out, or run the scenario with"
            " --clock virtual"
        )
    if (count := len(parts_of(scenario, order.seed, order.crowds))) > _MOST_PROCESSES:
        raise InvalidInputError(
            f"the faults kill-agents and stall-agents split the fleet into {count} processes, more"
            f" than {_MOST_PROCESSES}: take fewer of them"
        )
    if order.broker == "mosquitto":
        mosquitto_program()
