"""The settings of a hub, and the only place where they have defaults."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import SettingsConfigDict

from fleet.settings import Section, Settings
from fleet.transport.broker import BrokerSettings

_LEVEL = r"^[a-z0-9][a-z0-9_-]{0,62}$"


class StoreSettings(Section):
    """Where rows are kept."""

    url: SecretStr | None = Field(
        default=None,
        description="SQLAlchemy URL, such as postgresql+psycopg://user:password@host/name; "
        "unset: SQLite in the data folder, made when it is not there",
    )
    batch: int = Field(default=64, ge=1, le=1024, description="records of one transaction")
    batch_wait_s: float = Field(
        default=0.05, gt=0, le=10, description="how long a record waits for others"
    )
    queue: int = Field(
        default=512, ge=1, description="records and node states that wait in memory, each"
    )
    rejected: int = Field(
        default=10_000, ge=1, description="records set aside that are kept; the oldest go first"
    )
    keep_days: int = Field(
        default=90, ge=1, description="days for which pictures and their checks are kept"
    )
    keep_mib: int | None = Field(
        default=None, ge=1, description="MiB beyond which the oldest days of pictures are dropped"
    )
    keep_token_hours: int = Field(default=72, ge=1, description="hours that token rows are kept")
    keep_hour_days: int = Field(
        default=3, ge=3, description="days that sums by the hour are kept beside those by the day"
    )
    care_s: float = Field(default=3600.0, gt=0, description="seconds between two such clean-ups")


class EngineSettings(Section):
    """How the cloud model is run."""

    cache_mib: int = Field(
        default=256, ge=1, description="memory of the KV cache in MiB; it sets the open pictures"
    )
    device: str = Field(default="cpu", description="torch device, such as cpu or cuda")
    precision: Literal["fp16", "bf16"] = Field(
        default="fp16",
        description="of a family's weights in products; bf16 is faster, rounds what is multiplied, "
        "and must be that of all workers",
    )
    threads: int | None = Field(default=None, ge=1, description="unset: torch's own choice")
    batch_tokens: int = Field(default=256, ge=1, description="most tokens of one forward")
    batch_spans: int = Field(default=64, ge=1, description="most pictures of one forward")
    chunk: int = Field(
        default=64, ge=1, description="tokens of a reopened picture that one forward runs"
    )
    node_slots: int | None = Field(
        default=None,
        ge=1,
        description="most open pictures of one node; unset: a quarter of all, at least 4",
    )
    queue: int = Field(default=1024, ge=1, description="requests that may wait")
    node_queue: int = Field(default=64, ge=1, description="requests of one node that may wait")
    quantum: int = Field(
        default=8,
        ge=1,
        description="tokens by which a node may be ahead of others that wait, and most of its "
        "tokens in one forward while others are there",
    )
    node_share: float = Field(
        default=0.05,
        gt=0,
        le=1,
        description="part of the engine's time that any node may have, however many there are; "
        "a node alone may have all of it, one of N the N-th part",
    )
    aging_s: float = Field(
        default=2.0, gt=0, description="wait after which a request goes before all later ones"
    )
    max_deadline_s: float = Field(
        default=60.0, gt=0, description="longest wait of a request, whatever it asks for"
    )
    keep_s: float = Field(
        default=2.0, ge=0, description="idle time before a picture may be put out for another"
    )
    idle_s: float = Field(default=120.0, gt=0, description="idle time after which a picture ends")
    check_share: float = Field(
        default=0.1, ge=0, le=1, description="share of the devices' drafts that is spot-checked"
    )
    law_share: float = Field(
        default=0.1,
        ge=0,
        le=1,
        description="share of the drafts of which devices that train are told the cloud's law",
    )
    inbox: int = Field(default=4096, ge=1, description="arrived requests not yet looked at")


class MetricsSettings(Section):
    """Where Prometheus finds the engine's numbers."""

    port: int | None = Field(
        default=None, ge=1, le=65_535, description="HTTP port of /metrics; unset: none"
    )
    host: str = Field(default="127.0.0.1", description="address it listens on")


class ModelsSettings(Section):
    """Where devices fetch what rounds made."""

    port: int | None = Field(
        default=None,
        ge=0,
        le=65_535,
        description="HTTP port of /models; 0: any free one; unset: none",
    )
    host: str = Field(default="127.0.0.1", description="address it listens on")


class RolloutSettings(Section):
    """What becomes by itself of what rounds have trained."""

    key: Path | None = Field(
        default=None,
        description="private key that signs; set: what a run has kept is published by the hub",
    )
    by_itself: bool = Field(
        default=False, description="whether a version that a run made is rolled out by the hub"
    )
    source: str | None = Field(
        default=None,
        pattern="^https?://.+",
        description="URL of the models as devices reach it, as in http://hub:8080/models",
    )
    share: float = Field(
        default=0.1, gt=0, le=1, description="share of the devices that try a version first"
    )
    least: int = Field(
        default=1000, ge=1, description="tokens judged, and checked, on these before the others"
    )
    wait_s: float = Field(
        default=86_400.0, gt=0, description="seconds for these tokens, or the version goes back"
    )

    @model_validator(mode="after")
    def _has_source(self) -> Self:
        if self.by_itself and self.source is None:
            raise ValueError("rollout.by_itself needs rollout.source: where devices fetch versions")
        return self


class LogSettings(Section):
    """What is written to stderr."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="the least severe event that is written"
    )
    format: Literal["console", "json"] = Field(default="console", description="form of an event")
    counters_s: float = Field(
        default=60.0, gt=0, description="seconds between two lines of the engine's counters"
    )


class HubSettings(Settings):
    """All settings of `cloud_hub`."""

    model_config = SettingsConfigDict(env_prefix="CLOUD_HUB_")

    data_dir: Path = Field(default=Path("ciar-hub"), description="folder of the SQLite database")
    model: Path | None = Field(
        default=None, description="folder of the cloud model; unset: the family that is shipped"
    )
    worker: str | None = Field(
        default=None, pattern=_LEVEL, description="this worker's topic level; unset: a new one"
    )
    broker: BrokerSettings = BrokerSettings()
    store: StoreSettings = StoreSettings()
    engine: EngineSettings = EngineSettings()
    metrics: MetricsSettings = MetricsSettings()
    models: ModelsSettings = ModelsSettings()
    rollout: RolloutSettings = RolloutSettings()
    log: LogSettings = LogSettings()

    @property
    def has_broker(self) -> bool:
        """Whether a broker's host was given; else the hub starts the trial broker itself."""
        return "host" in self.broker.model_fields_set

    @property
    def models_path(self) -> Path:
        """Folder of the bundles that rounds made."""
        return self.data_dir.expanduser() / "models"

    @property
    def store_url(self) -> str:
        """The database in force."""
        if self.store.url is not None:
            return self.store.url.get_secret_value()
        return f"sqlite:///{self.data_dir.expanduser() / 'hub.db'}"
