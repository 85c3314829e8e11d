"""Records of pictures as they are, for measurements that need many; by their number alone."""

import numpy as np

from fleet.ids import BootId, GenerationId, ModelVersion, NodeId, new_id
from fleet.protocol.messages import GenerationRecord, Sampling

NODES = 50  # that report them
TOKENS = 256


def node_of(index: int) -> NodeId:
    """The node that reports a picture."""
    return NodeId(f"n{index % NODES}")


def record_at(index: int) -> GenerationRecord:
    """A picture as they are: three quarters local, scores over two decades."""
    rng = np.random.default_rng(index)
    decisions = rng.choice([1, 2, 3], TOKENS, p=[0.75, 0.2, 0.05]).astype(np.uint8)
    decisions[:15] = 0
    counts = np.bincount(decisions, minlength=5).tolist()
    confidences = np.where(decisions == 1, 0, rng.integers(0, 256, TOKENS)).astype(np.uint8)
    return GenerationRecord(
        boot_id=BootId(f"{index % NODES:032x}"),
        sequence=index // NODES,
        generation_id=GenerationId(new_id()),
        created_at=1.7e9 + index,
        agent_version="0.1.0",
        device_version=ModelVersion("d" * 16),
        cloud_version=ModelVersion("c" * 16),
        caption_hash=f"{index:064x}",
        seed=index,
        sampling=Sampling(temperature=1.0, top_k=0, guidance=4.0),
        policy="spread",
        threshold=0.5,
        tokens=TOKENS,
        prefix=counts[0],
        local=counts[1],
        verified=counts[2] + counts[3],
        corrected=counts[3],
        unverified=0,
        wasted=int(rng.integers(20)),
        forwards=int(rng.integers(20, 60)),
        round_trips=int(rng.integers(10, 30)),
        retries=0,
        bytes_up=int(rng.integers(5_000, 15_000)),
        bytes_down=int(rng.integers(1_000, 4_000)),
        **{  # type: ignore[arg-type]
            name: float(rng.gamma(2))
            for name in ("duration_s", "device_s", "wait_s", "queue_s", "forward_s")
        },
        scores=np.clip(rng.normal(190, 18, TOKENS), 0, 255).astype(np.uint8).tobytes(),
        decisions=decisions.tobytes(),
        confidences=confidences.tobytes(),
    )
