"""What the cloud teaches a device that takes part in rounds, kept as samples to train on."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edge_agent.device import Device
from edge_agent.drafts import Lesson
from edge_agent.generate import Outcome
from edge_agent.settings import TrainingSettings
from edge_agent.training.trainer import READY
from edge_agent.training.worker import missing
from fleet.errors import OutputError
from fleet.federation.samples import RingShape, SampleRing, Samples, cloud_number
from fleet.logs import get_logger
from fleet.models.bundle import Manifest

LAW_SIZE = 32  # codes of the cloud's law that a sample holds: 128 bytes
_LARGEST = float(np.finfo(np.float16).max)

log = get_logger(__name__)


def readiness(settings: TrainingSettings, device: Device) -> str:
    """ "ready", or why this device does not take part in rounds."""
    if not settings.take_part:
        return "switched off (training.take_part)"
    if lacking := missing():
        return f"lacks {lacking}: install the extra federation"
    return READY if device.keeps_states else "its bundle does not give the head's hidden states"


def can_train(settings: TrainingSettings) -> bool:
    """Whether this device may take part in rounds, as far as it depends on no bundle."""
    return settings.take_part and not missing()


class Learning:
    """The ring of one device; samples of another network that are there are dropped."""

    def __init__(self, folder: Path, manifest: Manifest, settings: TrainingSettings) -> None:
        """Opens the ring in `folder`.

        Raises:
            OutputError: The folder cannot be written.
        """
        self._ring = SampleRing.create(folder, ring_shape(manifest, settings.ring_mib))

    async def keep(self, outcome: Outcome) -> None:
        """Adds what a picture has taught; where that fails, training misses it and nobody else."""
        lessons = outcome.picture.lessons
        if not lessons:
            return
        samples = samples_of(lessons, outcome.meter.cloud_version, self._ring.shape)
        try:
            await asyncio.to_thread(self._ring.append, samples)
        except OutputError as error:
            log.warning("samples not kept", reason=str(error))


def ring_shape(manifest: Manifest, mib: int) -> RingShape:
    """A ring of so many MiB for the hidden states of a bundle."""
    shape = RingShape(manifest.made_by, manifest.width, manifest.vocab_size, LAW_SIZE, 1)
    capacity = max((mib << 20) // shape.dtype.itemsize, 1)
    return RingShape(shape.backbone, shape.dim, shape.vocab_size, shape.law_size, capacity)


def samples_of(lessons: Sequence[Lesson], cloud_version: str, shape: RingShape) -> Samples:
    """The positions [n] of which the cloud has told its law, as a ring of this shape holds them.

    A law of fewer codes than the ring keeps is filled up with none; of more, the likeliest stay.
    """
    records = np.zeros(len(lessons), shape.dtype)
    records["cloud"] = cloud_number(cloud_version)
    records["log_probs"] = -np.inf
    for record, lesson in zip(records, lessons, strict=True):
        kept = min(len(lesson.codes), shape.law_size)
        record["token"] = lesson.token
        record["hidden"] = _half(lesson.states.hidden)
        record["guided"] = _half(lesson.states.guided)
        record["codes"][:kept] = lesson.codes[:kept]
        record["log_probs"][:kept] = lesson.log_probs[:kept]
    return Samples(*(records[name] for name in Samples.__slots__))


def _half(values: NDArray[np.floating]) -> NDArray[np.float16]:
    cut: NDArray[np.float16] = np.clip(values, -_LARGEST, _LARGEST).astype(np.float16)
    return cut
