"""The hub's composition: what `cloud_hub serve`, `cloud_hub worker` and the simulations run."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from cloud_hub import caring, metrics, nodes, presence, recording
from cloud_hub.engine.collect import Pace
from cloud_hub.engine.loop import Engine
from cloud_hub.engine.runner import Runner
from cloud_hub.engine.scheduler import Limits, Scheduler
from cloud_hub.engine.sessions import Sessions
from cloud_hub.engine.steps import Task
from cloud_hub.intake import Intake
from cloud_hub.late_checks import LateChecks
from cloud_hub.notices import Notices
from cloud_hub.rollout import by_itself
from cloud_hub.rounds import scheduling
from cloud_hub.rounds.conditions import Serving
from cloud_hub.settings import EngineSettings, HubSettings
from cloud_hub.spot_checks import Codes, SpotChecks
from cloud_hub.store import revision
from cloud_hub.store.database import Database
from cloud_hub.verification import Service
from fleet.errors import BundleError, InvalidInputError
from fleet.ids import BootId, ModelVersion, WorkerId, new_id
from fleet.logs import get_logger
from fleet.models.bundle import (
    CLOUD_FOLDER,
    DEVICE_FOLDER,
    MANIFEST,
    PUBLIC_KEY,
    VOCABULARY,
    Bundle,
    reference_path,
)
from fleet.models.caption import Captions, CaptionVocabulary
from fleet.protocol import topics
from fleet.serving import serving
from fleet.transport.base import Transport

log = get_logger(__name__)

_GOODBYE_S = 5.0
_WORKERS = 256  # statuses of workers not yet looked at


@dataclass(frozen=True, slots=True)
class Hub:
    """What a worker needs beside its link: a model and a name, and a database if it records."""

    identity: presence.Identity
    service: Service
    runner: Runner
    codes: Codes
    database: Database | None

    def close(self) -> None:
        """Closes the database."""
        if self.database is not None:
            self.database.close()


def open_hub(settings: HubSettings) -> Hub:
    """Loads the model and opens the database; blocks for a second or two. Close the hub.

    Raises:
        BundleError: The cloud model is incomplete, of another format, or not its bundle's.
        StoreError: The database is of another revision, or cannot be used.
        InvalidInputError: The memory for the KV cache holds no picture.
    """
    database = Database(settings.store_url)
    try:
        revision.prepare(database, create=settings.store.url is None)
        return _load(settings, database)
    except BaseException:
        database.close()
        raise


def open_worker(settings: HubSettings) -> Hub:
    """Loads the model for a worker that verifies and leaves records to others.

    Raises:
        BundleError, InvalidInputError: As `open_hub`.
    """
    return _load(settings, None)


async def serve(
    settings: HubSettings,
    transport: Transport,
    hub: Hub,
    *,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Works until cancelled; `ready` is called when all listens.

    Every worker verifies; one with a database also records, checks and follows nodes.
    """
    engine = _engine(settings.engine, hub.runner)
    notices = Notices(time.monotonic)
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(metrics.exposed(engine, settings.metrics.host, settings.metrics.port))
        if settings.models.port is not None:
            files = model_files(settings.models_path)
            place = (settings.models.host, settings.models.port)
            await stack.enter_async_context(serving(files, *place, "models.port"))
        work = await _verify(settings, transport, hub, engine, notices, stack)
        if hub.database is not None:
            checks = _checks(settings, hub, notices)
            engine.watch = checks.watch
            work["spot checks"] = checks.run(hub.database)
            late = LateChecks(engine, hub.service, notices, settings.engine.check_share)
            work["late checks"] = late.run()
            work["care"] = caring.run(hub.database, settings.store)
            work["round schedule"] = _schedule(settings, transport, hub, hub.database)
            work["rollouts"] = _rollouts(settings, transport, hub.database)
            work |= await _record(settings, transport, hub.database, notices, late, stack)
        try:
            async with asyncio.TaskGroup() as group:
                for name, coroutine in work.items():
                    group.create_task(coroutine, name=name)
                ready()
        finally:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_GOODBYE_S):
                    await presence.say(transport, hub.identity, up=False)
            log.info("engine", **engine.counters.summary(), notices=dict(notices.counts))


Work = dict[str, Coroutine[Any, Any, None]]


async def _verify(  # the parts of a worker
    settings: HubSettings,
    transport: Transport,
    hub: Hub,
    engine: Engine,
    notices: Notices,
    stack: contextlib.AsyncExitStack,
) -> Work:
    requests = (topics.OPENS, topics.requests_to(hub.identity.worker))
    asked = await stack.enter_async_context(
        transport.subscribe(*requests, qos=0, limit=settings.engine.inbox)
    )
    workers = await stack.enter_async_context(
        transport.subscribe(topics.HUB_STATES, qos=1, limit=_WORKERS)
    )
    return {
        "engine": engine.run(),
        "intake": Intake(transport, engine, hub.service, notices).run(asked),
        "presence": presence.announce(transport, hub.identity),
        "other workers": presence.tidy(transport, workers, hub.identity),
        "counters": _report(engine, notices, settings.log.counters_s),
    }


def _checks(settings: HubSettings, hub: Hub, notices: Notices) -> SpotChecks:
    share, version = settings.engine.check_share, hub.identity.cloud_version
    return SpotChecks(share, hub.codes, version, notices)


def _schedule(
    settings: HubSettings, transport: Transport, hub: Hub, database: Database
) -> Coroutine[Any, Any, None]:
    serving = Serving(hub.identity.cloud_version, settings.engine.law_share)
    bundle = partial(device_bundle, settings.model)
    return scheduling.run(scheduling.Hub(transport, database, serving, bundle))


def _rollouts(
    settings: HubSettings, transport: Transport, database: Database
) -> Coroutine[Any, Any, None]:
    bundle = partial(device_bundle, settings.model)
    return by_itself.run(
        by_itself.Hub(transport, database, settings.rollout, settings.models_path, bundle)
    )


def model_files(folder: Path) -> Starlette:
    """The bundles that rounds made, below /models; parts of files may be asked for."""
    return Starlette(routes=[Mount("/models", StaticFiles(directory=folder, check_dir=False))])


def device_bundle(model: Path | None, folder: Path | None = None) -> Bundle:
    """The device bundle in `folder`, or the one that belongs to the cloud model.

    Raises:
        BundleError: There is none, or it is not what was signed.
    """
    path = folder or (_home(model) if model else reference_path()) / DEVICE_FOLDER
    return Bundle.open(path, path.parent / PUBLIC_KEY)


async def _record(
    settings: HubSettings,
    transport: Transport,
    database: Database,
    notices: Notices,
    late: LateChecks,
    stack: contextlib.AsyncExitStack,
) -> Work:
    store: dict[str, Any] = {"limit": settings.store.batch, "wait_s": settings.store.batch_wait_s}
    queue = settings.store.queue
    records = await stack.enter_async_context(
        transport.subscribe(topics.RECORDS, qos=1, limit=queue)
    )
    states = await stack.enter_async_context(
        transport.subscribe(topics.NODE_STATES, qos=1, limit=queue)
    )
    return {
        "recording": recording.record(
            transport, records, database, notices, **store, stored=late.take
        ),
        "nodes": nodes.follow(states, database, notices, **store),
    }


def _load(settings: HubSettings, database: Database | None) -> Hub:
    # torch takes a second to import, and only `serve` needs it.
    from cloud_hub.engine.torch_runner import TorchRunner, prepare_process, slots_in
    from fleet.models.linked import linked_tokenizer, load_linked
    from fleet.models.linked_config import is_linked
    from fleet.models.torch_model import CloudModel, load_image_tokenizer

    prepare_process(settings.engine.threads)
    folder = settings.model or reference_path() / CLOUD_FOLDER
    model: CloudModel
    captions: Captions
    if is_linked(folder):
        if settings.engine.precision != "fp16":
            raise InvalidInputError(
                f"engine.precision is of a family's cloud; {folder} names its own, dtype: change it"
                " there, or leave the setting out"
            )
        model = linked = load_linked(folder, settings.engine.device)
        captions, tokenizer = linked.captions, linked_tokenizer(folder)
    else:
        model = CloudModel.load(folder, settings.engine.device, settings.engine.precision)
        captions = CaptionVocabulary.load(folder / VOCABULARY)
        tokenizer = load_image_tokenizer(folder)
    _check_pair(folder, model.version)
    runner = TorchRunner(model, slots_in(model, settings.engine.cache_mib))
    identity = presence.Identity(
        worker=WorkerId(settings.worker or f"w-{new_id()[:8]}"),
        boot=BootId(new_id()),
        family=model.family,
        cloud_version=model.version,
        hub_version=metadata.version("ciar-fleet"),
    )
    service = Service(
        worker=identity.worker,
        family=model.family,
        cloud_version=model.version,
        positions=model.tokens,
        vocab_size=model.vocab_size,
        captions=captions,
        captions_take_long=is_linked(folder),
        law_share=settings.engine.law_share,
    )
    codes = tokenizer.quantize.codes.detach().numpy()
    return Hub(identity, service, runner, codes, database)


def _home(folder: Path) -> Path:
    """Where a cloud model's device bundle and its public key lie: beside it, or, where its folder
    only points at files and others lie beside it, inside."""
    from fleet.models.linked_config import is_linked

    return folder if is_linked(folder) else folder.parent


def _check_pair(folder: Path, version: ModelVersion) -> None:
    """Holds a cloud model against the signed device bundle of its own, where there is one.

    Raises:
        BundleError: The bundle was made with another cloud model, or is not what was signed.
    """
    bundle = _home(folder) / DEVICE_FOLDER
    if not (bundle / MANIFEST).exists():
        return
    wanted = Bundle.open(bundle, bundle.parent / PUBLIC_KEY).manifest.cloud_version
    if wanted != version:
        raise BundleError(
            f"the cloud model in {folder} is {version}, but the bundle beside it was made with"
            f" {wanted}: fetch both again"
        )


def _engine(settings: EngineSettings, runner: Runner) -> Engine:
    limits = Limits(
        jobs=settings.queue,
        node_jobs=settings.node_queue,
        batch_tokens=settings.batch_tokens,
        batch_spans=settings.batch_spans,
        quantum=settings.quantum,
        aging_s=settings.aging_s,
        node_share=settings.node_share,
    )
    sessions = Sessions(
        slots=runner.slots,
        node_slots=settings.node_slots or max(runner.slots // 4, 4),
        positions=runner.positions,
        keep_s=settings.keep_s,
        idle_s=settings.idle_s,
    )
    return Engine(
        runner=runner,
        sessions=sessions,
        scheduler=Scheduler[Task](limits),
        pace=Pace(chunk=settings.chunk, max_deadline_s=settings.max_deadline_s),
        clock=time.monotonic,
    )


async def _report(engine: Engine, notices: Notices, every_s: float) -> None:
    """Logs the counters whenever they moved."""
    seen = -1
    while True:
        await asyncio.sleep(every_s)
        if engine.counters.forwards != seen:
            seen = engine.counters.forwards
            log.info("engine", **engine.counters.summary(), notices=dict(notices.counts))
