"""What a drawn picture costs on a link: its story replayed against a clock.

The story says which tokens were asked about, corrected, or settled by rounds of drafts; how they
travel is the exchange. Nothing here draws anything. One assumption: in drafts that a correction
throws away, the device would have asked at the positions where it asks in the picture as it is.
"""

from dataclasses import dataclass

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
    cloud_seconds: float = 0.0  # of its processor, a drafter that stands beside it included


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
    busy = tokens * costs.forward(1)
    seconds = link.up_s(asked) + busy + link.down_s(stream_bytes(1))
    return Usage(seconds, tokens, tokens, 0, 1, asked, size, busy)


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
        usage.cloud_seconds += forward
        if link is not None:
            size = request_bytes(sent, 0) + TREE_NODE_BYTES * sent * (levels > 0)
            _travel(usage, link, size, response_bytes(1))
    return usage


def _ask(usage: Usage, costs: StepCosts, link: Link, backlog: int, size: int) -> None:
    forward = costs.forward(backlog)
    usage.forwards += 1
    usage.cloud_tokens += backlog
    usage.seconds += forward
    usage.cloud_seconds += forward
    _travel(usage, link, size, response_bytes(1))


def _travel(usage: Usage, link: Link, up: int, down: int) -> None:
    usage.round_trips += 1
    usage.bytes_up += up
    usage.bytes_down += down
    usage.seconds += link.up_s(up) + link.down_s(down)
