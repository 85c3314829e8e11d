"""What the faults of processes do, and when; agents bring the others upon themselves."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from simulations.real.crowds import Crowd
from simulations.real.servers import Servers
from simulations.scenarios.faults import (
    Fault,
    FillDatabase,
    KillAgents,
    KillBroker,
    KillWorker,
    StallAgents,
    StallBroker,
    StallWorker,
    StopDatabase,
)

Act = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Action:
    """The beginning or the end of a fault."""

    at_s: float
    state: str
    kind: str
    nodes: tuple[str, ...]
    act: Act


def actions_of(
    fault: Fault, crowds: Sequence[Crowd], servers: Servers, now: Callable[[], float]
) -> Iterator[Action]:
    """What a fault does to processes; `crowds` are those that it falls on."""
    acts = _on_agents(fault, crowds, now) or _on_servers(fault, servers)
    if acts is not None:
        nodes = tuple(node for crowd in crowds for node in crowd.nodes)
        yield Action(fault.at_s, "begins", fault.kind, nodes, acts[0])
        yield Action(fault.ends_s, "ends", fault.kind, nodes, acts[1])


def _on_agents(
    fault: Fault, crowds: Sequence[Crowd], now: Callable[[], float]
) -> tuple[Act, Act] | None:
    match fault:
        case KillAgents():
            kills = [partial(_kill, crowd, now) for crowd in crowds]
            return _each(kills), _each([crowd.start_again for crowd in crowds])
        case StallAgents():
            return _each([crowd.stall for crowd in crowds]), _each([it.go_on for it in crowds])
        case _:
            return None


def _on_servers(fault: Fault, servers: Servers) -> tuple[Act, Act] | None:
    match fault:
        case KillBroker():
            return servers.broker.kill, servers.broker.start
        case StallBroker():
            return servers.broker.stall, servers.broker.go_on
        case KillWorker(worker=number):
            return servers.workers[number].kill, servers.workers[number].start
        case StallWorker(worker=number):
            return servers.workers[number].stall, servers.workers[number].go_on
        case StopDatabase():
            return servers.lock.take, servers.lock.leave
        case FillDatabase():
            return servers.workers[0].fill_disk, servers.workers[0].make_room
        case _:
            return None


def _kill(crowd: Crowd, now: Callable[[], float]) -> None:
    crowd.kill(now())


def _each(acts: Sequence[Act]) -> Act:
    def act() -> None:
        for one in acts:
            one()

    return act
