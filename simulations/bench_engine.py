"""The hub's engine under recorded traffic, next to its own forwards, the machine and transformers.

The hub runs in this process over a real broker; the devices are a process of their own that sends
recorded requests (`load/replay.py`). The bare forward is the same runner on the same batches, in a
loop. Ratios are of one run, with their spread over its thirds.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from cloud_hub import app
from cloud_hub.engine.requests import Logits
from cloud_hub.engine.runner import Runner, Span
from cloud_hub.settings import EngineSettings, HubSettings
from fleet.errors import FleetError
from fleet.models.bundle import CLOUD_FOLDER
from fleet.transport.embedded import embedded_broker
from fleet.transport.mqtt import connect
from simulations.load.recording import Script
from simulations.load.replay import Order, Report, replayed
from simulations.processes import free_port

START_S = 60.0
SLOT_MIB = 7  # a guided picture of the shipped family takes less
WARM_UP_S = 4.0
_THIRDS = 3


@dataclass(frozen=True, slots=True)
class Batch:
    """What one forward ran, and when it began (clock of `time.perf_counter`)."""

    begun: float
    spans: tuple[Span, ...]

    @property
    def tokens(self) -> int:
        """Its tokens, guidance rows not counted."""
        return sum(span.tokens for span in self.spans)


@dataclass
class Listening:
    """A runner that remembers what it ran."""

    runner: Runner
    batches: list[Batch] = field(default_factory=list)

    @property
    def slots(self) -> int:
        """See `Runner.slots`."""
        return self.runner.slots

    @property
    def positions(self) -> int:
        """See `Runner.positions`."""
        return self.runner.positions

    @property
    def vocab_size(self) -> int:
        """See `Runner.vocab_size`."""
        return self.runner.vocab_size

    def prepare(self, spans: Sequence[Span]) -> Callable[[], list[Logits]]:
        """See `Runner.prepare`."""
        forward = self.runner.prepare(spans)

        def run() -> list[Logits]:
            self.batches.append(Batch(time.perf_counter(), tuple(spans)))
            return forward()

        return run

    def told(self, caption: tuple[int, ...]) -> bytes:
        """See `Runner.told`."""
        return self.runner.told(caption)


@dataclass(frozen=True, slots=True)
class Served:
    """One replay: the devices' report, and what the hub did meanwhile."""

    report: Report
    batches: list[Batch]
    hub_cpu_s: float  # processor time of this process, replay and broker not counted


@dataclass(frozen=True, slots=True)
class Share:
    """A ratio with the least and the greatest of its parts."""

    subject: str
    tokens_per_s: float
    ratio: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Latency:
    """Verifications at so many sessions that draft at a device's pace."""

    subject: str
    sessions: int
    verifications_per_s: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    busy: int


@dataclass(frozen=True, slots=True)
class Pictures:
    """Pictures of so many devices, and what one costs the hub."""

    subject: str
    devices: int
    pictures_per_s: float
    per_hub_cpu_s: float  # pictures in one second of the hub's processor time
    p95_s: float
    forwards: float  # of one picture


async def serve_replay(
    models: Path,
    scripts: Sequence[Script],
    *,
    devices: int,
    seconds: float,
    thinks: bool,
    remembers: bool = True,
) -> tuple[Served, Runner]:
    """Replays against a hub of this process, and returns its runner too.

    What the runner ran is remembered, which takes memory, unless it is not asked for.

    Raises:
        FleetError: The hub did not start, or the replay failed.
    """
    settings = HubSettings(
        model=models / CLOUD_FOLDER,
        engine=EngineSettings(cache_mib=SLOT_MIB * (devices + 1), threads=1),
    )
    hub = await asyncio.to_thread(app.open_worker, settings)
    listening = Listening(hub.runner)
    served = replace(hub, runner=listening) if remembers else hub
    async with _serving(settings, served) as port:
        order = Order(port, devices, seconds, WARM_UP_S, thinks, tuple(scripts))
        begun = time.process_time()
        report = await replayed(order)
        used = time.process_time() - begun
    if not report.verify_s and not report.picture_s:
        raise FleetError(f"nothing was answered after the warm-up ({report.lost} lost)")
    return Served(report, listening.batches, used), hub.runner


@asynccontextmanager
async def _serving(settings: HubSettings, hub: app.Hub) -> AsyncIterator[int]:
    ready = asyncio.Event()
    async with (
        embedded_broker(free_port()) as broker,
        connect(broker, client_id="hub", will=hub.identity.will) as transport,
    ):
        task = asyncio.create_task(app.serve(settings, transport, hub, ready=ready.set), name="hub")
        try:
            async with asyncio.timeout(START_S):
                await ready.wait()
            yield broker.port
        finally:
            task.cancel()
            await asyncio.wait([task])


async def throughput(
    models: Path, scripts: Sequence[Script], *, devices: int, seconds: float
) -> Share:
    """Engine tokens/s over MQTT ÷ the bare forward at the same spans in a loop, same process."""
    served, runner = await serve_replay(
        models, scripts, devices=devices, seconds=seconds, thinks=False
    )
    # All devices are at work between the warm-up's end and the first that stops.
    last = served.batches[-1].begun
    kept = [b for b in served.batches if last - seconds <= b.begun <= last - 0.5]
    parts = np.array_split(np.arange(len(kept)), _THIRDS)
    rates, ratios = [], []
    for part in parts:
        batches = [kept[index] for index in part]
        tokens = sum(batch.tokens for batch in batches[:-1])
        engine = tokens / (batches[-1].begun - batches[0].begun)
        begun = time.perf_counter()
        for batch in batches[:-1]:
            runner.prepare(batch.spans)()
        bare = tokens / (time.perf_counter() - begun)
        rates.append(engine)
        ratios.append(engine / bare)
    return Share(
        f"engine ÷ bare forward, {devices} devices",
        float(np.mean(rates)),
        float(np.mean(ratios)),
        min(ratios),
        max(ratios),
    )


async def latencies(
    models: Path, scripts: Sequence[Script], *, sessions: Sequence[int], seconds: float
) -> list[Latency]:
    """Verifications at a device's own pace, by the number of sessions."""
    rows = []
    for count in sessions:
        served, _ = await serve_replay(models, scripts, devices=count, seconds=seconds, thinks=True)
        found = np.array(served.report.verify_s or [float("nan")]) * 1e3
        p50, p95, p99 = (float(np.quantile(found, q)) for q in (0.5, 0.95, 0.99))
        rows.append(
            Latency(
                "verification",
                count,
                len(served.report.verify_s) / served.report.seconds,
                p50,
                p95,
                p99,
                served.report.busy,
            )
        )
    return rows


async def pictures(
    models: Path, scripts: Sequence[Script], *, devices: Sequence[int], seconds: float
) -> list[Pictures]:
    """Whole pictures, ours and drawn by the cloud alone, by the number of devices."""
    rows = []
    ways = {"ours": list(scripts), "cloud-only": [script.whole for script in scripts]}
    for count in devices:
        for name, way in ways.items():
            served, _ = await serve_replay(models, way, devices=count, seconds=seconds, thinks=True)
            made = served.report.pictures
            spans = sum(len(batch.spans) for batch in served.batches)
            asked = served.report.seconds + WARM_UP_S
            rate = made / served.report.seconds
            rows.append(
                Pictures(
                    name,
                    count,
                    rate,
                    rate * asked / served.hub_cpu_s,
                    float(np.quantile(served.report.picture_s or [float("nan")], 0.95)),
                    spans / max(rate * asked, 1e-9),
                )
            )
    return rows


async def memory(
    models: Path, scripts: Sequence[Script], *, sessions: int, minutes: float
) -> list[Share]:
    """Resident memory at the end ÷ after a fifteenth of the time (2 of 30 minutes)."""
    sizes: list[tuple[float, float]] = []

    async def look() -> None:
        while True:
            sizes.append((time.monotonic(), resident_mib()))
            await asyncio.sleep(1)

    looking = asyncio.create_task(look(), name="memory")
    begun = time.monotonic()
    seconds = 60 * minutes
    await serve_replay(
        models, scripts, devices=sessions, seconds=seconds, thinks=True, remembers=False
    )
    looking.cancel()
    early = next(size for at, size in sizes if at - begun >= max(minutes * 4, WARM_UP_S))
    late = sizes[-1][1]
    ratio = late / early
    return [Share(f"RSS {early:.0f} → {late:.0f} MiB, {minutes:g} min", 0.0, ratio, ratio, ratio)]


def resident_mib() -> float:
    """The memory of this process (Linux)."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
