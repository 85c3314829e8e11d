"""A picture's bookkeeping: whatever the network does, the tokens are those of stop-and-wait."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_agent.device import Order
from edge_agent.drafts import Backlog, Draft, Mark, Verdict
from edge_agent.picture import Picture
from edge_agent.verifier import verdict
from fleet.decoding.accept import Policy, verify_all
from fleet.errors import ProtocolError
from fleet.ids import RequestId
from fleet.protocol.arrays import FEATURE_BYTES, unpack_confidences, unpack_tokens
from fleet.protocol.messages import VerifyResponse
from tests.unit.edge_agent.toy import (
    CIAR,
    ToyDrafter,
    ToyHub,
    open_request,
    order,
    stop_and_wait,
    verify_request,
)

SIZE = 24


class World:
    """A picture, its drafter and a hub, joined by a network that Hypothesis moves."""

    def __init__(self, order: Order, window: int) -> None:
        self.order = order
        self.window = window
        self.picture = Picture(SIZE, 5)
        self.drafter = ToyDrafter(order, SIZE)
        self.hub = ToyHub(SIZE)
        self.up: list[tuple[RequestId, Backlog]] = []
        self.down: list[VerifyResponse] = []
        self.requests = 0
        self.rows = 0
        self.open()

    def open(self) -> None:
        answer = self.hub.open(open_request("open", self.order, self.picture.history()))
        self.picture.inject(
            [int(token) for token in unpack_tokens(answer.tokens)],
            [float(value) for value in unpack_confidences(answer.confidences)],
        )

    def draft(self) -> None:
        picture = self.picture
        self.rows = min(self.rows, picture.length)
        for position in range(self.rows, picture.length):
            self.drafter.step(position, self.before(position))
        picture.draft(self.drafter.step(picture.length, self.before(picture.length)))
        self.rows = min(picture.length, self.rows if picture.length <= self.rows else 10**6)

    def before(self, position: int) -> int:
        return int(self.picture.tokens[position - 1]) if position else -1

    def send(self) -> None:
        backlog = self.picture.backlog()
        if backlog is not None:
            self.requests += 1
            request_id = RequestId(f"r{self.requests}")
            self.picture.asked(request_id, backlog)
            self.up.append((request_id, backlog))

    def deliver_up(self, index: int, *, keep: bool) -> None:
        request_id, backlog = self.up[index % len(self.up)]
        if not keep:
            del self.up[index % len(self.up)]
        answer = self.hub.verify(verify_request(request_id, backlog))
        if isinstance(answer, VerifyResponse):
            self.down.append(answer)
        elif answer.reason == "unknown_session" or self.picture.is_first(request_id):
            self.reopen()
        elif answer.reason == "gap":
            self.picture.withdraw(request_id)

    def deliver_down(self, index: int, *, keep: bool) -> None:
        answer = self.down[index % len(self.down)]
        if not keep:
            del self.down[index % len(self.down)]
        self.picture.apply(answer.request_id, verdict(answer, 5))

    def reopen(self) -> None:
        self.picture.reopen()
        self.open()

    def step(self, action: int, index: int) -> None:
        """One thing that happens; what cannot happen now does not."""
        if action <= 3 and self.picture.may_draft(self.window):
            self.draft()
        elif action <= 5:
            self.send()
        elif action <= 9 and self.up:
            self.network_up(action, index)
        elif action <= 13 and self.down:
            self.network_down(action, index)
        elif action == 14 and index == 0:
            self.hub.sessions.clear()  # the worker died
        elif action == 15 and index == 1:
            self.reopen()

    def network_up(self, action: int, index: int) -> None:
        if action == 9:
            del self.up[index % len(self.up)]  # lost on its way
        else:
            self.deliver_up(index, keep=action == 8)

    def network_down(self, action: int, index: int) -> None:
        if action == 13:
            del self.down[index % len(self.down)]  # lost on its way back
        else:
            self.deliver_down(index, keep=action == 12)

    def finish(self) -> None:
        """A network that works brings every picture to its end."""
        for _ in range(40 * SIZE):
            if self.picture.is_complete:
                return
            if self.picture.may_draft(self.window):
                self.draft()
            self.send()
            while self.up:
                self.deliver_up(0, keep=False)
            while self.down:
                self.deliver_down(0, keep=False)
            if self.picture.in_flight:
                self.reopen()  # what the deadline of a lost request does
        raise AssertionError("the picture does not end")


def assert_lessons_fit(picture: Picture) -> None:
    """What the cloud told of a position stands beside what the device made of the same tokens."""
    told = [-float(each.log_probs[0]) for each in picture.lessons]
    assert told == [float(each.states.hidden[0]) for each in picture.lessons]


actions = st.lists(st.tuples(st.integers(0, 15), st.integers(0, 3)), max_size=150)
policies = st.sampled_from([CIAR, verify_all()])


@given(st.integers(0, 999), policies, st.integers(0, 4), st.integers(1, 9), actions)
@settings(max_examples=100)
def test_any_order_loss_and_repetition_of_messages_leaves_the_tokens_of_stop_and_wait(
    seed: int, policy: Policy, prefix: int, window: int, happenings: list[tuple[int, int]]
) -> None:
    wanted = order(seed, policy, prefix)
    world = World(wanted, window)

    for action, index in happenings:
        world.step(action, index)
        settled = world.picture.settled
        assert stop_and_wait(wanted, SIZE)[:settled] == list(world.picture.tokens[:settled])
        assert world.picture.length - settled <= window
    world.finish()

    assert stop_and_wait(wanted, SIZE) == list(world.picture.tokens)
    tally = world.picture.tally
    assert tally.prefix + tally.local + tally.verified == SIZE
    assert tally.unverified == 0
    assert len(world.picture.lessons) <= SIZE
    assert_lessons_fit(world.picture)


@given(st.integers(0, 999), st.integers(1, 9), actions, st.integers(0, 150))
@settings(max_examples=40)
def test_a_picture_that_falls_back_keeps_what_was_settled_and_marks_the_rest(
    seed: int, window: int, happenings: list[tuple[int, int]], when: int
) -> None:
    world = World(order(seed), window)
    for action, index in happenings[:when]:
        world.step(action, index)
    settled = world.picture.settled
    before = list(world.picture.tokens[:settled])

    world.picture.fall_back()
    while not world.picture.is_complete:
        world.draft()
    for answer in world.down:
        world.picture.apply(answer.request_id, verdict(answer, 5))

    assert before == list(world.picture.tokens[:settled])
    assert world.picture.backlog() is None
    assert Mark.PENDING not in world.picture.marks


def test_a_picture_keeps_what_the_cloud_tells_of_its_laws() -> None:
    world = World(order(1, verify_all(), prefix=3), window=9)

    world.finish()

    assert world.picture.rollbacks > 0
    assert len(world.picture.lessons) > SIZE // 2  # the others were settled by bonus tokens
    assert_lessons_fit(world.picture)


def drafted(*uncertain: bool) -> Picture:
    picture = Picture(8, 10)
    for position, unsure in enumerate(uncertain):
        picture.draft(Draft(position, 0.5, unsure, np.full(FEATURE_BYTES, position, np.float32)))
    return picture


def answer(picture: Picture, accepted: int, next_token: int, *, corrects: bool) -> Verdict:
    return Verdict(picture.branch + corrects, accepted, next_token, np.full(4, 0.5))


def test_a_backlog_ends_at_the_last_uncertain_token() -> None:
    picture = drafted(False, True, False, True, False, False)

    backlog = picture.backlog()

    assert backlog is not None
    assert [0, 1, 2, 3] == list(backlog.tokens)
    assert [False, True, False, True] == list(backlog.uncertain)
    assert [0, 2] == list(backlog.features[:, 0])


def test_certain_tokens_alone_are_not_sent() -> None:
    assert drafted(False, False).backlog() is None


def test_a_correction_drops_and_counts_the_drafts_after_it() -> None:
    picture = drafted(False, True, False, True, False)
    first = picture.backlog()
    assert first is not None
    picture.asked(RequestId("a"), first)

    picture.apply(RequestId("a"), answer(picture, 1, 9, corrects=True))

    assert [0, 9] == list(picture.tokens[: picture.length])
    assert 3 == picture.wasted
    assert 1 == picture.branch
    assert picture.settled == picture.length


def test_verdicts_wait_for_their_turn() -> None:
    picture = drafted(True)
    for name in ("a", "b"):
        backlog = picture.backlog()
        assert backlog is not None
        picture.asked(RequestId(name), backlog)
        picture.draft(Draft(1, 0.5, True, np.zeros(FEATURE_BYTES)))

    picture.apply(RequestId("b"), answer(picture, 1, 3, corrects=False))
    assert 0 == picture.settled
    picture.apply(RequestId("a"), answer(picture, 1, 3, corrects=False))

    assert [Mark.VERIFIED, Mark.VERIFIED] == list(picture.marks[:2])


def test_the_bonus_token_settles_the_next_position_without_asking() -> None:
    picture = drafted(True)
    backlog = picture.backlog()
    assert backlog is not None
    picture.asked(RequestId("a"), backlog)
    picture.apply(RequestId("a"), answer(picture, 1, 7, corrects=False))

    picture.draft(Draft(3, 0.9, True, np.zeros(FEATURE_BYTES)))

    assert 7 == picture.tokens[1]
    assert Mark.CORRECTED == picture.marks[1]
    assert picture.backlog() is None


def test_the_bonus_token_never_replaces_what_the_device_trusts() -> None:
    picture = drafted(True)
    backlog = picture.backlog()
    assert backlog is not None
    picture.asked(RequestId("a"), backlog)
    picture.apply(RequestId("a"), answer(picture, 1, 7, corrects=False))

    picture.draft(Draft(3, 0.1, False, np.zeros(FEATURE_BYTES)))

    assert 3 == picture.tokens[1]
    assert Mark.LOCAL == picture.marks[1]


@pytest.mark.parametrize(
    ("accepted", "next_token", "branch"),
    [(3, 1, 0), (-1, 1, 0), (0, 1, 1), (1, -1, 1), (1, 99, 1), (1, 1, 0), (2, 1, 1)],
)
def test_a_verdict_that_does_not_fit_its_request_is_refused(
    accepted: int, next_token: int, branch: int
) -> None:
    picture = drafted(False, True)
    backlog = picture.backlog()
    assert backlog is not None
    picture.asked(RequestId("a"), backlog)

    with pytest.raises(ProtocolError):
        picture.apply(RequestId("a"), Verdict(branch, accepted, next_token, np.zeros(0)))


@pytest.mark.parametrize("tokens", [[11], [-1], [1] * 9])
def test_a_prefix_that_does_not_fit_is_refused(tokens: list[int]) -> None:
    with pytest.raises(ProtocolError, match="does not fit"):
        Picture(8, 10).inject(tokens, [])


@given(st.integers(0, 999), policies, st.integers(0, 4), st.integers(1, 9), actions)
@settings(max_examples=50)
def test_what_a_picture_counts_is_what_its_marks_say(
    seed: int, policy: Policy, prefix: int, window: int, happenings: list[tuple[int, int]]
) -> None:
    world = World(order(seed, policy, prefix), window)
    picture = world.picture

    for action, index in happenings:
        world.step(action, index)
        pending = [int(p) for p in np.flatnonzero(picture.marks == Mark.PENDING)]

        assert picture.settled == min(pending, default=picture.length)
        assert picture.undecided == len(pending)
        assert picture.unsent == sum(position >= picture.sent for position in pending)
