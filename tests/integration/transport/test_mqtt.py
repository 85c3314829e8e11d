"""What only a real link shows: absent brokers, strangers on the port, TLS, log-in, half-open."""

import asyncio
import contextlib
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from pydantic import SecretStr

from fleet.errors import TransportError
from fleet.transport.broker import BrokerSettings, TlsSettings
from fleet.transport.embedded import embedded_broker
from fleet.transport.mqtt import connect
from tests.services import Mosquitto, free_port

SOON_S = 8.0


def settings(port: int, **changes: object) -> BrokerSettings:
    quick = {"reconnect_s": 0.05, "reconnect_cap_s": 0.2, "answer_s": 5.0}
    return BrokerSettings.model_validate({"port": port, **quick, **changes})


async def test_an_absent_broker_is_named_with_what_to_do() -> None:
    port = free_port()

    with pytest.raises(TransportError) as caught:
        async with connect(settings(port), client_id="node"):
            pass

    assert str(caught.value) == (
        f"no broker at 127.0.0.1:{port}; connection refused: start one there, or set"
        " broker.host and broker.port"
    )


async def test_a_name_that_does_not_resolve_is_said() -> None:
    with pytest.raises(TransportError, match=r"no broker at nowhere.invalid:1883; the name does"):
        async with connect(settings(1883, host="nowhere.invalid"), client_id="node"):
            pass


async def test_a_port_that_never_answers_fails_by_its_deadline() -> None:
    begin = asyncio.get_running_loop().time()

    async with silent_server() as port:
        with pytest.raises(TransportError, match=r"no broker at .*; no answer within 0.3 s"):
            async with connect(settings(port, answer_s=0.3), client_id="node"):
                pass

    assert asyncio.get_running_loop().time() - begin < 3


async def test_a_stranger_on_the_port_is_said_to_speak_something_else() -> None:
    async def greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        with pytest.raises(TransportError, match=f"no broker at 127.0.0.1:{port}; what listens"):
            async with connect(settings(port), client_id="node"):
                pass


async def test_an_agent_starts_without_a_broker_and_finds_it_later() -> None:
    port = free_port()

    async with (
        connect(settings(port), client_id="node", wait=False) as node,
        node.subscribe("a", qos=1, limit=9) as arrivals,
    ):
        with pytest.raises(TransportError, match="is down"):
            await node.publish("a", b"", qos=0)
        async with embedded_broker(port):
            await asyncio.wait_for(node.wait_connected(), SOON_S)
            await node.publish("a", b"found", qos=1)
            inbound = await asyncio.wait_for(anext(arrivals), SOON_S)

    assert inbound.payload == b"found"


async def test_a_half_open_link_is_given_up() -> None:
    """The network swallows everything and says nothing: only the keep-alive notices."""
    port = free_port()
    async with (
        embedded_broker(port),
        black_hole(port) as hole,
        connect(settings(hole.port, keepalive_s=1), client_id="node") as node,
    ):
        hole.swallow()
        async with asyncio.timeout(SOON_S):
            await node.wait_connected(False)
        hole.let_go()


async def test_a_publish_that_is_not_acknowledged_ends_the_link() -> None:
    port = free_port()
    async with (
        embedded_broker(port),
        black_hole(port) as hole,
        connect(settings(hole.port, answer_s=0.5), client_id="node") as node,
    ):
        hole.swallow()
        with pytest.raises(TransportError, match=r"a payload was not acknowledged within 0.5 s"):
            await node.publish("a", b"1", qos=1)
        await asyncio.wait_for(node.wait_connected(False), SOON_S)
        hole.let_go()


async def test_a_cancelled_publish_leaves_the_link_up() -> None:
    port = free_port()
    async with (
        embedded_broker(port),
        black_hole(port) as hole,
        connect(settings(hole.port), client_id="node") as node,
    ):
        hole.swallow()
        waiting = asyncio.create_task(node.publish("a", b"1", qos=1), name="publish")
        await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.wait([waiting])
        hole.let_go()
        await node.publish("a", b"2", qos=1)

        assert node.counters.losses == 0


@pytest.mark.broker
async def test_a_wrong_password_is_said(tmp_path: Path, mosquitto: Mosquitto) -> None:
    passwords = mosquitto.folder / "passwords"
    run("mosquitto_passwd", "-b", "-c", str(passwords), "ada", "right", cwd=mosquitto.folder)
    passwords.chmod(0o644)
    restart(mosquitto, f"allow_anonymous false\npassword_file {passwords}\n")

    async with connect(
        settings(mosquitto.port, username="ada", password=SecretStr("right")), client_id="node"
    ) as node:
        await node.publish("a", b"", qos=1)
    with pytest.raises(TransportError, match=r"refused .*: Not authorized; check broker.username"):
        async with connect(
            settings(mosquitto.port, username="ada", password=SecretStr("wrong")), client_id="node"
        ):
            pass


@pytest.mark.broker
async def test_a_payload_over_the_brokers_limit_is_refused_here(mosquitto: Mosquitto) -> None:
    restart(mosquitto, "allow_anonymous true\nmax_packet_size 2000\n")

    async with connect(settings(mosquitto.port), client_id="node") as node:
        with pytest.raises(TransportError, match="payload of 3000 bytes is over the limit"):
            await node.publish("a", bytes(3000), qos=1)
        await node.publish("a", bytes(1000), qos=1)

        assert node.counters.losses == 0


@pytest.mark.broker
async def test_tls_is_checked_in_both_directions(tmp_path: Path, mosquitto: Mosquitto) -> None:
    keys = make_keys(mosquitto.folder)
    restart(
        mosquitto,
        f"allow_anonymous true\ncafile {keys / 'ca.crt'}\ncertfile {keys / 'server.crt'}\n"
        f"keyfile {keys / 'server.key'}\nrequire_certificate true\n",
    )
    good = TlsSettings(
        enabled=True, ca=keys / "ca.crt", cert=keys / "node.crt", key=keys / "node.key"
    )

    async with (
        connect(settings(mosquitto.port, tls=good), client_id="node") as node,
        node.subscribe("a", qos=1, limit=99) as arrivals,
    ):
        sent = [bytes([number]) * 100_000 for number in range(8)]
        for payload in sent:
            await node.publish("a", payload, qos=1)
        taken = [await asyncio.wait_for(anext(arrivals), SOON_S) for _ in sent]
    assert [inbound.payload for inbound in taken] == sent

    stranger = good.model_copy(update={"ca": None})
    with pytest.raises(TransportError, match=r"the certificate of the broker at .* is not trusted"):
        async with connect(settings(mosquitto.port, tls=stranger), client_id="node"):
            pass
    bare = good.model_copy(update={"cert": None, "key": None})
    with pytest.raises(TransportError, match="broker at"):
        async with connect(settings(mosquitto.port, tls=bare), client_id="node"):
            pass
    with pytest.raises(TransportError, match=r"no broker at .*; what listens"):
        async with connect(settings(mosquitto.port), client_id="node"):
            pass


async def test_a_missing_certificate_file_is_named(tmp_path: Path) -> None:
    async with silent_server() as port:
        tls = TlsSettings(enabled=True, ca=tmp_path / "none.crt")
        with pytest.raises(TransportError, match=r"broker.tls: .*none.crt"):
            async with connect(settings(port, tls=tls), client_id="node"):
                pass


def restart(server: Mosquitto, options: str) -> None:
    """Starts a mosquitto again with other options."""
    server.stop()
    server.options = options
    server.start()


def make_keys(folder: Path) -> Path:
    """A certificate authority, and certificates of a broker on 127.0.0.1 and of a node."""
    new = [
        "openssl",
        "req",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-x509",
    ]
    name = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    signed = ["-CA", "ca.crt", "-CAkey", "ca.key"]
    run(*new, "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.crt", cwd=folder)
    for who in ("server", "node"):
        files = ["-keyout", f"{who}.key", "-out", f"{who}.crt"]
        run(*new, *name, *signed, *files, cwd=folder)
        (folder / f"{who}.key").chmod(0o644)
    return folder


def run(*command: str, cwd: Path) -> None:
    """A program that must succeed."""
    subprocess.run(command, cwd=cwd, check=True, capture_output=True)


@asynccontextmanager
async def silent_server() -> AsyncIterator[int]:
    """A port that takes connections and says nothing."""

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            while await reader.read(1024):
                pass
        writer.close()

    server = await asyncio.start_server(swallow, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


class BlackHole:
    """A relay that can stop to pass anything on, without closing a connection."""

    def __init__(self, target_port: int) -> None:
        self.port = free_port()
        self._target_port = target_port
        self._flows = asyncio.Event()
        self._flows.set()

    def swallow(self) -> None:
        """Nothing passes from now on."""
        self._flows.clear()

    def let_go(self) -> None:
        """Everything passes, late."""
        self._flows.set()

    async def relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, upstream = await asyncio.open_connection("127.0.0.1", self._target_port)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._copy(reader, upstream), name="up")
                tasks.create_task(self._copy(back, writer), name="down")
        finally:
            writer.close()
            upstream.close()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                await self._flows.wait()
                writer.write(data)
                await writer.drain()
            writer.close()
        except OSError:
            writer.close()


@asynccontextmanager
async def black_hole(target_port: int) -> AsyncIterator[BlackHole]:
    hole = BlackHole(target_port)
    server = await asyncio.start_server(hole.relay, "127.0.0.1", hole.port)
    async with server:
        yield hole
        server.close()
