"""The agent as a whole: everything is put together here, and nothing is chosen here."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from edge_agent.answer import Made, made_of
from edge_agent.api import application
from edge_agent.delivery import Delivery
from edge_agent.device import Device
from edge_agent.endpoint import HOST, Endpoint, new_token, published
from edge_agent.generate import Outcome
from edge_agent.learning import LAW_SIZE, Learning, can_train, readiness
from edge_agent.maker import Around, Maker, Report, Wish
from edge_agent.model_store import ModelStore, Signed
from edge_agent.outbox import Limits, Outbox
from edge_agent.presence import Counts, Presence
from edge_agent.record import Recorder
from edge_agent.remote import Remote
from edge_agent.repair import Bench, repair_all, unfinished_of
from edge_agent.settings import AgentSettings
from edge_agent.shelf import Shelf, Unfinished
from edge_agent.station import Station, agent_version
from edge_agent.surroundings import Surroundings
from edge_agent.threads import remembered
from edge_agent.training.trainer import READY, Trainer
from edge_agent.training.worker import Worker
from edge_agent.updates import Replaceable, Updates
from edge_agent.verifier import Patience, Speaker, Verifier
from fleet.errors import OutputError
from fleet.logs import configure_logs
from fleet.models.bundle import DEVICE_FOLDER, PUBLIC_KEY, Bundle, Manifest, reference_path
from fleet.protocol import topics
from fleet.serving import serving
from fleet.transport.base import Transport
from fleet.transport.calls import Calls

Announce = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Agent:
    """A running agent."""

    station: Station
    device: Replaceable
    maker: Maker
    delivery: Delivery
    surroundings: Surroundings
    shelf: Shelf
    remote: Remote

    @property
    def manifest(self) -> Manifest:
        """Of the model that runs now."""
        return self.device.manifest

    async def make(self, wish: Wish, report: Report) -> Made:
        """One picture; see `Maker.make`."""
        outcome, note = await self.maker.make(wish, report)
        made = made_of(outcome, self.manifest.device_version, note)
        if outcome.without_cloud == "repair" and made.unverified and made.fallback != "refused":
            return await self._shelve(outcome, made)
        return made

    async def remake(self, unfinished: Unfinished) -> Made:
        """A picture corrected by the cloud; see `Maker.remake`."""
        outcome, note = await self.maker.remake(unfinished)
        return made_of(
            outcome, self.manifest.device_version, note, repairs=unfinished.generation_id
        )

    def can_repair(self) -> bool:
        """Whether the cloud is there and nobody waits."""
        around = self.surroundings
        is_there = around.link_is_up and bool(around.hub and around.hub.up)
        return is_there and not self.maker.is_working

    async def _shelve(self, outcome: Outcome, made: Made) -> Made:
        note = (
            "it is corrected when the cloud is back: then `edge_agent pictures"
            f" {made.generation_id} -o FILE` has the new version"
        )
        unfinished = unfinished_of(outcome, self.manifest.device_version)
        try:
            await asyncio.to_thread(self.shelf.put, unfinished, made)
        except OutputError as error:
            note = f"it will not be corrected: {error}"
        return made.model_copy(update={"notes": [*made.notes, note]})

    async def counts(self) -> Counts:
        """What a heartbeat counts."""
        return Counts(self.maker.pictures, await self.delivery.spool())

    async def status(self) -> dict[str, Any]:
        """What the agent is and sees, as JSON."""
        around, hub = self.surroundings, self.surroundings.hub
        spool = await self.delivery.spool()
        return {
            "node": self.station.node,
            "boot": self.station.boot,
            "pid": os.getpid(),
            "agent_version": agent_version(),
            "state_dir": str(self.station.path),
            "family": self.manifest.family,
            "device_version": self.manifest.device_version,
            "broker": {
                "address": around.broker,
                "is_up": around.link_is_up,
                "since": around.link_since,
            },
            "hub": {
                "is_up": bool(hub and hub.up and around.link_is_up),
                "since": around.hub_since,
                "worker": hub.worker if hub else "",
                "cloud_version": hub.cloud_version if hub else "",
            },
            "settings_version": self.remote.version,
            "pictures": self.maker.pictures,
            "is_working": self.maker.is_working,
            "waiting": self.maker.waiting,
            "pictures_to_correct": len([one for one in self.shelf.all() if one.state == "waiting"]),
            "outbox_records": spool.records,
            "outbox_lost": spool.lost,
            "outbox_stripped": spool.stripped,
            "outbox_lost_sums": spool.sums,
            "advice": around.advice,
        }


@dataclass(frozen=True, slots=True)
class Versions:
    """Where other versions of the device's model are had, and how one is loaded and tested."""

    store: ModelStore
    load: Callable[[Signed], Device]


def load_device(settings: AgentSettings, *, trains: bool = False) -> Device:
    """The device model of the settings' bundle, every byte checked; for an agent that `trains`,
    if it can, one that keeps hidden states.

    Raises:
        BundleError: A file is missing or not what was signed.
    """
    from edge_agent.bundle_device import BundleDevice, fastest_threads

    bundle = Bundle.open(*_bundle_paths(settings))
    threads = settings.device.threads or remembered(
        settings.state_path / "threads.json",
        bundle.manifest.made_by,  # another head costs the same
        lambda: fastest_threads(bundle, os.cpu_count() or 1),
    )
    keeps_states = trains and can_train(settings.training)
    told = settings.state_path / "told"
    return BundleDevice(bundle, threads, keeps_states=keeps_states, told=told)


def _load_tested(settings: AgentSettings, signed: Signed) -> Device:
    """The device model of a version that was fetched, if it passes its self-test."""
    from edge_agent.bundle_device import BundleDevice

    device = load_device(settings.model_copy(update=signed.as_settings), trains=True)
    assert isinstance(device, BundleDevice)  # noqa: S101 - for the type checker
    device.self_test()
    return device


def _bundle_paths(settings: AgentSettings) -> tuple[Path, Path]:
    path = settings.bundle or reference_path() / DEVICE_FOLDER
    key = settings.public_key or reference_path() / PUBLIC_KEY
    return path.expanduser(), key.expanduser()


def presence_of(station: Station, manifest: Manifest, training: str = "") -> Presence:
    """How this node shows itself; its will goes into the connection."""
    return Presence(station, manifest.device_version, manifest.family, training)


async def run(
    settings: AgentSettings,
    station: Station,
    device: Device,
    transport: Transport,
    announce: Announce,
) -> None:
    """Makes pictures for callers on this machine until cancelled.

    Raises:
        AddressInUseError: Another process holds the API's port.
        OutputError: The state folder cannot be written.
    """
    async with agent(settings, station, device, transport, announce, trains=True) as running:
        token = new_token()
        app = application(running.make, running.status, running.shelf, token)
        async with serving(app, HOST, settings.api.port, "api.port") as port:
            with published(station.api_path, Endpoint(port, token, os.getpid())):
                announce("ready")
                await asyncio.Event().wait()


@asynccontextmanager
async def agent(  # noqa: PLR0913 - what an agent is made of
    settings: AgentSettings,
    station: Station,
    device: Device,
    transport: Transport,
    announce: Announce,
    *,
    trains: bool = False,
    versions: Versions | None = None,
) -> AsyncIterator[Agent]:
    """An agent at work on `transport`; says goodbye at the end. With `trains` it joins rounds.

    One that trains, or is given `versions`, follows the version that the operator wants.

    Raises:
        OutputError: The outbox cannot be opened.
    """
    fitted = Replaceable(device)
    spool = settings.outbox
    limits = Limits(spool.max_bytes, spool.max_records, spool.max_age_s, spool.reserve_bytes)
    with Outbox(station.outbox_path, limits) as outbox:
        delivery = Delivery(outbox, transport, station.node, settings.outbox.resend_s)
        async with Calls(transport, topics.inbox(station.node, station.boot)) as calls:
            training = readiness(settings.training, device) if trains else ""
            learning = None
            if training == READY:
                learning = Learning(station.training_path, device.manifest, settings.training)
            links = _Links(transport, calls, delivery, learning)
            running = _assemble(settings, station, fitted, links, announce)
            presence = presence_of(station, device.manifest, training)
            async with asyncio.TaskGroup() as tasks:
                background = [
                    tasks.create_task(work, name=name)
                    for name, work in (
                        ("outbox", delivery.run(calls, station.boot)),
                        ("surroundings", running.surroundings.run(transport)),
                        (
                            "remote settings",
                            running.remote.follow(transport, station.node, station.boot),
                        ),
                        ("repair", repair_all(running.shelf, _bench(running))),
                        (
                            "presence",
                            presence.run(transport, settings.node.heartbeat_s, running.counts),
                        ),
                    )
                ]
                worker = _worker(settings, running)
                if learning is not None:
                    trainer = Trainer(station.node, station.training_path, worker, transport)
                    background.append(tasks.create_task(trainer.run(), name="training"))
                if trains or versions is not None:
                    known = versions or _signed_versions(settings, running)
                    updates = _updates(running, worker, presence, known)
                    background.append(tasks.create_task(updates.run(), name="updates"))
                try:
                    yield running
                finally:
                    for task in background:
                        task.cancel()
                    await presence.goodbye(transport, running.counts)


def _worker(settings: AgentSettings, running: Agent) -> Worker:
    folder, maker = running.station.training_path, running.maker
    return Worker((folder, *_bundle_paths(settings)), lambda: maker.is_working or maker.waiting > 0)


def _signed_versions(settings: AgentSettings, running: Agent) -> Versions:
    path, key = _bundle_paths(settings)
    fetched_key = settings.device.public_key
    base = Signed(path, key, running.device.manifest)
    store = ModelStore(running.station.models_path, base, fetched_key or key)
    return Versions(store, partial(_load_tested, settings))


def _updates(running: Agent, worker: Worker, presence: Presence, versions: Versions) -> Updates:
    """What follows the version that the operator wants, from now on."""

    async def replace(signed: Signed, device: Device) -> None:
        await running.maker.replace(lambda: running.device.take(device))
        await worker.rebase((running.station.training_path, signed.path, signed.public_key))

    def tell(what: str) -> None:
        presence.tell(running.manifest.device_version, what)

    updates = Updates(versions.store, versions.load, replace, tell)
    running.remote.watch(lambda now: updates.want(now.device.version, now.device.source))
    return updates


def _bench(running: Agent) -> Bench:
    return Bench(
        lambda: running.manifest.device_version,
        running.can_repair,
        running.remake,
        running.surroundings.announce,
    )


@dataclass(frozen=True, slots=True)
class _Links:
    """What leads out of the process, and where what the cloud teaches is kept."""

    transport: Transport
    calls: Calls
    delivery: Delivery
    learning: Learning | None


def _assemble(
    settings: AgentSettings,
    station: Station,
    device: Replaceable,
    links: _Links,
    announce: Announce,
) -> Agent:
    wishes = settings.generation
    law_size = LAW_SIZE if links.learning else 0
    verifier = Verifier(
        links.transport,
        links.calls,
        Speaker(station.node, station.boot, device.manifest.family, law_size),
        Patience(wishes.open_deadline_s, wishes.request_deadline_s, wishes.retry_after_s),
    )

    recorder = Recorder(station.boot, device, settings.record, settings.node.send_captions)

    async def keep(outcome: Outcome, repairs: str) -> str:
        record = recorder.record(outcome, repairs=repairs)  # before another model may run
        if links.learning is not None:
            await links.learning.keep(outcome)
        return await links.delivery.put(record)

    surroundings = Surroundings(settings.broker.address, announce, verifier.worker_is_down)
    around = Around(
        keep, surroundings.link_down_s, lambda: surroundings.hub_absent_s(verifier.heard_at)
    )
    maker = Maker(device, wishes, verifier, around)
    shelf = Shelf(
        station.shelf_path, limit=settings.shelf.max_pictures, keep_s=settings.shelf.keep_s
    )

    def apply(changed: AgentSettings) -> None:
        maker.configure(changed.generation)
        recorder.settings = changed.record
        if changed.log != settings.log:
            configure_logs(log_format=changed.log.format, level=changed.log.level)

    remote = Remote(station.desired_path, settings, apply)
    remote.start()
    return Agent(station, device, maker, links.delivery, surroundings, shelf, remote)
