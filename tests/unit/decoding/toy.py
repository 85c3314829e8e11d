"""A whole collaborative decoder over fifty symbols: tables for models, a coin for the network."""

from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fleet.decoding.accept import START as FRESH
from fleet.decoding.accept import Decision, Policy, Track, decide, follow, score_of
from fleet.decoding.noise import gumbel
from fleet.decoding.residual import (
    Evidence,
    QuantisedLaw,
    judge_residual,
    law_to_send,
    luck_of,
)
from fleet.decoding.sampling import draw, law
from fleet.decoding.uncertainty import scores, unit_codebook
from fleet.decoding.verify import NO_TOKEN, SHARED_NOISE, Rule, Verdict, judge
from fleet.interval import interval_softmax
from fleet.prediction import FEATURE_SIZE, Prediction

SYMBOLS = 50
LENGTH = 8
START = SYMBOLS  # stands for the token before the first


@dataclass(frozen=True)
class Pair:
    """Logits [LENGTH, SYMBOLS + 1, SYMBOLS] by position and previous token, and device scores."""

    cloud: NDArray[np.float32]
    device: NDArray[np.float32]
    scores: NDArray[np.floating]

    def cloud_law(self, position: int, previous: int) -> NDArray[np.floating]:
        return law(self.cloud[position, previous].astype(np.float64))

    def ranking(self, position: int, previous: int) -> NDArray[np.int64]:
        """Codes [SYMBOLS] from the most underrated by the device to the most overrated."""
        return np.argsort(self.device[position, previous] - self.cloud[position, previous])


@dataclass(frozen=True)
class Timing:
    """What must not matter: the window, requests in flight, the bonus, and when answers come."""

    window: int = 3
    in_flight: int = 2
    use_bonus: bool = True
    seed: int = 0


@dataclass(eq=False)
class Picture:
    """What a run leaves."""

    tokens: list[int] = field(default_factory=list)
    verified: list[bool] = field(default_factory=list)
    tracks: list[Track] = field(default_factory=lambda: [FRESH])  # before each position
    laws: dict[int, QuantisedLaw] = field(default_factory=dict)  # of uncertain drafts
    corrected: int = 0
    requests: int = 0
    bonuses: int = 0

    def cut(self, length: int) -> None:
        del self.tokens[length:]
        del self.verified[length:]
        del self.tracks[length + 1 :]


@dataclass(frozen=True)
class Request:
    """A backlog under way."""

    branch: int
    start: int
    drafts: list[int]
    uncertain: list[bool]


def make_pair(seed: int, distance: float = 1.0) -> Pair:
    """A cloud table, a device table at some distance, and radii that know roughly how far."""
    rng = np.random.default_rng(seed)
    shape = (LENGTH, SYMBOLS + 1, SYMBOLS)
    cloud = rng.normal(size=shape) * rng.choice([0.5, 2.0, 4.0], size=(*shape[:2], 1))
    error = rng.normal(size=shape) * rng.choice([0.1, 1.0], size=(*shape[:2], 1)) * distance
    radius = np.abs(error) * rng.uniform(0.5, 2, size=shape)
    device = (cloud + error).astype(np.float32)
    interval = interval_softmax(device, radius.astype(np.float32))
    codebook = unit_codebook(rng.normal(size=(SYMBOLS, 8)).astype(np.float32))
    return Pair(cloud.astype(np.float32), device, scores(interval, codebook))


def alone(table: NDArray[np.float32], seed: int) -> list[int]:
    """The picture of one model without the other."""
    noise = gumbel(seed, np.arange(LENGTH), SYMBOLS)
    tokens: list[int] = []
    for position in range(LENGTH):
        previous = tokens[-1] if tokens else START
        tokens.append(int(draw(table[position, previous], noise[position])))
    return tokens


class Decoder:
    """One picture, drafted by the device while the cloud's answers are under way."""

    def __init__(self, pair: Pair, policy: Policy, seed: int, timing: Timing, rule: Rule) -> None:
        self.pair = pair
        self.policy = policy
        self.rule = rule
        self.timing = timing
        self.seed = seed
        self.noise = gumbel(seed, np.arange(LENGTH), SYMBOLS)
        self.coin = np.random.default_rng(timing.seed)
        self.picture = Picture()
        self.sent = 0  # tokens before this one are known to the cloud
        self.branch = 0
        self.under_way: deque[Request] = deque()
        self.bonus: dict[int, int] = {}

    def run(self) -> Picture:
        while len(self.picture.tokens) < LENGTH or self._unsettled() or self.under_way:
            if self.under_way and (self._must_wait() or self.coin.random() < 0.4):
                self._receive()
            elif len(self.picture.tokens) < LENGTH and not self._is_full():
                self._draft()
            else:
                self._send()
            if self._wants_to_send() and self.coin.random() < 0.5:
                self._send()
        return self.picture

    def _draft(self) -> None:
        position = len(self.picture.tokens)
        previous = self.picture.tokens[-1] if position else START
        token = int(draw(self.pair.device[position, previous], self.noise[position]))
        prediction = Prediction(
            position,
            token,
            self.pair.scores[position, previous],
            np.zeros(FEATURE_SIZE),
            np.zeros(1),
            self.pair.device[position, previous],
        )
        score, track = score_of(prediction, self.policy, self.seed), self.picture.tracks[-1]
        verify = decide(self.policy, score, position, track) is Decision.VERIFY
        if verify and self.rule.name == "residual":
            sent = law_to_send(self.pair.device[position, previous])
            token, self.picture.laws[position] = sent.draw(self.noise[position]), sent
        bonus = self.bonus.pop(position, NO_TOKEN)
        if verify and bonus != NO_TOKEN:  # the verdict is here already
            self.picture.bonuses += 1
            token = bonus
        self.picture.tokens.append(token)
        self.picture.verified.append(verify)
        self.picture.tracks.append(follow(self.policy, track, verify))

    def _unsettled(self) -> list[int]:
        return [
            at for at in range(self.sent, len(self.picture.tokens)) if self.picture.verified[at]
        ]

    def _oldest_unsettled(self) -> int | None:
        for request in self.under_way:
            if request.branch == self.branch and any(request.uncertain):
                return request.start + request.uncertain.index(True)
        open_here = self._unsettled()
        return open_here[0] if open_here else None

    def _is_full(self) -> bool:
        oldest = self._oldest_unsettled()
        return oldest is not None and len(self.picture.tokens) - oldest > self.timing.window

    def _wants_to_send(self) -> bool:
        return bool(self._unsettled()) and len(self.under_way) < self.timing.in_flight

    def _must_wait(self) -> bool:
        stuck = self._is_full() or len(self.picture.tokens) == LENGTH
        return stuck and not self._wants_to_send()

    def _send(self) -> None:
        if not self._wants_to_send():
            return
        drafts, marks = self.picture.tokens[self.sent :], self.picture.verified[self.sent :]
        self.under_way.append(Request(self.branch, self.sent, drafts, marks))
        self.sent = len(self.picture.tokens)
        self.picture.requests += 1

    def _receive(self) -> None:
        request = self.under_way.popleft()
        if request.branch != self.branch:  # drafted on tokens that have fallen since
            return
        verdict = self._cloud(request)
        after = request.start + verdict.accepted
        if verdict.accepted < len(request.drafts):
            self.branch += 1
            self.picture.cut(after)
            self.picture.tokens.append(verdict.next_token)
            self.picture.verified.append(True)
            self.picture.tracks.append(follow(self.policy, self.picture.tracks[-1], True))
            self.picture.corrected += 1
            self.bonus.clear()
            self.sent = after + 1
        elif (
            self.timing.use_bonus
            and self.rule.name == "gumbel"
            and len(self.picture.tokens) == after
        ):
            self.bonus[after] = verdict.next_token

    def _cloud(self, request: Request) -> Verdict:
        end = request.start + len(request.drafts)
        previous = [*self.picture.tokens[: request.start], *request.drafts]
        before = [previous[at - 1] if at else START for at in range(request.start, end + 1)]
        positions = [at for at in range(request.start, end + 1) if at < LENGTH]
        logits = self.pair.cloud[positions, before[: len(positions)]]
        if self.rule.name == "residual":
            return self._by_residual(request, logits[: len(request.drafts)])
        return judge(
            np.array(request.drafts),
            np.array(request.uncertain),
            draw(logits, self.noise[positions]),
        )

    def _by_residual(self, request: Request, logits: NDArray[np.float32]) -> Verdict:
        positions = request.start + np.arange(len(request.drafts))
        drafts = np.zeros(logits.shape)
        for index, position in enumerate(positions):
            if request.uncertain[index]:
                drafts[index] = self.picture.laws[int(position)].dense(SYMBOLS)
        evidence = Evidence(
            np.array(request.drafts),
            np.array(request.uncertain),
            drafts,
            law(logits.astype(np.float64)),
        )
        luck = luck_of(self.seed, positions, SYMBOLS)
        return judge_residual(evidence, luck, self.rule.relaxation)


def decode(
    pair: Pair, policy: Policy, seed: int, timing: Timing, rule: Rule = SHARED_NOISE
) -> Picture:
    """One picture by device and cloud together."""
    return Decoder(pair, policy, seed, timing, rule).run()
