"""The cloud's draws and verdicts, from the logits of one session's positions; pure.

What is drawn with the picture's noise is asked for by `yield`: who settles a forward draws for all
of its sessions at once.
"""

from collections.abc import Generator
from typing import TypeVar

import numpy as np

from cloud_hub.engine.checks import Looked, sample
from cloud_hub.engine.requests import Backlog, Logits, Tokens
from cloud_hub.engine.sessions import Session
from fleet.decoding.draws import Ask, Drawn
from fleet.decoding.residual import Evidence, judge_residual, luck_of
from fleet.decoding.sampling import law, sharpen
from fleet.decoding.top_laws import NO_LAWS, TopLaws
from fleet.decoding.verify import Verdict, judge

T = TypeVar("T")
Drawing = Generator[Ask, Drawn, T]

_NONE_DRAWN = Drawn(np.zeros(0, np.int64), np.zeros(0, np.float32))


def judged(
    session: Session, backlog: Backlog, laws: Logits
) -> Drawing[tuple[Verdict, list[float]]]:
    """The verdict by the session's rule, from the logits [n + 1, V] of the backlog's positions.

    With it the cloud's probabilities of what it has put or left at the judged positions.
    """
    if session.rule.name == "residual":
        return _by_residual(session, backlog, laws)
    return (yield from _by_shared_noise(session, backlog, laws))


def drawn(
    session: Session, positions: Tokens, logits: Logits, likeliest: int = 0
) -> Drawing[Drawn]:
    """The cloud's draws at the positions [k], by the picture's noise, and its likeliest codes."""
    if not len(positions):
        return _NONE_DRAWN
    return (yield Ask(session.sampling, session.seed, positions, logits, likeliest))


def taught(session: Session, looked: Looked) -> Drawing[TopLaws]:
    """What the device learns of a forward: draws and laws at its share of the drafts' positions.

    The choice is that of the spot checks, by the picture's noise: it depends on no token.
    """
    lessons = session.lessons
    chosen = sample(session, looked, lessons.share) if lessons.size else None
    if chosen is None:
        return NO_LAWS
    found = yield from drawn(session, chosen.positions, chosen.logits, lessons.size)
    return found.laws


def _by_shared_noise(
    session: Session, backlog: Backlog, laws: Logits
) -> Drawing[tuple[Verdict, list[float]]]:
    """The verdict, and the cloud's probabilities of its own draws at the judged positions."""
    has_bonus = backlog.end < session.positions
    looked = np.ones(len(backlog.run) + has_bonus, bool)
    looked[: len(backlog.run)] = backlog.uncertain
    positions = backlog.start + looked.nonzero()[0]
    found = yield from drawn(session, positions, laws[: len(looked)][looked])
    targets = np.zeros(len(looked), np.int64)
    targets[looked] = found.tokens
    return judge(backlog.run.tokens, backlog.uncertain, targets), found.probabilities.tolist()


def _by_residual(session: Session, backlog: Backlog, laws: Logits) -> tuple[Verdict, list[float]]:
    """The verdict, and the cloud's probabilities of the tokens that stand or replace one.

    No bonus token: it would have other luck than a verdict on the same position, and whether a
    device has use for it is a matter of timing, on which a picture must not depend.
    """
    judged = np.flatnonzero(backlog.uncertain)
    target = np.zeros((len(backlog.run), laws.shape[-1]))
    target[judged] = law(sharpen(laws[judged], session.sampling))
    drafts = np.zeros_like(target)
    drafts[judged] = [sent.dense(laws.shape[-1]) for sent in backlog.laws]
    positions = np.arange(backlog.start, backlog.end)
    verdict = judge_residual(
        Evidence(backlog.run.tokens, backlog.uncertain, drafts, target),
        luck_of(session.seed, positions, laws.shape[-1]),
        session.rule.relaxation,
    )
    tokens = backlog.run.tokens.copy()
    if verdict.accepted < len(tokens):
        tokens[verdict.accepted] = verdict.next_token
    return verdict, [float(value) for value in target[judged, tokens[judged]]]
