"""Messages become requests only if everything in them fits."""

from typing import Any

import numpy as np
import pytest

from cloud_hub.engine.requests import Backlog, Cost, Denied, Full, Judged, Opened, Opening, Reason
from cloud_hub.verification import Service, read_open, read_verify, write_answer
from fleet.decoding.residual import law_to_send
from fleet.decoding.verify import Rule
from fleet.ids import ModelVersion, NodeId, WorkerId
from fleet.models.caption import PAD, UNKNOWN, CaptionVocabulary
from fleet.protocol.arrays import pack_features, pack_laws, pack_mask, pack_tokens, unpack_tokens
from fleet.protocol.codec import MAX_MESSAGE_BYTES, encode
from fleet.protocol.messages import (
    Busy,
    GenerationOpened,
    History,
    Refused,
    VerifyResponse,
)
from tests.unit.cloud_hub.records import open_message, verify_message
from tests.unit.cloud_hub.toy import POSITIONS, VOCAB, tokens_of

NODE = NodeId("n1")
SERVICE = Service(
    worker=WorkerId("w1"),
    family="toy",
    cloud_version=ModelVersion("v1"),
    positions=POSITIONS,
    vocab_size=VOCAB,
    captions=CaptionVocabulary((PAD, UNKNOWN, "heart", "red")),
)


def mask(*bits: int) -> bytes:
    return pack_mask(np.array(bits, bool))


def test_an_opening_carries_the_caption_as_words_and_the_history_as_arrays() -> None:
    features = np.arange(96, dtype=np.int8).reshape(2, 48)
    history = History(
        tokens=pack_tokens(tokens_of([5, 6, 7])),
        local=mask(1, 0, 1),
        features=pack_features(features),
    )

    opening = read_open(SERVICE, NODE, open_message(history=history, branch=2))

    assert isinstance(opening, Opening)
    assert opening.caption == (3, 2)
    assert opening.key == (NODE, "g1")
    assert opening.history.tokens.tolist() == [5, 6, 7]
    np.testing.assert_array_equal(opening.history.features[[0, 2]], features)
    assert not opening.history.features[1].any()


@pytest.mark.parametrize(
    ("changes", "reason", "detail"),
    [
        ({"family": "other"}, "other_family", "serves 'toy'"),
        ({"caption": "green heart"}, "invalid", "'green'"),
        ({"caption": ""}, "invalid", "no words"),
        ({"prefix_tokens": POSITIONS + 1}, "invalid", "beyond the picture's 16 tokens"),
        ({"history": History(tokens=b"\1")}, "invalid", "whole number of u16"),
        (
            {"history": History(tokens=pack_tokens(tokens_of([0] * 17)), local=mask(*[0] * 17))},
            "invalid",
            "position 17",
        ),
        ({"history": History(tokens=b"\1\0", local=b"")}, "invalid", "bitmap"),
        ({"generation_id": "a/b"}, "invalid", "generation_id"),
        ({"boot_id": "#"}, "invalid", "boot_id"),
    ],
)
def test_an_opening_that_does_not_fit_is_refused_with_what_is_wrong(
    changes: dict[str, Any], reason: str, detail: str
) -> None:
    refused = read_open(SERVICE, NODE, open_message(**changes))

    assert isinstance(refused, Refused)
    assert (refused.reason, refused.request_id) == (reason, "r1")
    assert detail in refused.detail


@pytest.mark.parametrize(
    ("tokens", "changes", "detail"),
    [
        ([], {}, "at least one token"),
        ([VOCAB], {}, f"token {VOCAB} is not among"),
        ([1] * 14, {}, "position 17"),
        ([1], {"start": 16}, "position 17"),
        ([1, 2], {"uncertain": b""}, "bitmap"),
        ([1, 2], {"local": mask(1, 0)}, "either local or uncertain"),
        ([1, 2], {"uncertain": mask(0, 1), "local": mask(1, 0), "features": b"x"}, "feature bytes"),
        ([1], {"request_id": "x" * 64}, "request_id"),
    ],
)
def test_a_backlog_that_does_not_fit_is_refused_with_what_is_wrong(
    tokens: list[int], changes: dict[str, Any], detail: str
) -> None:
    refused = read_verify(SERVICE, NODE, verify_message(tokens, **changes))

    assert isinstance(refused, Refused)
    assert refused.reason == "invalid"
    assert detail in refused.detail


def test_a_rule_is_named_in_the_open_and_refused_if_it_is_unknown() -> None:
    plain = read_open(SERVICE, NODE, open_message())
    relaxed = read_open(SERVICE, NODE, open_message(rule="residual", relaxation=1.5))
    unknown = read_open(SERVICE, NODE, open_message(rule="majority"))
    misfit = read_open(SERVICE, NODE, open_message(relaxation=1.5))

    assert isinstance(plain, Opening)
    assert isinstance(relaxed, Opening)
    assert (plain.rule, relaxed.rule) == (Rule("gumbel"), Rule("residual", 1.5))
    for refused, said in ((unknown, "take one of gumbel, residual"), (misfit, "'gumbel'")):
        assert isinstance(refused, Refused)
        assert refused.reason == "invalid"
        assert said in refused.detail


def test_draft_laws_come_with_the_uncertain_drafts_that_they_are_of() -> None:
    law = law_to_send(np.zeros(VOCAB))
    found = read_verify(
        SERVICE, NODE, verify_message([1, 2], uncertain=mask(0, 1), laws=pack_laws([law]))
    )
    too_many = read_verify(
        SERVICE, NODE, verify_message([1, 2], uncertain=mask(0, 1), laws=pack_laws([law, law]))
    )
    peaked = law_to_send(np.where(np.arange(VOCAB) == 3, 30.0, 0.0))
    impossible = read_verify(
        SERVICE, NODE, verify_message([1, 2], uncertain=mask(0, 1), laws=pack_laws([peaked]))
    )

    assert isinstance(found, Backlog)
    assert len(found.laws) == 1
    for refused, said in ((too_many, "2 draft laws for 1"), (impossible, "probability 0")):
        assert isinstance(refused, Refused)
        assert said in refused.detail


def test_every_answer_has_its_message() -> None:
    request = open_message()
    cost = Cost(3, 0.1, 0.2)
    answers = [
        write_answer(SERVICE, request, Opened((4, 5), (0.5, 1.0), cost)),
        write_answer(SERVICE, request, Judged(1, 2, 9, (0.25,), cost)),
        write_answer(SERVICE, request, Full(1.5)),
        write_answer(SERVICE, request, Denied(Reason.GAP, expected=7)),
    ]

    opened, judged, busy, refused = answers
    assert isinstance(opened, GenerationOpened)
    assert unpack_tokens(opened.tokens).tolist() == [4, 5]
    assert (opened.confidences, opened.worker, opened.forwards) == (bytes([128, 255]), "w1", 3)
    assert isinstance(judged, VerifyResponse)
    assert (judged.branch, judged.accepted, judged.next_token) == (1, 2, 9)
    assert isinstance(busy, Busy)
    assert busy.retry_after_s == 1.5
    assert isinstance(refused, Refused)
    assert (refused.reason, refused.expected) == ("gap", 7)
    assert all(len(encode(answer)) < MAX_MESSAGE_BYTES for answer in answers)
