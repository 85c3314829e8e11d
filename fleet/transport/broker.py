"""Where the broker is, how to log in, and how long to wait before the next try."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, SecretStr

from fleet.settings import Section

Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]


class TlsSettings(Section):
    """The link's encryption; the broker's certificate must name `broker.host`."""

    enabled: bool = False
    ca: Path | None = None  # None: the authorities that the system trusts
    cert: Path | None = None  # this client's own certificate, where the broker asks for one
    key: Path | None = None


class BrokerSettings(Section):
    """One MQTT 5 broker, and the patience with it."""

    host: str = Field("127.0.0.1", min_length=1)
    port: int = Field(1883, ge=1, le=65_535)
    username: str = ""
    password: SecretStr = SecretStr("")
    tls: TlsSettings = TlsSettings()
    keepalive_s: int = Field(20, ge=1, le=3600)  # a silent link is given up after twice this
    answer_s: Seconds = 10.0  # to connect, and for each answer that the broker owes
    reconnect_s: Seconds = 1.0  # ceiling of the first wait; it doubles with each failure
    reconnect_cap_s: Seconds = 60.0
    stable_s: Seconds = 30.0  # a link that has lived for this long makes the next wait short

    @property
    def address(self) -> str:
        """Host and port, as sentences name them."""
        return f"{self.host}:{self.port}"


@dataclass(slots=True)
class Backoff:
    """Waits before each new try: full jitter under a ceiling that doubles.

    The ceiling falls back only after a link that lived long enough: a broker that takes a
    client in and throws it out at once is not asked faster and faster.
    """

    first_s: float
    cap_s: float
    stable_s: float
    random: Callable[[], float]  # uniform in [0, 1)
    failures: int = 0

    def wait_s(self, *, lived_s: float, taken_over: bool = False) -> float:
        """Seconds to wait after a link that lived `lived_s` (0: it never came up).

        A link that another client of the same id took over waits at least half the cap:
        the two would throw each other out for ever.
        """
        if lived_s >= self.stable_s:
            self.failures = 0
        ceiling = min(self.cap_s, self.first_s * 2.0 ** min(self.failures, 32))
        self.failures += 1
        if taken_over:
            return self.cap_s * (1 + self.random()) / 2
        return ceiling * self.random()
