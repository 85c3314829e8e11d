"""What a drawn picture costs on a link: its story replayed against a clock.

The story says which tokens were asked about, corrected, or settled by rounds of drafts; how they
travel is the exchange. Nothing here draws anything. One assumption: in drafts that a correction
throws away, the device would have asked at the positions where it asks in the picture as it is.
"""

from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from simulations.evaluation.clock.link import (
    TREE_NODE_BYTES,
    Link,
    request_bytes,
    response_bytes,
    stream_bytes,
)
from simulations.evaluation.clock.steps import StepCosts

WINDOW, IN_FLIGHT = 16, 4  # the agent's own settings


@dataclass(slots=True)
class Usage:
    """What one picture took, or the mean of several."""

    seconds: float = 0.0
    forwards: float = 0  # of the cloud
    cloud_tokens: float = 0  # tokens that those forwards ran over
    device_steps: float = 0  # drafts that were thrown away included
    round_trips: float = 0
    bytes_up: float = 0
    bytes_down: float = 0


@dataclass(frozen=True, slots=True, eq=False)
class Story:
    """One picture, position by position [T]."""

    prefix: int
    asked: NDArray[np.bool_]  # the cloud was asked, after the prefix
    changed: NDArray[np.bool_]  # and put another token there, or amended one it was not asked about
    sent: NDArray[np.uint8]  # drafts of the round that begins here

    @property
    def tokens(self) -> int:
        """Tokens of the picture."""
        return len(self.asked)


def alone(story: Story, costs: StepCosts) -> Usage:
    """Everything on the device."""
    return Usage(seconds=story.tokens * costs.device, device_steps=story.tokens)


def stream(tokens: int, costs: StepCosts, link: Link) -> Usage:
    """One request, and the cloud sends token after token."""
    asked, size = request_bytes(1, 0), stream_bytes(tokens)
    seconds = link.up_s(asked) + tokens * costs.forward(1) + link.down_s(stream_bytes(1))
    return Usage(seconds, tokens, tokens, 0, 1, asked, size)


def wait(story: Story, costs: StepCosts, link: Link) -> Usage:
    """Stop and wait: at every question the device stands still until the token is back."""
    usage = stream(story.prefix, costs, link) if story.prefix else Usage()
    seen = max(0, story.prefix - 1)  # the last injected token was drawn, not run
    for position in range(story.prefix, story.tokens):
        usage.device_steps += 1
        usage.seconds += costs.device
        if story.asked[position]:
            backlog = max(1, position - seen)
            _ask(usage, costs, link, backlog, request_bytes(backlog, backlog - 1))
            seen = position
    return usage


def rounds(story: Story, costs: StepCosts, link: Link | None, levels: int) -> Usage:
    """Rounds of drafts, each judged by one forward.

    `levels`: runs of the drafter for one tree; 0 for a chain, where each draft is a run.
    Without a link the drafter stands beside the cloud's model. The cloud knows the drafts' laws
    from a drafter of its own, so ids are all that travels.
    """
    usage = Usage()
    for position in np.flatnonzero(story.sent):
        sent = int(story.sent[position])
        steps = levels + 1 if levels else sent
        usage.device_steps += steps
        usage.seconds += costs.device + levels * costs.level if levels else steps * costs.device
        forward = costs.tree if levels else costs.forward(sent + 1)
        usage.cloud_tokens += sent + 1
        usage.forwards += 1
        usage.seconds += forward
        if link is not None:
            size = request_bytes(sent, 0) + TREE_NODE_BYTES * sent * (levels > 0)
            _travel(usage, link, size, response_bytes(1))
    return usage


def window(story: Story, costs: StepCosts, link: Link) -> Usage:
    """The device goes on drafting while the cloud answers, and rolls back where it was wrong."""
    usage = stream(story.prefix, costs, link) if story.prefix else Usage()
    run = _Run(story, costs, link, usage, story.prefix, seen=max(0, story.prefix - 1))
    run.finish()
    return usage


def _ask(usage: Usage, costs: StepCosts, link: Link, backlog: int, size: int) -> None:
    usage.forwards += 1
    usage.cloud_tokens += backlog
    usage.seconds += costs.forward(backlog)
    _travel(usage, link, size, response_bytes(1))


def _travel(usage: Usage, link: Link, up: int, down: int) -> None:
    usage.round_trips += 1
    usage.bytes_up += up
    usage.bytes_down += down
    usage.seconds += link.up_s(up) + link.down_s(down)


@dataclass(frozen=True, slots=True)
class _Request:
    """A backlog on its way, up to and with the position `end` - 1."""

    start: int
    end: int
    back_at: float


@dataclass(slots=True)
class _Run:
    """A picture between device and cloud, event by event."""

    story: Story
    costs: StepCosts
    link: Link
    usage: Usage
    position: int  # of the next draft
    seen: int  # tokens that the cloud has run or is about to run
    settled: int = 0
    cloud_free_at: float = 0.0
    flying: deque[_Request] = field(default_factory=deque)
    open: deque[int] = field(default_factory=deque)  # uncertain positions without a verdict
    unsent: int = 0  # how many of them have not been sent

    def finish(self) -> None:
        """Runs to the end of the picture."""
        self.settled = self.position
        while self.position < self.story.tokens or self.open:
            while self.flying and self.flying[0].back_at <= self.usage.seconds:
                self._take(self.flying.popleft())
            if self._may_draft():
                self._draft()
            elif self.flying:
                self.usage.seconds = self.flying[0].back_at

    def _may_draft(self) -> bool:
        beyond = self.position - self.open[0] if self.open else 0
        return self.position < self.story.tokens and beyond < WINDOW

    def _draft(self) -> None:
        self.usage.seconds += self.costs.device
        self.usage.device_steps += 1
        if self.story.asked[self.position]:
            self.open.append(self.position)
            self.unsent += 1
        self.position += 1
        self._send()

    def _send(self) -> None:
        """Sends what waits, as one backlog, if a request may fly."""
        if not self.unsent or len(self.flying) >= IN_FLIGHT:
            return
        start, end = self.seen, self.open[-1] + 1
        local = int((~self.story.asked[start:end]).sum())
        up, down = request_bytes(end - start, local), response_bytes(self.unsent)
        arrives = self.usage.seconds + self.link.up_s(up)
        done = max(arrives, self.cloud_free_at) + self.costs.forward(end - start)
        self.cloud_free_at = done
        self.flying.append(_Request(start, end, done + self.link.down_s(down)))
        self.unsent, self.seen = 0, end
        self.usage.round_trips += 1
        self.usage.bytes_up += up
        self.usage.bytes_down += down

    def _take(self, request: _Request) -> None:
        """Applies a verdict: the first changed token drops all drafts behind it.

        The hub runs no request behind a correction, so forwards are counted here.
        """
        self.usage.forwards += 1
        self.usage.cloud_tokens += request.end - request.start
        begin = max(request.start, self.settled)
        wrong = np.flatnonzero(self.story.changed[begin : request.end])
        if not len(wrong):
            self.settled = request.end
            while self.open and self.open[0] < request.end:
                self.open.popleft()
            self._send()
            return
        place = begin + int(wrong[0])
        self.position = self.settled = place + 1
        self.seen = place  # the token that stands now was not run yet
        self.flying.clear()
        self.open.clear()
        self.unsent, self.cloud_free_at = 0, 0.0
