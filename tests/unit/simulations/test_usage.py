"""Deployments, stories and crossing points of what was drawn."""

import numpy as np
import pytest

from fleet.decoding.accept import Policy
from simulations.evaluation.clock.link import FIVE_G
from simulations.evaluation.clock.steps import ACCELERATOR
from simulations.evaluation.jobs import Sample
from simulations.evaluation.methods import Method, cloud_only, device_only
from simulations.evaluation.moment import AMENDED, CORRECTED, LOCAL, PREFIX, VERIFIED
from simulations.evaluation.rules.gates import Gate
from simulations.evaluation.rules.rounds import Chain
from simulations.evaluation.sampling_rule import SamplingRule
from simulations.evaluation.usage import crossings, deployments, story, usage

RULE = SamplingRule()
GATE = Method("ours", Gate(Policy("entropy", 1.0)), RULE, prefix=2)


def sample(decisions: list[int], sent: list[int] | None = None) -> Sample:
    row, none = np.array([decisions], np.uint8), np.zeros((1, len(decisions)), np.float32)
    drafts = none if sent is None else np.array([sent])
    return Sample(
        tokens=none.astype(np.uint16),
        decisions=row,
        sent=drafts.astype(np.uint8),
        score=none,
        scores=none[..., None],
        drafts=np.full(row.shape, -1, np.int32),
        own=np.full(row.shape, -1, np.int32),
        pictures=np.zeros((1, 2, 2, 3), np.uint8),
        features=np.zeros((1, 4), np.float32),
    )


def test_a_story_tells_questions_from_amendments() -> None:
    drawn = sample([PREFIX, PREFIX, LOCAL, VERIFIED, AMENDED, CORRECTED, LOCAL])

    told = story(GATE, drawn, 0)

    assert told.asked.tolist() == [False, False, False, True, False, True, False]
    assert told.changed.tolist() == [False] * 4 + [True, True, False]


def test_what_the_hub_amends_last_takes_one_more_request() -> None:
    drawn = sample([PREFIX, PREFIX, VERIFIED, AMENDED, LOCAL])

    assert story(GATE, drawn, 0).asked.tolist() == [False, False, True, False, True]


def test_methods_are_run_in_every_place_they_can_be() -> None:
    chain = Method("chain", Chain(2), RULE, exchange="rounds")
    pairs = [(method, sample([PREFIX] * 3)) for method in (cloud_only(RULE), GATE, chain)]

    names = [(each.name, each.method.exchange) for each in deployments(pairs)]

    assert names == [
        ("cloud-only", "stream"),
        ("ours", "window"),
        ("ours, stop and wait", "wait"),
        ("chain, drafter in the cloud", "hosted"),
        ("chain, drafts over the link", "rounds"),
    ]


def test_a_hosted_drafter_pays_the_link_once() -> None:
    chain = Method("chain", Chain(2), RULE, exchange="rounds")
    drawn = sample([VERIFIED, VERIFIED, PREFIX, VERIFIED], [2, 0, 0, 1])
    hosted, over = deployments([(chain, drawn)])

    near, far = usage(hosted, ACCELERATOR, FIVE_G), usage(over, ACCELERATOR, FIVE_G)

    assert near.forwards == far.forwards == 2
    assert (near.round_trips, far.round_trips) == (1, 2)
    assert far.cloud_seconds == pytest.approx(2 * 0.04)
    assert near.cloud_seconds == pytest.approx(2 * 0.04 + 3 * 0.00364)  # and the drafter's
    assert far.seconds - near.seconds == pytest.approx(FIVE_G.rtt_s, rel=0.05)


def test_both_ends_are_what_they_are() -> None:
    cloud, device = deployments(
        [(cloud_only(RULE), sample([PREFIX] * 4)), (device_only(RULE), sample([LOCAL] * 4))]
    )

    assert usage(cloud, ACCELERATOR, FIVE_G).seconds == pytest.approx(0.18, rel=0.01)
    assert usage(device, ACCELERATOR, FIVE_G).seconds == pytest.approx(4 * 0.00364)


def test_curves_cross_where_their_difference_is_zero() -> None:
    assert crossings([0, 10, 20], [1, 2, 3], [2, 2.5, 2]) == [pytest.approx(10 + 10 / 3)]
    assert crossings([0, 10], [1, 2], [2, 3]) == []
