"""Round trips over the trial broker and over mosquitto, next to a bare TCP echo in the same run.

All ends live in one event loop of one process; each subject is measured in short bursts that
alternate with the others', so that other load on the machine falls on all of them alike. The
ratios say what a broker costs; the absolute figures are this machine's.
"""

import asyncio
import contextlib
import shutil
import socket
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from fleet.errors import TransportError
from fleet.transport.base import Inbound, QoS, Transport
from fleet.transport.broker import BrokerSettings
from fleet.transport.embedded import embedded_broker
from fleet.transport.mqtt import connect

BURSTS = 10
ANSWER_S = 10.0
START_S = 15.0

Echo = Callable[[bytes], Awaitable[None]]  # returns when the payload has come back


@dataclass(frozen=True, slots=True)
class RoundTrips:
    """Times of one subject, in milliseconds; `ratio` is its median over TCP's."""

    subject: str
    p50_ms: float
    p99_ms: float
    ratio: float


async def bench(*, rounds: int, size_bytes: int) -> list[RoundTrips]:
    """Measures TCP, the trial broker and, where it is installed, mosquitto, at QoS 0 and 1.

    `rounds` payloads of `size_bytes` go there and back for each subject, one at a time.

    Raises:
        TransportError: A broker does not start.
    """
    async with AsyncExitStack() as stack:
        subjects = {"tcp": await stack.enter_async_context(_tcp_echo())}
        brokers = {"embedded": await stack.enter_async_context(embedded_broker(_free_port()))}
        if (program := mosquitto_program()) is not None:
            brokers["mosquitto"] = await stack.enter_async_context(run_mosquitto(program))
        for name, broker in brokers.items():
            hub = await stack.enter_async_context(connect(broker, client_id="hub"))
            node = await stack.enter_async_context(connect(broker, client_id="node"))
            for qos in (0, 1):
                echo = await stack.enter_async_context(_mqtt_echo(hub, node, qos))
                subjects[f"{name} qos {qos}"] = echo
        return _summary(await _measure(subjects, rounds, bytes(size_bytes)))


async def _measure(
    subjects: dict[str, Echo], rounds: int, payload: bytes
) -> dict[str, list[float]]:
    times_ms: dict[str, list[float]] = {name: [] for name in subjects}
    for echo in subjects.values():
        await echo(payload)  # the first pays for what is set up once
    for _ in range(BURSTS):
        for name, echo in subjects.items():
            for _ in range(max(1, rounds // BURSTS)):
                begin = time.perf_counter()
                async with asyncio.timeout(ANSWER_S):
                    await echo(payload)
                times_ms[name].append((time.perf_counter() - begin) * 1e3)
    return times_ms


def _summary(times_ms: dict[str, list[float]]) -> list[RoundTrips]:
    tcp_ms = statistics.median(times_ms["tcp"])
    return [
        RoundTrips(
            name,
            p50_ms=statistics.median(times),
            p99_ms=sorted(times)[int(0.99 * (len(times) - 1))],
            ratio=statistics.median(times) / tcp_ms,
        )
        for name, times in times_ms.items()
    ]


@asynccontextmanager
async def _tcp_echo() -> AsyncIterator[Echo]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            while data := await reader.read(1 << 16):
                writer.write(data)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())

        async def echo(payload: bytes) -> None:
            writer.write(payload)
            await reader.readexactly(len(payload))

        yield echo
        writer.close()
        await writer.wait_closed()


@asynccontextmanager
async def _mqtt_echo(hub: Transport, node: Transport, qos: QoS) -> AsyncIterator[Echo]:
    there, back = f"bench/{qos}/there", f"bench/{qos}/back"

    async def answer(requests: AsyncIterator[Inbound]) -> None:
        async for inbound in requests:
            inbound.ack()
            await hub.publish(back, inbound.payload, qos=qos)

    async with (
        hub.subscribe(there, qos=qos, limit=8) as requests,
        node.subscribe(back, qos=qos, limit=8) as answers,
    ):
        task = asyncio.create_task(answer(requests), name=f"bench {there}")

        async def echo(payload: bytes) -> None:
            await node.publish(there, payload, qos=qos)
            (await anext(answers)).ack()

        yield echo
        task.cancel()
        await asyncio.wait([task])


def mosquitto_program() -> str | None:
    return shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")


@asynccontextmanager
async def run_mosquitto(program: str) -> AsyncIterator[BrokerSettings]:
    broker = BrokerSettings(port=_free_port())
    with tempfile.TemporaryDirectory(prefix="ciar-bench-") as folder:
        settings = _write_settings(Path(folder), broker.port)
        process = await asyncio.create_subprocess_exec(
            program, "-c", str(settings), stderr=asyncio.subprocess.DEVNULL
        )
        try:
            await _until_it_listens(broker.port, process)
            yield broker
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()


def _write_settings(folder: Path, port: int) -> Path:
    folder.chmod(0o755)  # mosquitto gives up root's rights
    settings = folder / "mosquitto.conf"
    settings.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\nset_tcp_nodelay true\n")
    return settings


async def _until_it_listens(port: int, process: asyncio.subprocess.Process) -> None:
    try:
        async with asyncio.timeout(START_S):
            while process.returncode is None:
                with contextlib.suppress(OSError):
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.close()
                    return
                await asyncio.sleep(0.02)
    except TimeoutError:
        pass
    raise TransportError(f"mosquitto did not listen on port {port}: run it by hand to see why")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
