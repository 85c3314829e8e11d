"""A drawn picture replayed against a clock, with a device that drafts while the cloud answers.

When a draft is made and when a request goes out is decided by the agent's own `Pace` and default
settings, from the acceptance and the times that it has measured so far.
"""

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from edge_agent.pace import LEAST_CHANCE, Pace
from edge_agent.settings import GenerationSettings
from simulations.evaluation.clock.link import Link, request_bytes, response_bytes
from simulations.evaluation.clock.replay import Story, Usage, stream
from simulations.evaluation.clock.steps import StepCosts

_SETTINGS = GenerationSettings()
_LEAST_CHANCE = LEAST_CHANCE["balanced"]


def window(story: Story, costs: StepCosts, link: Link, pace: Pace) -> Usage:
    """The device goes on drafting while the cloud answers, and rolls back where it was wrong.

    `pace` is what this device has measured with earlier pictures; it learns from this one.
    """
    usage = stream(story.prefix, costs, link) if story.prefix else Usage()
    run = _Run(story, costs, link, usage, pace, story.prefix, seen=max(0, story.prefix - 1))
    run.finish()
    return usage


@dataclass(frozen=True, slots=True)
class _Request:
    """A backlog on its way, up to and with the position `end` - 1."""

    start: int
    end: int
    sent_at: float
    queue_s: float
    forward_s: float
    back_at: float


@dataclass(slots=True)
class _Run:
    """A picture between device and cloud, event by event."""

    story: Story
    costs: StepCosts
    link: Link
    usage: Usage
    pace: Pace
    position: int  # of the next draft
    seen: int  # tokens that the cloud has run or is about to run
    settled: int = 0
    cloud_free_at: float = 0.0
    sent_at: float = 0.0
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
                self.usage.seconds = max(self.usage.seconds, self.flying[0].back_at)
            if self._is_due():
                self._send()

    def _may_draft(self) -> bool:
        beyond = self.position - self.open[0] if self.open else 0
        fits = self.position < self.story.tokens and beyond < _SETTINGS.window
        return fits and len(self.open) <= self.pace.reach(_LEAST_CHANCE, _SETTINGS.window)

    def _is_due(self) -> bool:
        if not self.unsent or len(self.flying) >= _SETTINGS.in_flight:
            return False
        if not self._may_draft():
            return True
        if self.flying:
            return self.usage.seconds - self.sent_at >= self.pace.service_s.value
        return not self.pace.is_worth_holding(len(self.open))

    def _draft(self) -> None:
        asked = bool(self.story.asked[self.position])
        self.usage.seconds += self.costs.device
        self.usage.device_steps += 1
        self.pace.drafted(1, asked, self.costs.device)
        if asked:
            self.open.append(self.position)
            self.unsent += 1
        self.position += 1

    def _send(self) -> None:
        """Sends what waits, as one backlog."""
        now, start, end = self.usage.seconds, self.seen, self.open[-1] + 1
        local = int((~self.story.asked[start:end]).sum())
        up, down = request_bytes(end - start, local), response_bytes(self.unsent)
        arrives, forward_s = now + self.link.up_s(up), self.costs.forward(end - start)
        begins = max(arrives, self.cloud_free_at)
        self.cloud_free_at = begins + forward_s
        back_at = self.cloud_free_at + self.link.down_s(down)
        self.flying.append(_Request(start, end, now, begins - arrives, forward_s, back_at))
        self.unsent, self.seen, self.sent_at = 0, end, now
        self.usage.round_trips += 1
        self.usage.bytes_up += up
        self.usage.bytes_down += down

    def _take(self, request: _Request) -> None:
        """Applies a verdict: the first changed token drops all drafts behind it.

        The hub runs no request behind a correction, so forwards are counted here.
        """
        self.usage.forwards += 1
        self.usage.cloud_tokens += request.end - request.start
        self.usage.cloud_seconds += request.forward_s
        self.pace.answered(request.back_at - request.sent_at, request.queue_s, request.forward_s)
        begin = max(request.start, self.settled)
        wrong = np.flatnonzero(self.story.changed[begin : request.end])
        end = begin + int(wrong[0]) + 1 if len(wrong) else request.end
        judged = sum(position < end for position in self.open)
        self.pace.judged(judged, judged - bool(len(wrong) and self.story.asked[end - 1]))
        self.settled = end
        if not len(wrong):
            while self.open and self.open[0] < end:
                self.open.popleft()
            return
        self.position = end
        self.seen = end - 1  # the token that stands now was not run yet
        self.flying.clear()
        self.open.clear()
        self.unsent, self.cloud_free_at = 0, 0.0
