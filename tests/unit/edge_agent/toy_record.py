"""A record with the numbers that a test cares about."""

from fleet.ids import BootId, GenerationId, ModelVersion
from fleet.protocol.messages import GenerationRecord, Sampling


def toy_record(boot: str = "boot", arrays: int = 0, local: int = 7) -> GenerationRecord:
    return GenerationRecord(
        boot_id=BootId(boot),
        sequence=0,
        generation_id=GenerationId("g"),
        created_at=0.0,
        agent_version="0",
        device_version=ModelVersion("d"),
        caption_hash="h",
        seed=1,
        sampling=Sampling(temperature=1, top_k=0, guidance=1),
        policy="entropy",
        threshold=0.5,
        tokens=24,
        prefix=3,
        local=local,
        verified=14,
        corrected=2,
        unverified=0,
        wasted=1,
        forwards=9,
        round_trips=8,
        retries=0,
        bytes_up=100,
        bytes_down=100,
        duration_s=1,
        device_s=1,
        wait_s=0,
        queue_s=0,
        forward_s=0,
        scores=b"s" * arrays,
        decisions=b"d" * arrays,
    )
