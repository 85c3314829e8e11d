"""What can go wrong in a scenario, each fault from `at_s` on for `for_s` seconds."""

from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from fleet.settings import Section

Poison = Literal["not-numbers", "huge", "flipped", "inflated", "wrong-keys", "silent"]
POISONS: tuple[Poison, ...] = get_args(Poison)


class _Fault(Section):
    at_s: float = Field(ge=0)
    for_s: float = Field(default=10.0, gt=0, le=86_400)

    @property
    def ends_s(self) -> float:
        """When it is over."""
        return self.at_s + self.for_s


class _OnDevices(_Fault):
    share: float = Field(default=0.1, gt=0, le=1, description="part of the devices, at least one")


class _OnWorker(_Fault):
    worker: int = Field(default=0, ge=0)


class KillAgents(_OnDevices):
    """Agents die without a goodbye and start again on the same state folder."""

    kind: Literal["kill-agents"]


class StallAgents(_OnDevices):
    """Agents stand still (SIGSTOP), and go on as if nothing had been."""

    kind: Literal["stall-agents"]


class FillSpools(_OnDevices):
    """Disks are full: the spools of agents take nothing."""

    kind: Literal["fill-spools"]


class CutLinks(_OnDevices):
    """Networks are gone, and both ends know it."""

    kind: Literal["cut-links"]


class SwallowLinks(_OnDevices):
    """A black hole: links seem up, and nothing gets through."""

    kind: Literal["swallow-links"]


class SlowLinks(_OnDevices):
    """Round trips and jitter are longer."""

    kind: Literal["slow-links"]
    times: float = Field(default=10.0, gt=1, le=1000)


class LimitLinks(_OnDevices):
    """Links break after so many more bytes, whatever these are of; and again once they are back."""

    kind: Literal["limit-links"]
    bytes: int = Field(default=4000, ge=1, le=1 << 30, description="of both directions")


class DoubleClients(_OnDevices):
    """Another client with the same id takes a device's link, and leaves at the end."""

    kind: Literal["double-clients"]


class PoisonUpdates(_OnDevices):
    """Devices send something else than what they have learned, in rounds that begin meanwhile.

    Less than half of the fleet: a gate that knows nothing but answers follows the most of them.
    """

    kind: Literal["poison-updates"]
    share: float = Field(default=0.1, gt=0, lt=0.5, description="part of the devices, at least one")
    how: Poison = "flipped"


class KillWorker(_OnWorker):
    """A worker dies without a goodbye and starts again; the first one is the whole hub."""

    kind: Literal["kill-worker"]


class StallWorker(_OnWorker):
    """A worker stands still (SIGSTOP), and goes on as if nothing had been."""

    kind: Literal["stall-worker"]


class SlowWorker(_OnWorker):
    """A worker's forwards take longer."""

    kind: Literal["slow-worker"]
    times: float = Field(default=4.0, gt=1, le=1000)


class BreakWorker(_OnWorker):
    """A worker's forwards fail."""

    kind: Literal["break-worker"]


class BadRollout(_Fault):
    """A version is rolled out whose drafts stand less often; in `for_s` it has to be taken back."""

    kind: Literal["bad-rollout"]
    canaries: float = Field(default=0.2, gt=0, le=1, description="part of the devices")
    acceptance: float = Field(default=0.0, ge=0, le=1, description="share of drafts that stand")
    least: int = Field(default=200, ge=1, description="tokens before it would be widened")


class KillBroker(_Fault):
    """The broker dies with all it holds, and starts again empty."""

    kind: Literal["kill-broker"]


class StallBroker(_Fault):
    """The broker stands still (SIGSTOP), and goes on."""

    kind: Literal["stall-broker"]


class StopDatabase(_Fault):
    """The hub's database cannot be written."""

    kind: Literal["stop-database"]


class FillDatabase(_Fault):
    """The hub's disk is full: its database takes nothing more."""

    kind: Literal["fill-database"]


class JumpClock(_Fault):
    """Every clock on the wall jumps, and jumps back."""

    kind: Literal["jump-clock"]
    by_s: float = Field(default=3600.0, ge=-86_400, le=86_400)


OnDevices = (
    KillAgents
    | StallAgents
    | FillSpools
    | CutLinks
    | SwallowLinks
    | SlowLinks
    | LimitLinks
    | DoubleClients
    | PoisonUpdates
)
OnWorker = KillWorker | StallWorker | SlowWorker | BreakWorker
Fault = Annotated[
    OnDevices
    | OnWorker
    | BadRollout
    | KillBroker
    | StallBroker
    | StopDatabase
    | FillDatabase
    | JumpClock,
    Field(discriminator="kind"),
]


def kinds_of(union: Any) -> tuple[str, ...]:
    """The names of the faults in a union of them."""
    return tuple(get_args(each.model_fields["kind"].annotation)[0] for each in get_args(union))


KINDS = kinds_of(get_args(Fault)[0])
REAL_ONLY = ("stall-agents", "stall-broker")  # take a process, which a world has not
# Take models that do as they are told.
VIRTUAL_ONLY = ("slow-worker", "break-worker", "poison-updates", "bad-rollout")
