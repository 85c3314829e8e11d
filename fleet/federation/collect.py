"""Sending a round's messages and waiting for the answers: a deadline, a quorum, and a grace."""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from flwr.app import Message
from flwr.serverapp import Grid

from fleet.errors import FleetError

POLL_S = 0.02
_SLOWEST_POLL_S = 0.5


class Stopped(FleetError):
    """Somebody asked for the rounds to stop; the round under way can be resumed."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a phase waits.

    After `quorum` (a share of those asked) have answered, the others get `grace_s` more, within
    `deadline_s` of the beginning. With a quorum of 1 the result does not depend on who is fast.
    """

    deadline_s: float
    quorum: float
    grace_s: float


@dataclass(frozen=True, slots=True)
class Progress:
    """Who is awaited, and until when."""

    number: int
    phase: str
    asked: int
    awaited: tuple[int, ...]
    left_s: float


Watch = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class Observer:
    """Who looks at a run from outside: told what it waits for, and asked whether it shall stop."""

    watch: Watch = lambda _: None
    stopped: Callable[[], bool] = lambda: False


NOBODY = Observer()


@dataclass(frozen=True, slots=True, eq=False)
class Way:
    """How a round reaches its nodes, and who looks at it."""

    grid: Grid
    observer: Observer = NOBODY


def collect(
    way: Way, messages: Iterable[Message], patience: Patience, number: int, phase: str
) -> dict[int, Message]:
    """The answers by node, error replies included; who is missing did not answer in time.

    Raises:
        Stopped: Somebody asked for it.
    """
    asked = sorted(messages, key=lambda message: message.metadata.dst_node_id)
    begin = time.monotonic()
    ids = list(way.grid.push_messages(asked))
    waiting = dict(zip(ids, (each.metadata.dst_node_id for each in asked), strict=True))
    answers: dict[int, Message] = {}
    until = begin + patience.deadline_s
    enough = math.ceil(patience.quorum * len(asked))
    poll_s, has_quorum = POLL_S, False
    while waiting:
        for reply in way.grid.pull_messages(list(waiting)):
            node = waiting.pop(reply.metadata.reply_to_message_id, None)
            if node is not None:
                answers[node] = reply
                poll_s = POLL_S
        now = time.monotonic()
        if not has_quorum and len(answers) >= enough:
            has_quorum, until = True, min(until, now + patience.grace_s)
        left_s = max(until - now, 0.0)
        way.observer.watch(Progress(number, phase, len(asked), tuple(waiting.values()), left_s))
        if way.observer.stopped():
            raise Stopped(f"round {number} was stopped: resume it with what has been answered")
        if not left_s:
            break
        if waiting:
            time.sleep(min(poll_s, left_s))
            poll_s = min(poll_s * 1.5, _SLOWEST_POLL_S)
    return answers
