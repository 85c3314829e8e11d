"""From a finished picture to the record that the hub stores."""

import hashlib
import time

from edge_agent.drafts import Mark
from edge_agent.generate import Outcome
from edge_agent.station import agent_version
from fleet.ids import BootId, ModelVersion
from fleet.protocol.arrays import pack_confidences, pack_scores
from fleet.protocol.messages import GenerationRecord

TEXT_LIMIT = 512


def record_of(
    outcome: Outcome,
    boot: BootId,
    device_version: ModelVersion,
    *,
    repairs: str = "",
    with_caption: bool,
) -> GenerationRecord:
    """The record of a picture; its sequence number is the outbox's to give."""
    picture, meter, timing = outcome.picture, outcome.meter, outcome.timing
    order, tally = outcome.order, outcome.picture.tally
    drafted = slice(0, picture.length)
    marks = picture.marks[drafted].copy()
    marks[marks == Mark.PENDING] = Mark.UNVERIFIED  # of a picture that was cancelled
    return GenerationRecord(
        boot_id=boot,
        sequence=0,
        generation_id=outcome.generation,
        created_at=time.time(),
        agent_version=agent_version(),
        device_version=device_version,
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
        unverified=int((marks == Mark.UNVERIFIED).sum()),
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
        scores=pack_scores(picture.scores[drafted]),
        decisions=marks.tobytes(),
        confidences=pack_confidences(picture.confidences[drafted]),
    )
