"""What an agent needs, looked at one by one: rights, disk, clock, bundle, name, port, TLS.

Each look says what it saw and, where that is not enough, what to do. None changes anything but
for a test file in the state folder, which goes again. Waits are at most `LOOK_S` each.
"""

import os
import shutil
import socket
import ssl
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from edge_agent.outbox import CLOCK_IS_SET
from edge_agent.settings import AgentSettings
from fleet.errors import BundleError, FleetError, InvalidInputError, OutputError, TransportError
from fleet.models.bundle import DEVICE_FOLDER, PUBLIC_KEY, Bundle, reference_path
from fleet.transport.broker import BrokerSettings

LOOK_S = 5.0
EXPIRY_WARNING_S = 14 * 86_400.0
CLOCK_SLACK_S = 86_400.0

Verdict = Literal["ok", "warning", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What one look saw. `exit_code` is that of the error which it would end in."""

    subject: str
    verdict: Verdict
    saw: str
    to_do: str = ""
    exit_code: int = 0


def examine(settings: AgentSettings) -> Iterator[Finding]:
    """Looks at everything, in an order in which the first failure is the one to repair."""
    yield _rights(settings.state_path)
    yield _disk(settings.state_path, settings.outbox.reserve_bytes)
    yield _clock(settings.state_path, time.time())
    yield _bundle(settings)
    name = _name(settings.broker)
    yield name
    port = _after(name, "port", lambda: _port(settings.broker))
    yield port
    yield _after(port, "TLS", lambda: _tls(settings.broker))


def _failed(subject: str, error: type[FleetError], saw: str, to_do: str) -> Finding:
    return Finding(subject, "failed", saw, to_do, error.exit_code)


def _after(before: Finding, subject: str, look: Callable[[], Finding]) -> Finding:
    if before.verdict == "ok":
        return look()
    return Finding(subject, "skipped", f"not looked at: {before.subject} comes first")


# ── This machine ──────────────────────────────────────────────────────────────────────────


def _rights(folder: Path) -> Finding:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile(dir=folder) as probe:
            probe.write(b"probe")
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        return _failed(
            "rights",
            OutputError,
            f"{folder} cannot be written: {error.strerror}",
            f"let the user {os.getuid()} write there, or set state_dir",
        )
    return Finding("rights", "ok", f"{folder} can be written")


def _disk(folder: Path, reserve_bytes: int) -> Finding:
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return _failed("disk", OutputError, str(error.strerror), "see rights")
    saw = f"{free / 1e6:,.0f} MB free"
    if free < reserve_bytes:
        to_do = "free some space: records go without their per-token arrays until then"
        return Finding("disk", "warning", saw, to_do)
    return Finding("disk", "ok", saw)


def _clock(folder: Path, now: float) -> Finding:
    shown = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    to_do = "set the clock, by NTP if there is a network: certificates and ages depend on it"
    if now < CLOCK_IS_SET:
        return _failed("clock", InvalidInputError, f"{shown}: it was never set", to_do)
    newest = max((file.stat().st_mtime for file in _files(folder)), default=0.0)
    if newest > now + CLOCK_SLACK_S:
        days = (newest - now) / 86_400
        saw = f"{shown}: files of the state folder are {days:.0f} days ahead of it"
        return Finding("clock", "warning", saw, to_do)
    return Finding("clock", "ok", shown)


def _files(folder: Path) -> list[Path]:
    try:
        return [file for file in folder.iterdir() if file.is_file()]
    except OSError:
        return []


def _bundle(settings: AgentSettings) -> Finding:
    path = settings.bundle or reference_path() / DEVICE_FOLDER
    key = settings.public_key or reference_path() / PUBLIC_KEY
    try:
        manifest = Bundle.open(path.expanduser(), key.expanduser()).manifest
    except BundleError as error:
        to_do = "install the bundle again, or correct bundle and public_key"
        return _failed("bundle", BundleError, str(error), to_do)
    return Finding("bundle", "ok", f"{manifest.family} {manifest.device_version}, as signed")


# ── The way to the broker ─────────────────────────────────────────────────────────────────


def _name(broker: BrokerSettings) -> Finding:
    try:
        found = socket.getaddrinfo(broker.host, broker.port, type=socket.SOCK_STREAM)
    except OSError as error:
        to_do = "correct broker.host, or the machine's name servers"
        return _failed("DNS", TransportError, f"{broker.host}: {error.strerror or error}", to_do)
    addresses = ", ".join(sorted({str(entry[4][0]) for entry in found}))
    return Finding("DNS", "ok", f"{broker.host} is {addresses}")


def _port(broker: BrokerSettings) -> Finding:
    try:
        with socket.create_connection((broker.host, broker.port), timeout=LOOK_S):
            return Finding("port", "ok", f"{broker.address} takes connections")
    except OSError as error:
        why = error.strerror or f"no answer within {LOOK_S:g} s"
        to_do = "start the broker, correct broker.port, or open the firewall"
        return _failed("port", TransportError, f"{broker.address}: {why}", to_do)


def _tls(broker: BrokerSettings) -> Finding:
    tls = broker.tls
    if not tls.enabled:
        verdict: Verdict = "ok" if _is_local(broker.host) else "warning"
        to_do = "" if verdict == "ok" else "set broker.tls.enabled beyond this machine"
        return Finding("TLS", verdict, "off: nothing is encrypted", to_do)
    try:
        context = ssl.create_default_context(cafile=str(tls.ca) if tls.ca else None)
        if tls.cert is not None:
            context.load_cert_chain(tls.cert, tls.key)
        plain = socket.create_connection((broker.host, broker.port), timeout=LOOK_S)
        with closing(plain), context.wrap_socket(plain, server_hostname=broker.host) as link:
            certificate, version = link.getpeercert() or {}, link.version()
    except (OSError, ValueError) as error:
        to_do = "check broker.tls.ca, cert and key, the broker's certificate, and the clock"
        return _failed("TLS", TransportError, f"no handshake: {error}", to_do)
    left_s = ssl.cert_time_to_seconds(str(certificate["notAfter"])) - time.time()
    saw = f"{version}, the broker's certificate is good for {left_s / 86_400:.0f} days"
    if left_s < EXPIRY_WARNING_S:
        return Finding("TLS", "warning", saw, "renew the broker's certificate")
    return Finding("TLS", "ok", saw)


def _is_local(host: str) -> bool:
    return host in {"localhost", "::1"} or host.startswith("127.")
