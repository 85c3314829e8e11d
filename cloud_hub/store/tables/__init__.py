"""The tables. What a column means is said here once; `migrations/` brings a database to it.

A number that can be counted again from `generation` and `spot_check` stands in a sum too, so that
what is asked every day reads no picture; see `sums.py`.
"""

from cloud_hub.store.tables.base import Base, UtcDateTime
from cloud_hub.store.tables.learning import (
    AuditRow,
    ModelVersionRow,
    RolloutNodeRow,
    RolloutRow,
    ThresholdRow,
)
from cloud_hub.store.tables.nodes import BootRow, NodeRow, NodeStateRow
from cloud_hub.store.tables.pictures import (
    GenerationRow,
    RejectedRecordRow,
    SpotCheckRow,
    TokenRow,
)
from cloud_hub.store.tables.rounds import (
    RoundLockRow,
    RoundParticipantRow,
    RoundRow,
    RoundRunRow,
    RoundScheduleRow,
)
from cloud_hub.store.tables.sums import (
    CheckSumRow,
    HistogramRow,
    ScoreSumRow,
    SpanRow,
    SumMarkRow,
    SumRow,
)

__all__ = [
    "AuditRow",
    "Base",
    "BootRow",
    "CheckSumRow",
    "GenerationRow",
    "HistogramRow",
    "ModelVersionRow",
    "NodeRow",
    "NodeStateRow",
    "RejectedRecordRow",
    "RolloutNodeRow",
    "RolloutRow",
    "RoundLockRow",
    "RoundParticipantRow",
    "RoundRow",
    "RoundRunRow",
    "RoundScheduleRow",
    "ScoreSumRow",
    "SpanRow",
    "SpotCheckRow",
    "SumMarkRow",
    "SumRow",
    "ThresholdRow",
    "TokenRow",
    "UtcDateTime",
]
