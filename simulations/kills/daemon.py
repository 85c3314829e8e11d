"""The agent's daemon under random SIGKILLs: it always starts, on a whole bundle and a whole spool.

The daemon of `edge_agent run` draws pictures for a caller all the time, without a hub. In each life
the operator wants the other one of two signed versions, which the daemon fetches over HTTP and
switches to. Kills fall anywhere: while it starts, draws, spools, fetches or switches. After each,
the spool is held against what callers were answered, and kept versions against their signatures.
"""

import asyncio
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

from edge_agent.client import EdgeClient
from edge_agent.outbox import Limits, Outbox
from fleet.errors import FleetError
from fleet.ids import NodeId
from fleet.models.bundle import PUBLIC_KEY, STEP_GRAPH, Bundle, write_bundle
from fleet.models.head_weights import head_of, with_head
from fleet.models.signing import generate_key
from fleet.protocol import topics
from fleet.protocol.codec import decode, encode
from fleet.protocol.messages import DesiredSettings
from fleet.transport.broker import BrokerSettings
from fleet.transport.mqtt import connect
from simulations.processes import Program, free_port, program
from simulations.site import Site, broker

NODE = NodeId("mortal")
CAPTION = "google: red heart"
START_S = 60.0
LONGEST_UP_S, LONGEST_START_S = 2.5, 2.0
START_SHARE = 0.4  # of the kills that fall within the first seconds, ready or not
_SPOOL = Limits(max_bytes=1 << 30, max_records=1_000_000)


@dataclass(frozen=True, slots=True)
class Deaths:
    """What became of a daemon.

    Attributes:
        kills: All; of these `in_start` before it was ready.
        start_s: Until it was ready, half of the starts took less.
        pictures: That callers were answered.
        lost: Answered pictures without a record in the spool.
        torn: Times that the spool, or a kept version, was not whole.
        switches: Lives that came to the version which was wanted in them.
    """

    kills: int
    in_start: int
    start_s: float
    pictures: int
    lost: int
    torn: int
    switches: int


def bench(
    models: tuple[Path, Path], count: int, seed: int, out: Path, say: Callable[[str], None]
) -> Deaths:
    """Kills a daemon `count` times and lets it live once more.

    Args:
        models: Device folder and public key of a family.
        count: Kills.
        seed: Decides the moments.
        out: Folder of state, versions and logs.
        say: Told of each kill.

    Raises:
        ProgramError: The daemon ended by itself, or did not become ready.
        BundleError: The family's bundle is not whole.
    """
    versions = _versions(*models, out / "versions")
    site = Site(out, free_port(), None)
    with broker(site), _served(out / "versions") as source:
        mortal = _Mortal(site, out / "versions", versions, source)
        for number in range(count):
            mortal.live(random.Random(f"{seed} {number}"), number)
            say(f"kill {number + 1} of {count}: {mortal.told()}")
        mortal.live(None, count)
    return mortal.deaths()


class _Mortal:
    """A daemon through all its lives, and what callers and operator saw of it."""

    def __init__(self, site: Site, folder: Path, versions: list[str], source: str) -> None:
        self._site, self._folder, self._versions, self._source = site, folder, versions, source
        self._caller = _Caller(EdgeClient(site.state(NODE)))
        self._starts: list[float] = []
        self._kills = self._in_start = self._torn = self._switches = 0

    def live(self, rng: random.Random | None, number: int) -> None:
        """One life: until its kill, or without `rng` until it runs what is wanted."""
        wanted = self._versions[number % 2]
        asyncio.run(self._want(wanted, number + 1))
        environment = {
            "EDGE_AGENT_STATE_DIR": str(self._site.state(NODE)),
            "EDGE_AGENT_BROKER__PORT": str(self._site.port),
            "EDGE_AGENT_NODE__ID": NODE,
            "EDGE_AGENT_BUNDLE": str(self._folder / self._versions[0]),
            "EDGE_AGENT_PUBLIC_KEY": str(self._folder / PUBLIC_KEY),
            "EDGE_AGENT_GENERATION__START_PATIENCE_S": "0",
            "EDGE_AGENT_GENERATION__OUTAGE_PATIENCE_S": "0",
        }
        log = self._site.log(f"{NODE}-{number}")
        with program(NODE, ["edge_agent", "run"], environment, log) as running:
            began = time.monotonic()
            if rng is not None and rng.random() < START_SHARE:
                time.sleep(rng.uniform(0, LONGEST_START_S))
                self._kill(running)
            else:
                running.wait_for("become ready", lambda: running.says("ready"), began + START_S)
                self._starts.append(time.monotonic() - began)
                with self._caller.asking():
                    if rng is None:
                        self._see_switched(running, wanted)
                    else:
                        time.sleep(rng.uniform(0, LONGEST_UP_S))
                        self._kill(running)
                self._switches += self._caller.version == wanted
        self._look()

    def _kill(self, running: Program) -> None:
        if not running.is_running:
            raise running.failure(f"ended with exit code {running.process.returncode}")
        self._in_start += not running.says("ready")
        self._kills += 1
        running.kill()

    def _see_switched(self, running: Program, wanted: str) -> None:
        deadline = time.monotonic() + START_S
        caller = self._caller
        running.wait_for("run the wanted version", lambda: caller.version == wanted, deadline)

    def told(self) -> str:
        """How it is, in a few words."""
        return f"{len(self._caller.answered)} pictures, {self._torn} torn, {self._lost()} lost"

    def deaths(self) -> Deaths:
        """The figures of all lives."""
        return Deaths(
            self._kills,
            self._in_start,
            float(np.median(self._starts)),
            len(self._caller.answered),
            self._lost(),
            self._torn,
            self._switches,
        )

    async def _want(self, version: str, number: int) -> None:
        settings = {"device.version": f'"{version}"', "device.source": f'"{self._source}"'}
        desired = DesiredSettings(version=number, settings=settings)
        where = BrokerSettings(host="127.0.0.1", port=self._site.port)
        async with connect(where, client_id="operator", will=None) as transport:
            await transport.publish(topics.desired(NODE), encode(desired), qos=1, retain=True)

    def _look(self) -> None:
        """Holds spool and kept versions against what they must be."""
        state = self._site.state(NODE)
        spool = state / "outbox.sqlite"
        if spool.exists():
            with closing(sqlite3.connect(spool)) as database:
                (found,) = database.execute("PRAGMA integrity_check").fetchone()
            self._torn += found != "ok"
        for folder in (state / "models").glob("*"):
            if folder.suffix != ".part":
                self._torn += not _is_whole(folder, self._folder / PUBLIC_KEY)

    def _lost(self) -> int:
        spool = self._site.state(NODE) / "outbox.sqlite"
        if not spool.exists():
            return len(self._caller.answered)
        with Outbox(spool, _SPOOL) as outbox:
            kept: list[Any] = [decode(each.payload) for each in outbox.pending(1_000_000)]
        return len(self._caller.answered - {record.generation_id for record in kept})


class _Caller:
    """Somebody who wants one picture after the other of whoever lives."""

    def __init__(self, client: EdgeClient) -> None:
        self.answered: set[str] = set()
        self.version = ""  # of the last picture in this life
        self._client, self._ends = client, threading.Event()

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Asks until the context ends; the last answer may be one that a kill cut short."""
        self.version = ""
        self._ends.clear()
        thread = threading.Thread(target=self._ask, name="caller", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ends.set()
            thread.join(START_S)

    def _ask(self) -> None:
        while not self._ends.is_set():
            with suppress(FleetError, OSError):
                made = self._client.generate(CAPTION, seed=len(self.answered), deadline_s=30)
                self.answered.add(made.generation_id)
                self.version = made.device_version


def _is_whole(folder: Path, key: Path) -> bool:
    try:
        bundle = Bundle.open(folder, key)
        for entry in bundle.manifest.files:
            bundle.read(entry.name)
    except FleetError:
        return False
    return True


def _versions(device: Path, key: Path, folder: Path) -> list[str]:
    """Two versions of a device model, signed by a key of our own: as it is, and another head."""
    base = Bundle.open(device, key)
    files = {entry.name: base.read(entry.name) for entry in base.manifest.files}
    fields = base.manifest.model_dump(exclude={"format", "files", "device_version"})
    folder.mkdir(parents=True, exist_ok=True)
    private = folder / "signing.key"
    generate_key(private, folder / PUBLIC_KEY)
    head = head_of(files[STEP_GRAPH])
    head = replace(head, radius_bias=head.radius_bias + np.float32(0.01))
    other = {**files, STEP_GRAPH: with_head(files[STEP_GRAPH], head)}
    first = write_bundle(folder / "draft", fields, files, private)
    (folder / "draft").rename(folder / first.device_version)
    fields["backbone"] = first.made_by
    second = write_bundle(folder / "draft", fields, other, private)
    (folder / "draft").rename(folder / second.device_version)
    return [first.device_version, second.device_version]


class _Silent(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def _served(folder: Path) -> Iterator[str]:
    """The folder over HTTP on the loopback interface."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Silent, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
