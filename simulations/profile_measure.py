"""Measures a profile: what the models of a family cost on this machine, and how they get on.

Times are processor seconds of this process on one thread, so other load changes them little.
"""

import asyncio
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from cloud_hub.engine.requests import Backlog, Cost, Judged, Run
from cloud_hub.engine.runner import Span
from cloud_hub.engine.torch_runner import TorchRunner
from cloud_hub.verification import Service, read_verify, write_answer
from edge_agent.answer import Made
from edge_agent.bundle_device import BundleDevice
from edge_agent.device import Order
from edge_agent.maker import Wish
from fleet.decoding.noise import gumbel
from fleet.decoding.policies import PolicyName
from fleet.decoding.sampling import draw, sharpen
from fleet.decoding.verify import judge
from fleet.errors import FleetError
from fleet.ids import BootId, GenerationId, ModelVersion, NodeId, RequestId, WorkerId, new_id
from fleet.models.bundle import CLOUD_FOLDER, DEVICE_FOLDER, PUBLIC_KEY, Bundle
from fleet.models.caption import CaptionVocabulary
from fleet.models.torch_model import CloudModel
from fleet.protocol.arrays import FEATURE_BYTES, pack_features, pack_mask, pack_tokens
from fleet.protocol.codec import decode, encode
from fleet.protocol.messages import Sampling, VerifyRequest
from fleet.transport.link import WIFI
from fleet.transport.memory import MemoryBroker
from simulations.in_process import Place, Silent, agent_beside, hub_beside
from simulations.profile import Agreement, DeviceCosts, Profile, WorkerCosts
from simulations.scenarios.scenario import Captions

SHAPES = ((1, 1), (1, 8), (8, 1), (8, 8), (16, 4), (32, 2))  # spans, and tokens of each
_START = 64  # position: a quarter of a picture is there
_RUN = 6  # tokens of a backlog
_VOCAB = 1024
_WARM_UP = 3
# One token at a time, however slow the machine: how models get on is no matter of time.
_PATIENT = {
    "window": 1,
    "in_flight": 1,
    "retry_after_s": 60.0,
    "request_deadline_s": 300.0,
    "open_deadline_s": 300.0,
    "outage_patience_s": 300.0,
}


def measure(models: Path, *, rounds: int, pictures: int) -> Profile:
    """The profile of the family in `models`; `pictures` of each style say how the models get on.

    Raises:
        BundleError: A file of the family is missing, or is not what was signed.
    """
    torch.set_num_threads(1)
    bundle = Bundle.open(models / DEVICE_FOLDER, models / PUBLIC_KEY)
    return Profile(
        machine=f"{platform.machine()}, one thread",
        family=bundle.manifest.family,
        device=_device(BundleDevice(bundle), rounds),
        worker=_worker(CloudModel.load(models / CLOUD_FOLDER), bundle.manifest.sampling, rounds),
        styles=asyncio.run(_agreements(models, Captions(), pictures)),
    )


def _device(device: BundleDevice, rounds: int) -> DeviceCosts:
    manifest = device.manifest
    order = Order(
        caption="google: red heart",
        seed=1,
        sampling=manifest.sampling,
        policy=PolicyName.parse("ciar").policy(manifest),
        prefix_tokens=manifest.prefix_tokens,
        use_features=True,
    )
    drafter = device.begin(order)
    positions = iter(np.resize(np.arange(device.size), rounds + _WARM_UP).tolist())

    def step() -> None:
        position = next(positions)
        drafter.step(position, 0 if position else -1)

    return DeviceCosts(
        step_s=_median(step, rounds),
        begin_s=_median(lambda: device.begin(order), min(rounds, 10)),
        decode_s=_median(lambda: device.decode(np.zeros(device.size, np.int64)), min(rounds, 10)),
    )


def _worker(model: CloudModel, sampling: Sampling, rounds: int) -> WorkerCosts:
    """A plane through forwards of several shapes; a request also costs its messages."""
    span = partial(_span, guidance=sampling.guidance)
    runner = TorchRunner(model, max(spans for spans, _ in SHAPES))
    for slot in range(runner.slots):
        runner.run([span(slot, 0, 0, caption=(slot + 2,))])
        runner.run([span(slot, 0, _START)])
    seconds = [
        _median(partial(runner.run, [span(slot, _START, tokens) for slot in range(spans)]), rounds)
        for spans, tokens in SHAPES
    ]
    shapes = np.array([[1, spans * tokens, spans] for spans, tokens in SHAPES])
    fixed, token, each = _non_negative(shapes, np.array(seconds))
    return WorkerCosts(
        forward_s=_rounded(fixed),
        token_s=_rounded(token),
        request_s=_rounded(each + _message_s(sampling, rounds)),
    )


def _message_s(sampling: Sampling, rounds: int) -> float:
    """What one request costs a worker beside its forward: read, drawn, judged, answered."""
    rng = np.random.default_rng(0)
    local = np.arange(_RUN) % 3 > 0
    request = encode(
        VerifyRequest(
            request_id=RequestId(new_id()),
            boot_id=BootId(new_id()),
            generation_id=GenerationId(new_id()),
            branch=0,
            start=_START,
            tokens=pack_tokens(rng.integers(_VOCAB, size=_RUN)),
            uncertain=pack_mask(~local),
            local=pack_mask(local),
            features=pack_features(np.zeros((int(local.sum()), FEATURE_BYTES), np.int8)),
            deadline_s=10.0,
        )
    )
    service = Service(
        WorkerId("w"),
        "family",
        ModelVersion("v"),
        256,
        _VOCAB,
        CaptionVocabulary(("<pad>", "<unk>")),
    )
    judged = np.flatnonzero(~local)
    logits = rng.normal(size=(len(judged) + 1, _VOCAB)).astype(np.float32)

    def answer() -> None:
        message = decode(request)
        assert isinstance(message, VerifyRequest)
        backlog = read_verify(service, NodeId("node"), message)
        assert isinstance(backlog, Backlog)
        positions = np.array([*(backlog.start + judged), backlog.end])
        sharp = sharpen(logits, sampling)
        draws = draw(sharp, gumbel(1, positions, _VOCAB))
        targets = np.zeros(_RUN + 1, np.int64)
        targets[[*judged, _RUN]] = draws
        verdict = judge(backlog.run.tokens, backlog.uncertain, targets)
        cost = Cost(1, 0.0, 0.0)
        reply = Judged(0, verdict.accepted, verdict.next_token, (0.5,) * len(judged), cost)
        encode(write_answer(service, message, reply))

    return _median(answer, rounds)


async def _agreements(models: Path, captions: Captions, pictures: int) -> dict[str, Agreement]:
    """How the pair gets on in each style, in whole pictures.

    Raises:
        FleetError: A picture was not finished by the cloud.
    """
    made: dict[str, list[Made]] = {}
    things = [thing for theme in captions.themes.values() for thing in theme]
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker = MemoryBroker()
        await stack.enter_async_context(hub_beside(models, folder / "hub", broker))
        place = Place(models, folder / "profile", broker, WIFI)
        running = await stack.enter_async_context(agent_beside(place, _PATIENT))
        for style in captions.styles:
            made[style] = [
                await running.make(Wish(f"{style}: {things[seed % len(things)]}", seed), Silent())
                for seed in range(pictures)
            ]
    return {style: _agreement(found) for style, found in made.items()}


def _agreement(made: Sequence[Made]) -> Agreement:
    if any(each.unverified for each in made):
        raise FleetError("a picture was not finished by the cloud: try on a quieter machine")
    drafted = sum(each.tokens - each.prefix for each in made)
    judged, fell = sum(each.verified for each in made), sum(each.corrected for each in made)
    return Agreement(
        uncertain=_rounded(judged / drafted), acceptance=_rounded(1 - fell / max(judged, 1))
    )


def _span(
    slot: int,
    start: int,
    tokens: int,
    caption: tuple[int, ...] | None = None,
    *,
    guidance: float,
) -> Span:
    run = Run(
        np.zeros(tokens, np.int64),
        np.arange(tokens) % 3 > 0,
        np.zeros((tokens, FEATURE_BYTES), np.int8),
    )
    return Span(slot, start, run, guidance, use_features=True, caption=caption)


def _median(work: Callable[[], object], rounds: int) -> float:
    times = []
    for turn in range(rounds + _WARM_UP):
        begun = time.process_time()
        work()
        if turn >= _WARM_UP:
            times.append(time.process_time() - begun)
    return _rounded(statistics.median(times))


def _rounded(value: float) -> float:
    """Four digits: what is measured has no more."""
    return float(f"{value:.4g}")


def _non_negative(rows: NDArray[np.int64], values: NDArray[np.float64]) -> list[float]:
    """Least squares with no negative coefficient: what would be negative is left out."""
    kept = list(range(rows.shape[1]))
    while True:
        found, *_ = np.linalg.lstsq(rows[:, kept], values, rcond=None)
        if (found >= 0).all():
            break
        del kept[int(np.argmin(found))]
    return [
        float(found[kept.index(column)]) if column in kept else 0.0
        for column in range(rows.shape[1])
    ]
