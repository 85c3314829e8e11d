"""How long and how hard a picture asks the cloud, and what that has cost."""

from dataclasses import dataclass, field
from typing import Literal

from fleet.ids import ModelVersion
from fleet.protocol.messages import GenerationOpened, VerifyResponse
from fleet.transport.calls import CallStats

Reason = Literal["", "no_broker", "timeout", "busy", "refused", "cancelled"]


@dataclass(frozen=True, slots=True)
class Plan:
    """How long and how hard a picture asks the cloud. Times in seconds."""

    deadline_s: float
    window: int
    in_flight: int
    chunk: int
    least_chance: float  # of standing, below which nothing is drafted; see `pace.py`
    start_patience_s: float
    outage_patience_s: float


@dataclass(slots=True)
class Meter:
    """What the cloud did for one picture."""

    round_trips: int = 0
    reopened: int = 0
    retries: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    forwards: int = 0
    queue_s: float = 0.0
    forward_s: float = 0.0
    cloud_version: ModelVersion = field(default_factory=lambda: ModelVersion(""))

    def add(self, answer: GenerationOpened | VerifyResponse) -> None:
        """Counts what an answer says about its making."""
        self.forwards += answer.forwards
        self.queue_s += answer.queue_s
        self.forward_s += answer.forward_s

    def cost(self, stats: CallStats) -> None:
        """Counts what a request has cost on the wire."""
        self.retries += stats.retries
        self.bytes_up += stats.bytes_up
        self.bytes_down += stats.bytes_down
