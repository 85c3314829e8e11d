"""Topics: what is sent is what somebody subscribes to, and names its sender."""

import pytest

from fleet.errors import ProtocolError
from fleet.ids import BootId, NodeId, WorkerId
from fleet.protocol import topics
from fleet.transport.fanout import matches

NODE, BOOT, WORKER = NodeId("node-1"), BootId("b0"), WorkerId("w0")


@pytest.mark.parametrize(
    ("pattern", "topic"),
    [
        (topics.OPENS, topics.open_request(NODE)),
        (topics.RECORDS, topics.record(NODE)),
        (topics.NODE_STATES, topics.node_state(NODE)),
        (topics.HUB_STATES, topics.hub_state(WORKER)),
        (topics.requests_to(WORKER), topics.pinned_request(NODE, WORKER)),
        (topics.ROUND_REPLIES, topics.round_reply(NODE)),
    ],
)
def test_each_filter_of_the_hub_selects_its_topic_only(pattern: str, topic: str) -> None:
    others = {
        topics.hub_state(WORKER),
        topics.open_request(NODE),
        topics.record(NODE),
        topics.node_state(NODE),
        topics.pinned_request(NODE, WORKER),
        topics.pinned_request(NODE, WorkerId("w1")),
        topics.inbox(NODE, BOOT),
        topics.round_tasks(NODE),
        topics.round_reply(NODE),
        topics.round_chunk("0a", 3),
    }

    assert {other for other in others if matches(pattern, other)} == {topic}


@pytest.mark.parametrize(
    "topic",
    [
        topics.open_request(NODE),
        topics.pinned_request(NODE, WORKER),
        topics.record(NODE),
        topics.node_state(NODE),
        topics.inbox(NODE, BOOT),
        topics.round_tasks(NODE),
        topics.round_reply(NODE),
    ],
)
def test_every_topic_of_a_node_names_it(topic: str) -> None:
    assert topics.sender(topic) == NODE


@pytest.mark.parametrize(
    "topic",
    [topics.hub_state(WORKER), "", "fleet/v1/d", "fleet/v1/d/n", "fleet/v1/d//x", "other/v1/d/n/x"],
)
def test_a_topic_without_a_node_is_refused(topic: str) -> None:
    with pytest.raises(ProtocolError, match="names no node"):
        topics.sender(topic)


def test_a_body_is_fetched_by_its_own_hash_only() -> None:
    assert matches(topics.round_body("0a"), topics.round_chunk("0a", 3))
    assert not matches(topics.round_body("0a"), topics.round_chunk("0b", 3))
