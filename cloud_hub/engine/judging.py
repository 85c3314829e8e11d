"""The cloud's draws and verdicts, from the logits of one session's positions; pure."""

from collections.abc import Sequence

import numpy as np

from cloud_hub.engine.checks import Looked, sample
from cloud_hub.engine.requests import Backlog, Logits, Tokens
from cloud_hub.engine.sessions import Session
from fleet.decoding.residual import Evidence, judge_residual, luck_of
from fleet.decoding.sampling import draw, law, sharpen
from fleet.decoding.top_laws import NO_LAWS, TopLaws, top_laws
from fleet.decoding.verify import Verdict, judge


def judged(session: Session, backlog: Backlog, laws: Logits) -> tuple[Verdict, list[float]]:
    """The verdict by the session's rule, from the logits [n + 1, V] of the backlog's positions.

    With it the cloud's probabilities of what it has put or left at the judged positions.
    """
    rule = _by_residual if session.rule.name == "residual" else _by_shared_noise
    return rule(session, backlog, laws)


def drawn(session: Session, positions: Sequence[int], logits: Logits) -> tuple[Tokens, list[float]]:
    """The cloud's draws [k] at the positions, by the picture's noise, and their probabilities."""
    if not positions:
        return np.zeros(0, np.int64), []
    sharp = sharpen(logits, session.sampling)
    tokens = draw(sharp, session.luck.noise(positions, logits.shape[-1]))
    return tokens, law(sharp)[np.arange(len(tokens)), tokens].tolist()


def taught(session: Session, looked: Looked) -> TopLaws:
    """What the device learns of a forward: draws and laws at its share of the drafts' positions.

    The choice is that of the spot checks, by the picture's noise: it depends on no token.
    """
    lessons = session.lessons
    chosen = sample(session, looked, lessons.share) if lessons.size else None
    if chosen is None:
        return NO_LAWS
    positions = chosen.positions.tolist()
    tokens, _ = drawn(session, positions, chosen.logits)
    return top_laws(positions, tokens, chosen.logits, lessons.size)


def _by_shared_noise(
    session: Session, backlog: Backlog, laws: Logits
) -> tuple[Verdict, list[float]]:
    """The verdict, and the cloud's probabilities of its own draws at the judged positions."""
    has_bonus = backlog.end < session.positions
    looked = np.ones(len(backlog.run) + has_bonus, bool)
    looked[: len(backlog.run)] = backlog.uncertain
    positions = (backlog.start + looked.nonzero()[0]).tolist()
    draws, confidences = drawn(session, positions, laws[: len(looked)][looked])
    targets = np.zeros(len(looked), np.int64)
    targets[looked] = draws
    return judge(backlog.run.tokens, backlog.uncertain, targets), confidences


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
