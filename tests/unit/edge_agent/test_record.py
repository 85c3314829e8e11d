"""What a record says of a picture's tokens, by its level."""

from typing import Any

import numpy as np
import pytest

from edge_agent.generate import Outcome
from edge_agent.record import Recorder
from edge_agent.settings import RecordSettings
from fleet.ids import BootId
from fleet.protocol.arrays import FEATURE_BYTES, unpack_mask, unpack_tokens
from fleet.protocol.messages import GenerationRecord
from tests.unit.edge_agent.test_generate import generation
from tests.unit.edge_agent.toy import ToyDevice, order


async def alone() -> Outcome:
    """A picture that was made without the cloud."""
    return await generation(order()).run(None)


def recorded(outcome: Outcome, luck: float = 0.0, **settings: Any) -> GenerationRecord:
    recorder = Recorder(
        BootId("boot"), ToyDevice(), RecordSettings(**settings), False, luck=lambda: luck
    )
    return recorder.record(outcome)


@pytest.mark.parametrize(
    ("level", "luck", "arrays", "detailed"),
    [
        ("none", 0.0, 0, False),
        ("summary", 0.0, 24, False),
        ("detailed", 0.2, 24, True),
        ("detailed", 0.3, 24, False),
    ],
)
async def test_a_level_says_how_much(level: str, luck: float, arrays: int, detailed: bool) -> None:
    record = recorded(await alone(), luck, level=level, detailed_share=0.25)

    assert [len(a) for a in (record.scores, record.decisions, record.confidences)] == [arrays] * 3
    assert record.detailed == detailed
    assert record.tokens == 24


async def test_what_the_cloud_has_not_seen_goes_along_for_a_share() -> None:
    outcome = await alone()

    unseen = recorded(outcome, 0.2, unseen_share=0.25).unseen

    assert recorded(outcome, 0.3, unseen_share=0.25).unseen is None
    assert unseen is not None
    assert (unseen.caption, unseen.start, unseen.share) == ("a toy", 0, 0.25)
    assert np.array_equal(unpack_tokens(unseen.history.tokens), outcome.picture.tokens)
    local = unpack_mask(unseen.history.local, 24)
    assert np.array_equal(local, outcome.picture.marks == 1)
    assert len(unseen.history.features) == int(local.sum()) * FEATURE_BYTES


async def test_a_cancelled_picture_is_not_sent() -> None:
    assert recorded(generation(order()).outcome(), unseen_share=1).unseen is None
