"""Where the broker is, how to log in, and how long to wait before the next try."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, SecretStr

from fleet.settings import Section

Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]


class TlsSettings(Section):
    """The link's encryption."""

    enabled: bool = Field(default=False, description="encrypts; the certificate names the host")
    ca: Path | None = Field(
        default=None, description="authorities to trust; unset: those of the system"
    )
    cert: Path | None = Field(
        default=None, description="own certificate, where the broker asks for one"
    )
    key: Path | None = Field(default=None, description="its private key")


class BrokerSettings(Section):
    """One MQTT 5 broker, and the patience with it."""

    host: str = Field(default="127.0.0.1", min_length=1, description="the broker's name or address")
    port: int = Field(default=1883, ge=1, le=65_535, description="its port; 8883 with TLS")
    username: str = Field(default="", description="empty: log in without a name")
    password: SecretStr = Field(default=SecretStr(""), description="of the user")
    tls: TlsSettings = TlsSettings()
    keepalive_s: int = Field(
        default=20, ge=1, le=3600, description="a silent link is given up after twice this"
    )
    answer_s: Seconds = Field(
        default=10.0, description="to connect, and for each answer that the broker owes"
    )
    reconnect_s: Seconds = Field(
        default=1.0, description="ceiling of the first wait; it doubles with each failure"
    )
    reconnect_cap_s: Seconds = Field(default=60.0, description="ceiling of every wait")
    stable_s: Seconds = Field(
        default=30.0, description="a link that lived for this long makes the next wait short"
    )

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
