"""The trial broker: loopback only, dies with its hub, comes back when it dies alone."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fleet.errors import AddressInUseError
from fleet.transport.broker import BrokerSettings
from fleet.transport.embedded import embedded_broker
from fleet.transport.mqtt import connect
from tests.services import free_port

SOON_S = 10.0
HUB = """
import asyncio, sys
from fleet.transport.embedded import embedded_broker

async def main():
    async with embedded_broker(int(sys.argv[1])):
        print("up", flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def children() -> set[int]:
    """The processes that this one has started."""
    found = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    return {int(number) for file in found for number in file.read_text().split()}


def listening_addresses(port: int) -> list[str]:
    """What the kernel says: addresses in its own spelling."""
    tables = [Path(f"/proc/net/{name}").read_text() for name in ("tcp", "tcp6")]
    rows = [row.split() for table in tables for row in table.splitlines()[1:]]
    return [row[1] for row in rows if row[3] == "0A" and row[1].endswith(f":{port:04X}")]


async def test_a_port_that_is_held_is_named_with_what_to_do() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]

        with pytest.raises(AddressInUseError, match=f"port {port} of 127.0.0.1 is held by another"):
            async with embedded_broker(port):
                pass


async def test_it_is_gone_when_the_context_ends_and_the_port_can_be_used_again() -> None:
    port = free_port()
    for _ in range(2):
        before = children()
        async with embedded_broker(port) as broker:
            assert broker == BrokerSettings(host="127.0.0.1", port=port)
            assert listens(port)
        assert not listens(port)
        assert children() == before


async def test_it_listens_on_loopback_only() -> None:
    port = free_port()
    async with embedded_broker(port):
        addresses = listening_addresses(port)

    assert addresses == [f"0100007F:{port:04X}"]


async def test_it_is_started_again_when_it_dies_alone() -> None:
    port = free_port()
    before = children()
    async with embedded_broker(port) as broker:
        quick = broker.model_copy(update={"reconnect_s": 0.1, "reconnect_cap_s": 0.2})
        async with connect(quick, client_id="node") as node:
            (child,) = children() - before
            os.kill(child, signal.SIGKILL)
            async with asyncio.timeout(SOON_S):
                await node.wait_connected(False)
                await node.wait_connected()
            await node.publish("a", b"", qos=1)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_dies_with_its_hub(number: signal.Signals) -> None:
    port = free_port()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", HUB, str(port)], stdout=subprocess.PIPE, env=environment
    ) as hub:
        try:
            assert hub.stdout is not None
            assert hub.stdout.readline() == b"up\n"
            assert listens(port)
        finally:
            hub.send_signal(number)

    deadline = time.monotonic() + SOON_S
    while listens(port) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not listens(port)
