"""The doctor sees what is wrong, says what to do, and ends with the code of what would follow."""

import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from edge_agent import doctor
from edge_agent.cli import main
from edge_agent.doctor import Finding, examine
from edge_agent.settings import AgentBrokerSettings, AgentSettings, OutboxSettings
from fleet.transport.broker import TlsSettings


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as open_port:
        yield open_port


def settings(tmp_path: Path, port: int, **fields: object) -> AgentSettings:
    broker = AgentBrokerSettings(host="127.0.0.1", port=port)
    known = {"state_dir": tmp_path / "state", "broker": broker, **fields}
    return AgentSettings.model_validate(known)


def look(wanted: AgentSettings) -> dict[str, Finding]:
    return {finding.subject: finding for finding in examine(wanted)}


def port_of(listener: socket.socket) -> int:
    return int(listener.getsockname()[1])


def test_a_sound_device_has_nothing_to_do(tmp_path: Path, listener: socket.socket) -> None:
    found = look(settings(tmp_path, port_of(listener)))

    assert ["rights", "disk", "clock", "bundle", "DNS", "port", "TLS"] == list(found)
    assert {"ok"} == {finding.verdict for finding in found.values()}
    assert [] == list((tmp_path / "state").iterdir())


def test_a_closed_port_is_told_and_what_lies_behind_is_not_looked_at(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = port_of(listener)

    found = look(settings(tmp_path, port))

    assert ("failed", 3) == (found["port"].verdict, found["port"].exit_code)
    assert "start the broker" in found["port"].to_do
    assert "skipped" == found["TLS"].verdict


def test_a_name_that_nobody_knows_is_told(tmp_path: Path) -> None:
    broker = AgentBrokerSettings(host="no-such-host.invalid")

    found = look(AgentSettings(state_dir=tmp_path / "state", broker=broker))

    assert "failed" == found["DNS"].verdict
    assert "skipped" == found["port"].verdict


def test_a_bundle_that_is_not_what_was_signed_is_told(
    tmp_path: Path, listener: socket.socket
) -> None:
    (tmp_path / "bundle").mkdir()

    found = look(settings(tmp_path, port_of(listener), bundle=tmp_path / "bundle"))

    assert ("failed", 4) == (found["bundle"].verdict, found["bundle"].exit_code)
    assert "ok" == found["port"].verdict


def test_a_state_folder_that_is_a_file_is_told(tmp_path: Path, listener: socket.socket) -> None:
    (tmp_path / "state").write_text("")

    found = look(settings(tmp_path, port_of(listener)))

    assert ("failed", 9) == (found["rights"].verdict, found["rights"].exit_code)


def test_little_disk_is_a_warning(tmp_path: Path, listener: socket.socket) -> None:
    outbox = OutboxSettings(reserve_bytes=1 << 60)

    found = look(settings(tmp_path, port_of(listener), outbox=outbox))

    assert "warning" == found["disk"].verdict


@pytest.mark.parametrize(("now", "verdict"), [(1000.0, "failed"), (1.8e9, "warning")])
def test_a_clock_that_was_never_set_or_went_back_is_told(
    tmp_path: Path, now: float, verdict: str
) -> None:
    file = tmp_path / "outbox.sqlite"
    file.write_text("")
    import os

    os.utime(file, (1.9e9, 1.9e9))

    assert verdict == doctor._clock(tmp_path, now).verdict


def test_plain_text_beyond_this_machine_is_a_warning() -> None:
    assert "warning" == doctor._tls(AgentBrokerSettings(host="10.0.0.1")).verdict


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    new = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    out = ["-nodes", "-days", "3", "-keyout", str(key), "-out", str(cert)]
    subprocess.run([*new, *names, *out], check=True, capture_output=True)
    return cert, key


def test_a_handshake_tells_how_long_the_certificate_is_good(
    listener: socket.socket, certificate: tuple[Path, Path]
) -> None:
    cert, key = certificate
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)

    def serve(times: int) -> None:
        for _ in range(times):
            link, _ = listener.accept()
            try:
                context.wrap_socket(link, server_side=True).close()
            except OSError:
                link.close()

    thread = threading.Thread(target=serve, args=(2,), daemon=True)
    thread.start()
    broker = AgentBrokerSettings(host="127.0.0.1", port=port_of(listener))

    trusted = doctor._tls(broker.model_copy(update={"tls": TlsSettings(enabled=True, ca=cert)}))
    unknown = doctor._tls(broker.model_copy(update={"tls": TlsSettings(enabled=True)}))
    thread.join(10)

    assert ("warning", True) == (trusted.verdict, "3 days" in trusted.saw)
    assert ("failed", 3) == (unknown.verdict, unknown.exit_code)


def test_the_command_ends_with_the_code_of_the_first_failure(
    tmp_path: Path, listener: socket.socket
) -> None:
    config = tmp_path / "agent.toml"
    (tmp_path / "bundle").mkdir()
    lines = [
        f'state_dir = "{tmp_path / "state"}"',
        f'bundle = "{tmp_path / "bundle"}"',
        "[broker]",
        f"port = {port_of(listener)}",
    ]
    config.write_text("\n".join(lines))

    result = CliRunner().invoke(main, ["doctor", "--config", str(config)])

    assert 4 == result.exit_code
    assert "to do" in result.output
    assert "takes connections" in result.output
