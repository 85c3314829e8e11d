"""A round with agents as they run in the field: `edge_agent run`, the shipped bundle, a broker."""

import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from cloud_hub.rounds.conduct import conduct
from edge_agent.learning import LAW_SIZE, ring_shape
from edge_agent.settings import TrainingSettings
from fleet.federation.ledger import FolderLedger
from fleet.federation.plan import Plan
from fleet.federation.samples import SampleRing, Samples
from fleet.models.bundle import (
    DEVICE_FOLDER,
    PUBLIC_KEY,
    STEP_GRAPH,
    Bundle,
    Manifest,
    reference_path,
)
from fleet.models.head_weights import HeadWeights, head_of
from fleet.transport.broker import BrokerSettings
from fleet.transport.mqtt import connect
from tests.services import Mosquitto

PLAN = Plan(rounds=1, rank=32, steps=4, least_samples=50, query_s=100.0, deadline_s=120.0)


def fill(folder: Path, head: HeadWeights, manifest: Manifest, seed: int) -> None:
    """Samples of a cloud a little apart from the shipped device."""
    drift = head.center * (1 + 0.1 * np.random.default_rng(0).normal(size=head.center.shape))
    hidden = np.random.default_rng(seed).normal(size=(120, head.dim)).astype(np.float16)
    logits = hidden.astype(np.float64) @ drift.T
    logits -= logits.max(axis=1, keepdims=True)
    log_law = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    codes = np.argsort(-log_law, axis=1)[:, :LAW_SIZE]
    shape = ring_shape(manifest, TrainingSettings().ring_mib)
    samples = Samples(
        np.zeros(120, np.uint64),
        np.ones(120, np.uint32),
        codes[:, 0].astype(np.uint16),
        hidden,
        hidden,
        codes.astype(np.uint16),
        np.take_along_axis(log_law, codes, axis=1).astype(np.float16),
    )
    SampleRing.create(folder / "training", shape).append(samples)


def start(settings: dict[str, str]) -> subprocess.Popen[bytes]:
    """An agent with these settings."""
    command = [sys.executable, "-m", "edge_agent", "run"]
    return subprocess.Popen(command, env={**os.environ, **settings}, stdout=subprocess.DEVNULL)


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_agents_train_the_shipped_head(tmp_path: Path, mosquitto: Mosquitto) -> None:
    bundle = Bundle.open(reference_path() / DEVICE_FOLDER, reference_path() / PUBLIC_KEY)
    head = head_of(bundle.read(STEP_GRAPH))
    head.save(tmp_path / "head.npz")
    port = str(mosquitto.port)
    broker = {"EDGE_AGENT_BROKER__HOST": "127.0.0.1", "EDGE_AGENT_BROKER__PORT": port}
    config = {name.replace("_", "-"): value for name, value in asdict(PLAN).items()}
    ledger = FolderLedger(tmp_path / "ledger")
    agents = []
    try:
        for name in ("a", "b"):
            fill(tmp_path / name, head, bundle.manifest, ord(name))
            agents.append(start({**broker, "EDGE_AGENT_STATE_DIR": str(tmp_path / name)}))
        settings = BrokerSettings(host="127.0.0.1", port=mosquitto.port)
        async with connect(settings, client_id="rounds") as transport:
            last = await conduct(
                transport, "run", {**config, "head": str(tmp_path / "head.npz")}, ledger
            )
        for agent in agents:
            agent.terminate()
        codes = [agent.wait(20) for agent in agents]
    finally:
        for agent in agents:
            agent.kill()

    assert last is not None
    assert (last.outcome, codes) == ("kept", [0, 0])
    assert [each.part for each in last.participants] == ["used", "used"]
    assert all(each.bytes_up < 300_000 for each in last.participants)
    assert last.figures["loss_after"] < last.figures["loss_before"]
