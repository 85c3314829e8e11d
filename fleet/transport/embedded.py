"""The trial broker of `cloud_hub serve`: iotcore (rumqttd) on loopback, as a child process.

A child, because rumqttd cannot be stopped inside a process. It dies with its parent, whatever
the parent dies of, and is started again if it dies alone. It keeps nothing on disk, knows no
passwords and no access rights, and so listens on 127.0.0.1 only: a fleet of more than one
machine takes mosquitto or a cluster.
"""

import asyncio
import contextlib
import errno
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from fleet.errors import AddressInUseError, TransportError
from fleet.logs import get_logger
from fleet.protocol.codec import MAX_MESSAGE_BYTES
from fleet.transport.broker import BrokerSettings

HOST = "127.0.0.1"
START_S = 30.0
STOP_S = 5.0
RESTART_PAUSE_S = 1.0
_POLL_S = 0.02
_CHILD = Path(__file__).with_name("embedded_child.py")

# Segments hold delivered messages until they are full: with the default size they grow to half
# a gigabyte. The broker ignores a client's receive maximum; its own is 100, and a client that owes
# as many acknowledgements gets nothing more, QoS 0 included.
_SETTINGS = """
id = 0
[router]
id = 0
max_connections = 10000
max_outgoing_packet_count = 200
max_segment_size = 1048576
max_segment_count = 10
[v5.1]
name = "fleet"
listen = "{host}:{port}"
next_connection_delay_ms = 1
[v5.1.connections]
connection_timeout_ms = 60000
max_payload_size = {max_payload_size}
max_inflight_count = 100
dynamic_filters = true
"""

log = get_logger(__name__)


@asynccontextmanager
async def embedded_broker(port: int) -> AsyncIterator[BrokerSettings]:
    """A broker on 127.0.0.1 until the context ends, and how to reach it.

    Raises:
        AddressInUseError: Another process holds the port.
        TransportError: The broker cannot be started.
    """
    _check_free(port)
    broker = _Broker(port, await _start(port))
    keeper = asyncio.create_task(broker.keep_alive(), name="embedded broker")
    try:
        yield BrokerSettings(host=HOST, port=port)
    finally:
        keeper.cancel()
        await asyncio.wait([keeper])
        await _stop(broker.process)


@dataclass(slots=True)
class _Broker:
    port: int
    process: Process

    async def keep_alive(self) -> None:
        """Starts the broker again whenever it dies."""
        while True:
            code = await self.process.wait()
            log.error("embedded broker died", exit_code=code, port=self.port)
            await asyncio.sleep(RESTART_PAUSE_S)
            try:
                self.process = await _start(self.port)
            except TransportError as error:
                log.error("embedded broker does not start", reason=str(error), port=self.port)


async def _start(port: int) -> Process:
    settings = _SETTINGS.format(host=HOST, port=port, max_payload_size=MAX_MESSAGE_BYTES + 4096)
    # Its own session: a Ctrl-C at the terminal is for the hub, which needs the broker to say
    # goodbye. -P: the script's folder holds modules that are not meant for it.
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", str(_CHILD), settings),
        stdin=PIPE,
        stdout=DEVNULL,
        stderr=None,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(START_S):
            while not await _listens(port):
                if child.returncode is not None:
                    raise TransportError(
                        f"the embedded broker ended with code {child.returncode} before it"
                        f" listened on port {port}"
                    )
                await asyncio.sleep(_POLL_S)
    except TimeoutError as error:
        await _stop(child)
        raise TransportError(
            f"the embedded broker did not listen on port {port} within {START_S:g} s"
        ) from error
    except BaseException:
        await _stop(child)
        raise
    return child


async def _stop(child: Process) -> None:
    if child.stdin is not None:
        child.stdin.close()
    try:
        async with asyncio.timeout(STOP_S):
            await child.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await child.wait()


def _check_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise TransportError(f"port {port} cannot be used: {error.strerror}") from error
            raise AddressInUseError(
                f"port {port} of {HOST} is held by another process, perhaps another hub or a"
                " broker: stop it, choose another broker.port, or use that broker by setting"
                " broker.host"
            ) from error


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(HOST, port)
    except OSError:
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True
