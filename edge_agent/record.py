"""From a finished picture to the record that the hub stores."""

import hashlib
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_agent.device import Device
from edge_agent.drafts import Mark
from edge_agent.generate import Outcome
from edge_agent.settings import RecordSettings
from edge_agent.station import agent_version
from fleet.ids import BootId
from fleet.protocol.arrays import (
    FEATURE_BYTES,
    pack_confidences,
    pack_features,
    pack_mask,
    pack_scores,
    pack_tokens,
)
from fleet.protocol.messages import GenerationRecord, History, Unseen

TEXT_LIMIT = 512
UNSEEN_LIMIT = 1 << 17  # bytes of features, which are most of it


@dataclass(slots=True)
class Recorder:
    """Writes the records of one boot."""

    boot: BootId
    device: Device
    settings: RecordSettings
    with_caption: bool
    luck: Callable[[], float] = random.random

    def record(self, outcome: Outcome, *, repairs: str = "") -> GenerationRecord:
        """The record of a picture; its sequence number is the outbox's to give."""
        level = self.settings.level
        record = _counts(outcome, self.boot, self.device, repairs, with_caption=self.with_caption)
        if level == "none":
            return record
        picture, drafted = outcome.picture, slice(0, outcome.picture.length)
        arrays = {
            "scores": pack_scores(picture.at.scores[drafted]),
            "decisions": _marks(outcome).tobytes(),
            "confidences": pack_confidences(picture.at.confidences[drafted]),
            "detailed": level == "detailed" and self.luck() < self.settings.detailed_share,
            "unseen": self._unseen(outcome),
        }
        return record.model_copy(update=arrays)

    def _unseen(self, outcome: Outcome) -> Unseen | None:
        """The picture's tokens, if it is chosen and the cloud has not seen all that stayed local.

        Never of a picture that was to be made without the cloud: nothing of it leaves the device.
        """
        picture, order, share = outcome.picture, outcome.order, self.settings.unseen_share
        unseen_local = bool((picture.marks[picture.seen :] == Mark.LOCAL).any())
        if not picture.is_complete or not unseen_local or order.policy.name == "device_only":
            return None
        run = picture.history()
        if len(run.features) * FEATURE_BYTES > UNSEEN_LIMIT or not self.luck() < share:
            return None
        features = run.features if order.use_features else run.features[:0]
        return Unseen(
            family=self.device.manifest.family,
            caption=order.caption,
            use_features=order.use_features,
            start=picture.seen,
            share=share,
            history=History(
                tokens=pack_tokens(run.tokens),
                local=pack_mask(run.local),
                features=pack_features(self.device.quantise(features)),
            ),
        )


def _marks(outcome: Outcome) -> NDArray[np.uint8]:
    """The decisions of the positions that were drafted."""
    marks = outcome.picture.marks[: outcome.picture.length].copy()
    marks[marks == Mark.PENDING] = Mark.UNVERIFIED  # of a picture that was cancelled
    return marks


def _counts(
    outcome: Outcome, boot: BootId, device: Device, repairs: str, *, with_caption: bool
) -> GenerationRecord:
    picture, meter, timing = outcome.picture, outcome.meter, outcome.timing
    order, tally = outcome.order, outcome.picture.tally
    return GenerationRecord(
        boot_id=boot,
        sequence=0,
        generation_id=outcome.generation,
        created_at=time.time(),
        agent_version=agent_version(),
        device_version=device.manifest.device_version,
        cloud_version=meter.cloud_version,
        caption_hash=hashlib.sha256(order.caption.encode()).hexdigest(),
        caption=order.caption[:TEXT_LIMIT] if with_caption else "",
        seed=order.seed,
        sampling=order.sampling,
        policy=order.policy.name,
        threshold=order.policy.threshold,
        tokens=picture.length,
        prefix=tally.prefix,
        local=tally.local,
        verified=tally.verified,
        corrected=tally.corrected,
        unverified=int((_marks(outcome) == Mark.UNVERIFIED).sum()),
        wasted=picture.wasted,
        forwards=meter.forwards,
        round_trips=meter.round_trips,
        retries=meter.retries,
        bytes_up=meter.bytes_up,
        bytes_down=meter.bytes_down,
        duration_s=timing.duration_s,
        device_s=timing.device_s,
        wait_s=timing.wait_s,
        queue_s=meter.queue_s,
        forward_s=meter.forward_s,
        fallback=outcome.fallback,
        repairs=repairs,
    )
