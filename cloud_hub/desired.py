"""Settings for one device: publish the desired state, wait until the device reports it."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress

from fleet.errors import InvalidInputError, ProtocolError, RequestTimeout
from fleet.ids import NodeId
from fleet.protocol import topics
from fleet.protocol.codec import decode, encode
from fleet.protocol.messages import DesiredSettings, ReportedSettings
from fleet.transport.base import Transport

RETAINED_S = 1.0  # a broker sends what it keeps at once
LIMIT = 32


async def configure(
    transport: Transport, node: NodeId, wanted: Mapping[str, str | None], deadline_s: float
) -> ReportedSettings:
    """What the device reports after `wanted` (JSON values; None: the device's own again).

    The desired state stays with the broker, so a device that is away takes it when it is back.

    Raises:
        RequestTimeout: The device has not reported within `deadline_s`.
        TransportError: The broker did not take it.
    """
    filters = (topics.desired(node), topics.reported(node))
    async with transport.subscribe(*filters, qos=1, limit=LIMIT) as arrivals:
        found: asyncio.Queue[object] = asyncio.Queue()

        async def read() -> None:
            async for inbound in arrivals:
                with suppress(ProtocolError):
                    found.put_nowait(decode(inbound.payload))
                inbound.ack()

        reading = asyncio.create_task(read(), name="desired and reported settings")
        desired = _next(await _kept(found), wanted)
        try:
            await transport.publish(topics.desired(node), encode(desired), qos=1, retain=True)
            async with asyncio.timeout(deadline_s):
                while True:
                    message = await found.get()
                    if isinstance(message, ReportedSettings) and message.version >= desired.version:
                        return message
        except TimeoutError as error:
            raise RequestTimeout(
                f"{node} has not acknowledged version {desired.version} within {deadline_s:g} s:"
                " the broker keeps it, and the device takes it when it is connected"
            ) from error
        finally:
            reading.cancel()
            await asyncio.wait([reading])


def parse(changes: Sequence[str]) -> dict[str, str | None]:
    """Each KEY=VALUE as a value in JSON; a bare word is a string, nothing is None.

    Raises:
        InvalidInputError: One is not of that form.
    """
    wanted: dict[str, str | None] = {}
    for change in changes:
        key, equals, value = change.partition("=")
        if not equals or not key:
            raise InvalidInputError(f"{change!r} is not KEY=VALUE")
        try:
            json.loads(value)
        except ValueError:
            value = json.dumps(value) if value else ""
        wanted[key] = value or None
    return wanted


async def _kept(found: "asyncio.Queue[object]") -> list[object]:
    await asyncio.sleep(RETAINED_S)
    return [found.get_nowait() for _ in range(found.qsize())]


def _next(kept: list[object], wanted: Mapping[str, str | None]) -> DesiredSettings:
    """The state after the newest one that is known."""
    before = [each for each in kept if isinstance(each, DesiredSettings)]
    reported = [each for each in kept if isinstance(each, ReportedSettings)]
    versions = [each.version for each in before] + [each.version for each in reported]
    version = 1 + max(versions, default=0)
    settings = {**(before[-1].settings if before else {})}
    for key, value in wanted.items():
        settings.pop(key, None)
        if value is not None:
            settings[key] = value
    return DesiredSettings(version=version, settings=settings)
