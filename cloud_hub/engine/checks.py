"""Drafts that a forward says something about though nobody asked: for spot checks; pure.

A backlog's forward gives the cloud's law at the positions that the device accepted by itself,
too. A share of them, chosen by the picture's own noise so that every worker chooses alike, is
handed on and compared with the cloud's draws when the answer is out.
"""

from collections.abc import Callable
from dataclasses import dataclass

from cloud_hub.engine.requests import Logits, Mask, Run, SessionKey, Tokens
from cloud_hub.engine.sessions import Session
from fleet.protocol.messages import Sampling


@dataclass(frozen=True, slots=True, eq=False)
class Looked:
    """Tokens from position `start` on that stand, or the first that fell, and their laws."""

    start: int
    run: Run  # [n]
    drafted: Mask  # [n]: the device's own drafts
    logits: Logits  # [n, V]: guided, each of the position of its token


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """Drafts of one picture, chosen for a check, with what the cloud needs to draw there."""

    key: SessionKey
    seed: int
    sampling: Sampling
    positions: Tokens  # [k]
    drafts: Tokens  # [k]
    local: Mask  # [k]: accepted on the device; the others were judged
    logits: Logits  # [k, V]


Watch = Callable[[Session, Looked], None]


def ignore(_session: Session, _looked: Looked) -> None:
    """Watches nothing."""


def sample(session: Session, looked: Looked, share: float) -> Sample | None:
    """The chosen ones of the drafts that a forward looked at, if there is one.

    Of a history that is run for its checks, so many more that every token of the fleet has the
    same chance, whether the cloud was asked about its picture or not.
    """
    positions = looked.start + looked.drafted.nonzero()[0]
    if session.unchecked is not None:
        positions = positions[positions >= session.unchecked.start]
        share /= session.unchecked.share
    if not len(positions):
        return None
    positions = positions[session.luck.chosen(positions, share)]
    if not len(positions):
        return None
    rows = positions - looked.start
    return Sample(
        key=session.key,
        seed=session.seed,
        sampling=session.sampling,
        positions=positions,
        drafts=looked.run.tokens[rows],
        local=looked.run.local[rows],
        logits=looked.logits[rows],
    )
