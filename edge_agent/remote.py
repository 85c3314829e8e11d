"""Settings that the operator sends: desired state, kept on disk, acknowledged as reported state.

The newest desired state that was ever seen is in force, at once and after every start, link or
not. It stands above file and environment. What cannot be set is refused by name and does not
hinder the rest.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from edge_agent.files import replace_text
from edge_agent.settings import AgentSettings
from fleet.errors import OutputError, ProtocolError, TransportError
from fleet.ids import BootId, NodeId
from fleet.logs import get_logger
from fleet.protocol import topics
from fleet.protocol.codec import decode, encode
from fleet.protocol.messages import DesiredSettings, ReportedSettings
from fleet.transport.base import Transport

REMOTE = (
    "generation.policy",
    "generation.threshold",
    "generation.budget",
    "generation.effort",
    "generation.without_cloud",
    "generation.deadline_s",
    "generation.start_patience_s",
    "generation.outage_patience_s",
    "generation.window",
    "generation.in_flight",
    "device.version",
    "device.source",
    "record.level",
    "record.detailed_share",
    "log.level",
)
LIMIT = 16
_TEXT_LIMIT = 512

log = get_logger(__name__)


def overlay(
    settings: AgentSettings, wanted: Mapping[str, str]
) -> tuple[AgentSettings, dict[str, str]]:
    """The settings with `wanted` (values as JSON) above them, and why a key was refused."""
    refused: dict[str, str] = {}
    for key, text in wanted.items():
        try:
            settings = _set(settings, key, text)
        except ValidationError as error:
            refused[key] = error.errors(include_url=False, include_input=False)[0]["msg"]
        except ValueError as error:
            refused[key] = str(error)
    return settings, {key: reason[:_TEXT_LIMIT] for key, reason in refused.items()}


def _set(settings: AgentSettings, key: str, text: str) -> AgentSettings:
    if key not in REMOTE:
        raise ValueError("is not one that can be set from afar")
    section_name, name = key.split(".")
    section = getattr(settings, section_name)
    kind, values, value = type(section), section.model_dump(), json.loads(text)
    try:
        changed = kind.model_validate(values | {name: value})
    except ValidationError:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise
        # A version of digits only, or like 12e4567890123456, is a text that reads as a number.
        changed = kind.model_validate(values | {name: text})
    return settings.model_copy(update={section_name: changed})


def in_force(settings: AgentSettings) -> dict[str, str]:
    """The values, as JSON, of all that can be set from afar."""
    shown: dict[str, Any] = settings.model_dump(mode="json")
    return {key: json.dumps(shown[key.split(".")[0]][key.split(".")[1]]) for key in REMOTE}


@dataclass(slots=True)
class Remote:
    """The operator's wishes on one device."""

    file: Path
    local: AgentSettings
    apply: Callable[[AgentSettings], None]
    _desired: DesiredSettings = field(init=False)
    _watchers: list[Callable[[AgentSettings], None]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self._desired = _read(self.file)

    @property
    def version(self) -> int:
        """Of the desired state in force; 0 before the first."""
        return self._desired.version

    def start(self) -> None:
        """Puts into force what was desired before."""
        if self.version:
            self.apply(overlay(self.local, self._desired.settings)[0])

    def watch(self, act: Callable[[AgentSettings], None]) -> None:
        """Calls `act` with what is in force now, and whenever that changes."""
        self._watchers.append(act)
        act(overlay(self.local, self._desired.settings)[0])

    def take(self, desired: DesiredSettings) -> None:
        """Puts a newer desired state into force; an older one, or the same again, changes nothing.

        Raises:
            OutputError: It cannot be kept; it is not in force then.
        """
        if desired.version <= self.version:
            return
        try:
            replace_text(self.file, desired.model_dump_json())
        except OSError as error:
            raise OutputError(f"{self.file} cannot be written: {error.strerror}") from error
        self._desired = desired
        changed = overlay(self.local, desired.settings)[0]
        for act in (self.apply, *self._watchers):
            act(changed)

    def report(self, boot: BootId) -> ReportedSettings:
        """What is in force, for the operator."""
        settings, refused = overlay(self.local, self._desired.settings)
        return ReportedSettings(
            boot_id=boot, version=self.version, settings=in_force(settings), refused=refused
        )

    async def follow(self, transport: Transport, node: NodeId, boot: BootId) -> None:
        """Takes what comes and reports it, until cancelled; reports at the start, too."""
        topic = topics.desired(node)
        await transport.wait_connected()
        async with transport.subscribe(topic, qos=1, limit=LIMIT) as arrivals:
            await self._say(transport, node, boot)
            async for inbound in arrivals:
                try:
                    if inbound.payload:
                        self.take(cast(DesiredSettings, _checked(decode(inbound.payload))))
                except (ProtocolError, OutputError) as error:
                    log.warning("desired settings not taken", reason=str(error))
                inbound.ack()
                await self._say(transport, node, boot)

    async def _say(self, transport: Transport, node: NodeId, boot: BootId) -> None:
        """The broker keeps it; a broker that lost it hears it with the next desired state."""
        try:
            await transport.publish(
                topics.reported(node), encode(self.report(boot)), qos=1, retain=True
            )
        except TransportError:
            log.info("settings not reported")


def _checked(message: object) -> object:
    if not isinstance(message, DesiredSettings):
        raise ProtocolError(f"{type(message).__name__} is no desired state")
    return message


def _read(file: Path) -> DesiredSettings:
    """What was kept; nothing where there is no usable file."""
    try:
        return DesiredSettings.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        pass
    except (OSError, ValidationError) as error:
        log.warning("kept settings not read", file=str(file), reason=str(error))
    return DesiredSettings(version=0)
