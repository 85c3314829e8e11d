"""The settings of an agent, and the only place where they have defaults."""

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator
from pydantic_settings import SettingsConfigDict

from fleet.decoding.policies import PolicyName
from fleet.decoding.verify import MAX_RELAXATION, RuleName
from fleet.errors import InvalidInputError
from fleet.prediction import PolicyScore
from fleet.settings import Section, Settings
from fleet.transport.broker import BrokerSettings, Seconds

WithoutCloud = Literal["complete", "wait", "repair", "fail"]


class AgentBrokerSettings(BrokerSettings):
    """The hub's broker. A device comes back sooner than a server would: somebody may wait."""

    reconnect_cap_s: Seconds = Field(
        10.0, description="longest wait before a try; raise it for thousands of devices"
    )


class NodeSettings(Section):
    """What this device is called in the fleet."""

    id: str | None = Field(
        default=None, description="node id; unset: made once and kept in the state folder"
    )
    heartbeat_s: float = Field(default=30.0, gt=0, description="seconds between heartbeats, ±20%")
    send_captions: bool = Field(
        default=False, description="whether the hub may keep captions, not only their hashes"
    )


class GenerationSettings(Section):
    """How pictures are made."""

    policy: str = Field(
        default="ciar",
        description="which tokens the cloud is asked about, unless a caller says (docs/agent.md)",
    )
    score: PolicyScore | None = Field(default=None, description="unset: the bundle's score")
    threshold: float | None = Field(default=None, description="unset: the bundle's threshold")
    budget: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="share of a picture's tokens that the cloud is asked about, its prefix "
        "included; unset: the bundle's",
    )
    rule: RuleName = Field(
        default="gumbel", description="how the cloud judges: by shared noise, or residual"
    )
    relaxation: float = Field(
        default=1.0, ge=1, le=MAX_RELAXATION, description="of the residual rule; 1 is exact"
    )
    prefix_tokens: int | None = Field(default=None, ge=0, description="unset: the bundle's number")
    use_features: bool = Field(default=True, description="whether the cloud adds interval features")
    without_cloud: WithoutCloud = Field(
        default="complete",
        description="complete, wait, repair or fail: see docs/agent.md",
    )
    deadline_s: float = Field(default=30.0, gt=0, description="seconds for one picture")
    effort: Literal["auto", "full", "balanced", "saving"] = Field(
        default="auto",
        description="how unlikely drafts are still made: below 2%, 10% or 50%; auto: balanced, "
        "on battery saving",
    )
    window: int = Field(
        default=64, ge=1, description="most drafts beyond the first unsettled token"
    )
    in_flight: int = Field(default=8, ge=1, description="most requests on their way at a time")
    chunk: int = Field(default=16, ge=1, description="drafts between two looks at the inbox")
    request_deadline_s: float = Field(
        default=10.0, gt=0, description="seconds until a silent worker is given up"
    )
    open_deadline_s: float = Field(
        default=20.0, gt=0, description="seconds until opening is tried anew"
    )
    retry_after_s: float = Field(
        default=1.0,
        gt=0,
        description="seconds until an unanswered request is sent again; sooner once the round "
        "trip is known",
    )
    start_patience_s: float = Field(
        default=2.0, ge=0, description="seconds to wait for a broker before a picture begins"
    )
    outage_patience_s: float = Field(
        default=20.0, ge=0, description="seconds to wait for the cloud to come back in a picture"
    )
    queue: int = Field(default=16, ge=1, description="pictures that may wait for their turn")

    @field_validator("policy")
    @classmethod
    def _must_be_known(cls, policy: str) -> str:
        try:
            PolicyName.parse(policy)
        except InvalidInputError as error:
            raise ValueError(str(error)) from error
        return policy


class DeviceSettings(Section):
    """How the device model is run."""

    threads: int | None = Field(
        default=None, ge=1, description="of the device step; unset: measured once, remembered"
    )
    version: str = Field(
        default="",
        pattern=r"^([0-9a-f]{16})?$",
        description="model to run, another head for the bundle's network; empty: the bundle's",
    )
    source: str = Field(
        default="", max_length=256, description="URL below which versions are fetched"
    )
    public_key: Path | None = Field(
        default=None, description="key of whoever signs fetched versions; unset: public_key's"
    )


class OutboxSettings(Section):
    """The spool of records that the hub has not confirmed."""

    max_bytes: int = Field(default=16 << 20, gt=0, description="bytes of records kept")
    max_records: int = Field(default=10_000, gt=0, description="records kept")
    max_age_s: float = Field(default=30 * 86_400.0, gt=0, description="seconds that one is kept")
    reserve_bytes: int = Field(
        default=32 << 20, ge=0, description="free bytes of the disk below which no arrays are kept"
    )
    resend_s: float = Field(default=5.0, gt=0, description="first wait for a receipt; doubles")


class RecordSettings(Section):
    """What a picture's record says beside its counts."""

    level: Literal["none", "summary", "detailed"] = Field(
        default="summary",
        description="of its tokens: nothing, packed arrays, or rows at the hub, too, for a while",
    )
    detailed_share: float = Field(
        default=0.01, gt=0, le=1, description="share of the pictures that `detailed` is for"
    )
    unseen_share: float = Field(
        default=0.02,
        ge=0,
        le=1,
        description="share of the pictures whose tokens go along, with the caption, where the "
        "cloud has not seen all of them: for spot checks, not kept (docs/agent.md)",
    )


class ShelfSettings(Section):
    """Pictures that wait to be corrected, and corrected ones that may be fetched."""

    max_pictures: int = Field(default=32, ge=1, description="pictures kept")
    keep_s: float = Field(default=7 * 86_400.0, gt=0, description="seconds that one is kept")


class TrainingSettings(Section):
    """Federated rounds, where torch and Flower are installed (extra `federation`)."""

    take_part: bool = Field(
        default=True, description="whether this device trains its head when the hub asks"
    )
    ring_mib: int = Field(
        default=16,
        ge=1,
        description="MiB of samples kept on disk; another number begins with none",
    )


class ApiSettings(Section):
    """The loopback HTTP interface of a running agent."""

    port: int = Field(default=0, ge=0, le=65_535, description="0: any free port")


class SimulationSettings(Section):
    """A slow link pretended around a fast one, for demonstrations; off in the field."""

    link: Literal["none", "wifi", "5g", "4g", "satellite"] = Field(
        default="none", description="the link to pretend"
    )
    seed: int = Field(default=0, ge=0, description="seed of its jitter and losses")


class LogSettings(Section):
    """What is written to stderr."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="warning", description="the least severe event that is written"
    )
    format: Literal["console", "json"] = Field(default="console", description="form of an event")


class AgentSettings(Settings):
    """All settings of `edge_agent`."""

    model_config = SettingsConfigDict(env_prefix="EDGE_AGENT_")

    state_dir: Path = Field(
        default=Path("~/.local/state/ciar-agent"),
        description="folder of node id, spool and the running agent's address",
    )
    bundle: Path | None = Field(
        default=None, description="folder of the device bundle; unset: the family that is shipped"
    )
    public_key: Path | None = Field(
        default=None, description="key of whoever signs bundles; unset: the shipped family's"
    )
    broker: AgentBrokerSettings = AgentBrokerSettings()
    node: NodeSettings = NodeSettings()
    generation: GenerationSettings = GenerationSettings()
    device: DeviceSettings = DeviceSettings()
    record: RecordSettings = RecordSettings()
    outbox: OutboxSettings = OutboxSettings()
    shelf: ShelfSettings = ShelfSettings()
    training: TrainingSettings = TrainingSettings()
    api: ApiSettings = ApiSettings()
    simulation: SimulationSettings = SimulationSettings()
    log: LogSettings = LogSettings()

    @property
    def state_path(self) -> Path:
        """The state folder, `~` resolved."""
        return self.state_dir.expanduser()
