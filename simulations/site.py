"""A hub and devices as separate processes on this machine, set up for a simulation."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from edge_agent.client import EdgeClient
from fleet.errors import FleetError
from fleet.models.bundle import CLOUD_FOLDER, DEVICE_FOLDER, PUBLIC_KEY
from simulations.broker import Kind
from simulations.processes import Program, listens, program


@dataclass(frozen=True, slots=True)
class Site:
    """Where the processes of one simulation live.

    Attributes:
        folder: Of state and logs.
        port: The broker's port on the loopback interface.
        models: Folder with device/, cloud/ and signing.pub; None for the shipped family.
        own_broker: Whether the hub starts the trial broker; else one listens on `port`.
        hub_settings: Further environment variables of hubs.
        start_s: How long a program may take until it listens.
    """

    folder: Path
    port: int
    models: Path | None
    own_broker: bool = True
    hub_settings: dict[str, str] = field(default_factory=dict)
    start_s: float = 40.0

    @property
    def store_url(self) -> str:
        """The hub's database."""
        return f"sqlite:///{self.folder / 'state' / 'hub' / 'hub.db'}"

    def log(self, name: str) -> Path:
        """The log of one program."""
        return self.folder / "logs" / f"{name}.log"

    def state(self, node: str) -> Path:
        """The state folder of one device."""
        return self.folder / "state" / node


@contextmanager
def broker(site: Site, kind: Kind = "trial", *, waits: bool = True) -> Iterator[Program]:
    """A broker in a process of its own, which outlives hubs; it listens if it was waited for."""
    arguments = ["simulations.broker", str(site.port), "--kind", kind]
    with program("broker", arguments, {}, site.log("broker")) as running:
        if waits:
            deadline = time.monotonic() + site.start_s
            running.wait_for("listen", lambda: listens(site.port), deadline)
        yield running


@contextmanager
def hub(site: Site, *, waits: bool = True) -> Iterator[Program]:
    """A hub, which listens if it was waited for; leaving the context stops it."""
    arguments = ["cloud_hub", "serve"]
    with _started(site, "hub", arguments, _hub_settings(site), waits=waits) as running:
        yield running


@contextmanager
def worker(site: Site, name: str = "worker", *, waits: bool = True) -> Iterator[Program]:
    """One more worker beside a hub that listens."""
    arguments = ["cloud_hub", "worker"]
    with _started(site, name, arguments, _hub_settings(site), waits=waits) as running:
        yield running


@contextmanager
def device(site: Site, node: str, link: str = "none", **settings: str) -> Iterator[Program]:
    """An agent that listens; `settings` are further environment variables."""
    environment = {
        "EDGE_AGENT_STATE_DIR": str(site.state(node)),
        "EDGE_AGENT_BROKER__PORT": str(site.port),
        "EDGE_AGENT_NODE__ID": node,
        "EDGE_AGENT_NODE__SEND_CAPTIONS": "true",
        "EDGE_AGENT_SIMULATION__LINK": link,
        **settings,
    }
    if site.models is not None:
        environment["EDGE_AGENT_BUNDLE"] = str(site.models / DEVICE_FOLDER)
        environment["EDGE_AGENT_PUBLIC_KEY"] = str(site.models / PUBLIC_KEY)
    with _started(site, node, ["edge_agent", "run"], environment) as running:
        yield running


def wait_for_hub(site: Site, node: str, agent: Program, deadline: float) -> None:
    """Returns when the device sees the hub.

    Raises:
        ProgramError: It does not in time, or has ended.
    """
    client = EdgeClient(site.state(node))

    def sees_hub() -> bool:
        try:
            return bool(client.status()["hub"]["is_up"])
        except FleetError:
            return False

    agent.wait_for("see the hub", sees_hub, deadline)


def _hub_settings(site: Site) -> dict[str, str]:
    settings = {
        "CLOUD_HUB_DATA_DIR": str(site.folder / "state" / "hub"),
        "CLOUD_HUB_BROKER__PORT": str(site.port),
        **site.hub_settings,
    }
    if not site.own_broker:
        settings["CLOUD_HUB_BROKER__HOST"] = "127.0.0.1"
    if site.models is not None:
        settings["CLOUD_HUB_MODEL"] = str(site.models / CLOUD_FOLDER)
    return settings


@contextmanager
def _started(
    site: Site, name: str, arguments: list[str], settings: dict[str, str], *, waits: bool = True
) -> Iterator[Program]:
    """A program that has said that it is ready, if `waits`; its log may be an earlier one's too."""
    log = site.log(name)
    log.parent.mkdir(parents=True, exist_ok=True)
    before = log.stat().st_size if log.exists() else 0
    with program(name, arguments, settings, log) as running:
        deadline = time.monotonic() + site.start_s
        if waits:
            running.wait_for("become ready", lambda: _ready(log, before), deadline)
        yield running


def _ready(log: Path, since: int) -> bool:
    with log.open("rb") as stream:
        stream.seek(since)
        return any(line.startswith(b"ready") for line in stream)
