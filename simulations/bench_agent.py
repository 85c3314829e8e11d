"""Pictures with drafting ahead, next to pictures that stop at each uncertain token.

The whole line runs in this process: agent, calls, simulated link, engine, database; only the
models may be stand-ins (`stand_in.py`), since what drafting ahead saves depends on how often
drafts stand, and the shipped pair is one case of many. Both ways make the same pictures, by
turns, so that other load on the machine falls on both; the pictures must be equal.
"""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from cloud_hub.app import Hub, open_hub, serve
from cloud_hub.presence import Identity
from cloud_hub.settings import EngineSettings, HubSettings
from cloud_hub.verification import Service
from edge_agent.answer import Made
from edge_agent.app import Agent, agent, load_device, presence_of
from edge_agent.device import Device
from edge_agent.generate import Preview, Progress
from edge_agent.maker import Wish
from edge_agent.settings import AgentSettings, GenerationSettings
from edge_agent.station import open_station
from fleet.errors import FleetError
from fleet.ids import BootId, ModelVersion, WorkerId
from fleet.models.bundle import CLOUD_FOLDER, DEVICE_FOLDER, PUBLIC_KEY
from fleet.transport.link import LinkProfile, SimulatedLink
from fleet.transport.memory import MemoryBroker
from simulations.stand_in import CAPTION, VOCABULARY, Pair, StandInDevice, StandInRunner

ROUND_TRIPS_MS = (5, 20, 50, 100)
MBPS = 50.0
SHIPPED_CAPTION = "google: red heart"
DEADLINE_S = 300.0
START_S = 60.0

STOP_AND_WAIT = {"window": 1, "in_flight": 1}


@dataclass(frozen=True, slots=True)
class Pipelining:
    """Seconds a picture; `ratio` is of stopping at each uncertain token over drafting ahead."""

    subject: str
    rtt_ms: int
    accepted: float  # share of judged drafts that stood
    stop_s: float
    ahead_s: float
    ratio: float
    wasted: float  # drafts of one picture that fell, when drafting ahead
    requests: float  # of one picture, when drafting ahead
    requests_stop: float


@dataclass(frozen=True, slots=True)
class Case:
    """A pair of models under a policy; without a pair, the family in `models`."""

    subject: str
    pair: Pair | None
    policy: str = "ciar"
    effort: str = "balanced"


CASES = (
    Case("half stand", Pair(0.5)),
    Case("7 of 10 stand", Pair(0.7)),
    Case("9 of 10 stand", Pair(0.9)),
    Case("7 of 10 stand, verify all", Pair(0.7), "verify-all"),
)

SHIPPED = (
    Case("shipped pair", None),
    Case("shipped pair, full effort", None, effort="full"),
    Case("shipped pair, verify all", None, "verify-all"),
)


async def bench(
    models: Path, *, pictures: int, cases: Sequence[Case] = CASES, rtts: Sequence[int]
) -> list[Pipelining]:
    """Each case at each round trip, `pictures` of either kind.

    Raises:
        BundleError: A file of the family is missing, or is not what was signed.
        FleetError: The two ways made different pictures, or one was not finished by the cloud.
    """
    return [await _measure(case, models, rtt_ms, pictures) for case in cases for rtt_ms in rtts]


async def _measure(case: Case, models: Path, rtt_ms: int, pictures: int) -> Pipelining:
    link = LinkProfile("bench", MBPS, MBPS, rtt_ms / 1e3, 0.0)
    made: dict[str, list[Made]] = {"stop": [], "ahead": []}
    times: dict[str, float] = {"stop": 0.0, "ahead": 0.0}
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker = MemoryBroker()
        await stack.enter_async_context(_hub(case, models, folder / "hub", broker))
        agents = {
            "stop": await stack.enter_async_context(
                _agent(case, models, folder / "stop", broker, link, STOP_AND_WAIT)
            ),
            "ahead": await stack.enter_async_context(
                _agent(case, models, folder / "ahead", broker, link, {"effort": case.effort})
            ),
        }
        for seed in range(-1, pictures):  # the first warms up: paces are measured
            for name, running in agents.items():
                wish = Wish(CAPTION if case.pair else SHIPPED_CAPTION, seed + 1, case.policy)
                begun = time.perf_counter()
                picture = await running.make(wish, _Silent())
                if seed >= 0:
                    times[name] += time.perf_counter() - begun
                    made[name].append(picture)
    _check(made)
    ahead = made["ahead"]
    judged = sum(each.verified for each in ahead)
    return Pipelining(
        subject=case.subject,
        rtt_ms=rtt_ms,
        accepted=1 - sum(each.corrected for each in ahead) / max(judged, 1),
        stop_s=times["stop"] / pictures,
        ahead_s=times["ahead"] / pictures,
        ratio=times["stop"] / times["ahead"],
        wasted=sum(each.wasted for each in ahead) / pictures,
        requests=sum(each.round_trips for each in ahead) / pictures,
        requests_stop=sum(each.round_trips for each in made["stop"]) / pictures,
    )


def _check(made: dict[str, list[Made]]) -> None:
    for one, other in zip(made["stop"], made["ahead"], strict=True):
        if one.fallback or other.fallback:
            raise FleetError(f"a picture fell back: {one.fallback or other.fallback}")
        if one.pixels != other.pixels:
            raise FleetError(f"seed {one.seed}: drafting ahead changed the picture")


class _Silent:
    def queued(self, ahead: int) -> None:
        """Nobody looks."""

    def progress(self, progress: Progress) -> None:
        """Nobody looks."""

    def preview(self, preview: Preview) -> None:
        """Nobody looks."""


@asynccontextmanager
async def _hub(case: Case, models: Path, folder: Path, broker: MemoryBroker) -> AsyncIterator[None]:
    settings = HubSettings(
        data_dir=folder, model=models / CLOUD_FOLDER, engine=EngineSettings(threads=1)
    )
    hub = open_hub(settings)
    if case.pair is not None:
        hub = _stand_in(hub, case.pair)
    ready = asyncio.Event()
    async with broker.connect("hub") as transport:
        task = asyncio.create_task(serve(settings, transport, hub, ready=ready.set), name="hub")
        try:
            async with asyncio.timeout(START_S):
                await ready.wait()
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])
            hub.close()


def _stand_in(hub: Hub, pair: Pair) -> Hub:
    runner = StandInRunner(pair)
    version = ModelVersion("stand-in")
    identity = Identity(WorkerId("w-bench"), BootId("bench"), "stand-in", version, "bench")
    service = Service(
        identity.worker, "stand-in", version, runner.positions, runner.vocab_size, VOCABULARY
    )
    return replace(hub, identity=identity, service=service, runner=runner)


@asynccontextmanager
async def _agent(
    case: Case,
    models: Path,
    folder: Path,
    broker: MemoryBroker,
    profile: LinkProfile,
    generation: Mapping[str, object],
) -> AsyncIterator[Agent]:
    settings = AgentSettings(
        state_dir=folder,
        bundle=models / DEVICE_FOLDER,
        public_key=models / PUBLIC_KEY,
        generation=GenerationSettings.model_validate({"deadline_s": DEADLINE_S, **generation}),
    )
    device: Device = StandInDevice(case.pair) if case.pair else load_device(settings)
    with open_station(folder, folder.name, patience_s=0) as station:
        will = presence_of(station, device.manifest).will()
        async with (
            broker.connect(folder.name, will) as transport,
            SimulatedLink(transport, profile, Random(0)) as link,
            agent(settings, station, device, link, lambda _: None) as running,
        ):
            yield running
