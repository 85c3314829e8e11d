"""What the cloud teaches becomes samples: the right states, of the right cloud, and no more."""

from pathlib import Path

import numpy as np
import pytest

from edge_agent.drafts import Lesson, States
from edge_agent.generate import Outcome, Timing
from edge_agent.learning import Learning, readiness, ring_shape, samples_of
from edge_agent.picture import Picture
from edge_agent.plan import Meter
from edge_agent.settings import TrainingSettings
from fleet.federation.samples import SampleRing, cloud_number
from fleet.ids import GenerationId, ModelVersion
from fleet.models.bundle import Manifest
from tests.unit.edge_agent.toy import MANIFEST, ToyDevice, order

WIDE: Manifest = MANIFEST.model_copy(update={"heads": 2, "head_dim": 3, "vocab_size": 500})


def outcome(lessons: list[Lesson], cloud: str = "cloud-1") -> Outcome:
    picture = Picture(24, 500)
    picture.lessons = lessons
    meter = Meter(cloud_version=ModelVersion(cloud))
    image = np.zeros((1, 1, 3), np.uint8)
    return Outcome(GenerationId("g"), order(), image, picture, meter, Timing(), "", "", "complete")


def lesson(value: float, size: int = 40, state: float | None = None) -> Lesson:
    state = value if state is None else state
    states = States(np.full(6, state, np.float32), np.full(6, -state, np.float32))
    codes = np.arange(size) + int(value)
    return Lesson(states, int(value), codes, np.linspace(-1, -9, size).astype(np.float16))


def test_a_sample_holds_states_token_law_and_cloud() -> None:
    shape = ring_shape(WIDE, 1)

    samples = samples_of([lesson(3.0, size=40), lesson(4.0, size=5)], "cloud-1", shape)

    assert samples.token.tolist() == [3, 4]
    assert samples.cloud.tolist() == [cloud_number("cloud-1")] * 2
    assert samples.hidden[:, 0].tolist() == [3.0, 4.0]
    assert samples.guided[:, 0].tolist() == [-3.0, -4.0]
    assert samples.codes[0].tolist() == list(range(3, 3 + shape.law_size))
    assert samples.codes[1, :5].tolist() == [4, 5, 6, 7, 8]
    assert np.isneginf(samples.log_probs[1, 5:]).all()


def test_a_state_beyond_half_precision_is_cut_to_its_range() -> None:
    samples = samples_of([lesson(1.0, state=1e6)], "cloud-1", ring_shape(WIDE, 1))

    assert np.isfinite(samples.hidden).all()


async def test_what_a_picture_taught_is_in_the_ring_and_a_new_network_begins_anew(
    tmp_path: Path,
) -> None:
    settings = TrainingSettings(ring_mib=1)

    await Learning(tmp_path, WIDE, settings).keep(outcome([lesson(1.0), lesson(2.0)]))
    await Learning(tmp_path, WIDE, settings).keep(outcome([lesson(3.0)]))
    kept = SampleRing.open(tmp_path).read()
    other_head = WIDE.model_copy(
        update={"device_version": ModelVersion("later"), "backbone": WIDE.device_version}
    )
    Learning(tmp_path, other_head, settings)
    kept_under_another_head = len(SampleRing.open(tmp_path).read())
    Learning(tmp_path, WIDE.model_copy(update={"device_version": ModelVersion("new")}), settings)

    assert kept.token.tolist() == [1, 2, 3]
    assert kept_under_another_head == 3
    assert len(SampleRing.open(tmp_path).read()) == 0


async def test_only_what_the_cloud_of_now_said_is_trained_on(tmp_path: Path) -> None:
    learning = Learning(tmp_path, WIDE, TrainingSettings(ring_mib=1))

    await learning.keep(outcome([lesson(1.0)] * 400, "old"))
    await learning.keep(outcome([lesson(2.0)] * 400, "new"))
    samples = SampleRing.open(tmp_path).read()

    for wanted, token in ((0, 2), (cloud_number("new"), 2), (cloud_number("old"), 1)):
        training, held_out = samples.split(wanted)
        assert len(training) + len(held_out) == 400
        assert set(training.token.tolist()) == set(held_out.token.tolist()) == {token}


async def test_the_ring_keeps_to_its_mebibytes(tmp_path: Path) -> None:
    shape = ring_shape(WIDE, 1)
    ring = SampleRing.create(tmp_path, shape)

    assert shape.capacity * shape.dtype.itemsize <= 1 << 20
    ring.append(samples_of([lesson(1.0)] * (shape.capacity + 5), "cloud-1", shape))
    assert (tmp_path / "samples.bin").stat().st_size <= 1 << 20


async def test_a_full_disk_costs_samples_and_no_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learning = Learning(tmp_path, WIDE, TrainingSettings(ring_mib=1))
    (tmp_path / "samples.bin").unlink()

    await learning.keep(outcome([lesson(1.0)]))

    assert not (tmp_path / "samples.bin").exists()


def test_a_device_says_why_it_cannot_train(monkeypatch: pytest.MonkeyPatch) -> None:
    able = ToyDevice(keeps_states=True)

    assert readiness(TrainingSettings(), able) == "ready"
    assert "switched off" in readiness(TrainingSettings(take_part=False), able)
    assert "hidden states" in readiness(TrainingSettings(), ToyDevice())
    monkeypatch.setattr("edge_agent.learning.missing", lambda: "torch")
    assert readiness(TrainingSettings(), able) == "lacks torch: install the extra federation"
