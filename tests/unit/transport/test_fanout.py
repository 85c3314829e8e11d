"""Topic filters and bounded queues."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import TransportError
from fleet.transport.base import Inbound, QoS
from fleet.transport.fanout import Counters, Fanout, check_filters, matches

levels = st.text("ab", max_size=2)
topic_lists = st.lists(levels, min_size=1, max_size=4).filter(lambda parts: parts != [""])


def arrival(payload: bytes, qos: QoS, acks: list[bytes]) -> Inbound:
    return Inbound("a", payload, False, lambda: acks.append(payload), qos)


@given(topic_lists)
def test_a_topic_selects_itself_alone_or_shared(parts: list[str]) -> None:
    topic = "/".join(parts)

    assert matches(topic, topic)
    assert matches(f"$share/group/{topic}", topic)
    assert not matches(topic, f"{topic}/more")


@given(topic_lists, st.data())
def test_plus_stands_for_one_level_and_hash_for_the_rest(
    parts: list[str], data: st.DataObject
) -> None:
    topic = "/".join(parts)
    position = data.draw(st.integers(0, len(parts) - 1))

    assert matches("/".join([*parts[:position], "+", *parts[position + 1 :]]), topic)
    assert matches("/".join([*parts[:position], "#"]), topic)
    assert matches(f"{topic}/#", topic)
    assert not matches(f"{topic}/+", topic)


def test_wildcards_in_front_leave_the_brokers_own_topics_out() -> None:
    assert not matches("#", "$SYS/broker/uptime")
    assert not matches("+/broker/uptime", "$SYS/broker/uptime")
    assert matches("$SYS/#", "$SYS/broker/uptime")


@pytest.mark.parametrize(
    "pattern", ["", "a/#/b", "#/a", "a+", "a/b#", "$share/g", "$share//a", "$share/g/"]
)
def test_what_no_broker_accepts_is_refused(pattern: str) -> None:
    with pytest.raises(TransportError, match="is not a topic filter"):
        check_filters([pattern])


@pytest.mark.parametrize("pattern", ["a", "/", "a//b", "+", "#", "a/+/#", "$share/g/a/#", "$SYS/#"])
def test_what_brokers_accept_is_accepted(pattern: str) -> None:
    check_filters([pattern])


async def test_a_payload_is_acknowledged_when_every_taker_has() -> None:
    acks: list[bytes] = []
    fanout = Fanout(Counters())
    with fanout.open(("a",), 1, 9) as one, fanout.open(("+",), 1, 9) as two:
        fanout.deliver(arrival(b"1", 1, acks), None)
        first, second = await anext(one), await anext(two)

        first.ack()
        first.ack()
        assert acks == []
        second.ack()
        assert acks == [b"1"]


def test_what_nobody_wants_is_acknowledged_and_counted() -> None:
    acks: list[bytes] = []
    counters = Counters()

    Fanout(counters).deliver(arrival(b"1", 1, acks), None)

    assert acks == [b"1"]
    assert counters.unclaimed == 1


async def test_a_full_queue_lets_qos_0_go_and_keeps_qos_1() -> None:
    counters = Counters()
    fanout = Fanout(counters)
    with fanout.open(("a",), 1, 3) as subscription:
        for payload, qos in ((b"0a", 0), (b"1a", 1), (b"0b", 0), (b"1b", 1), (b"1c", 1)):
            fanout.deliver(arrival(payload, qos, []), None)  # type: ignore[arg-type]
        fanout.deliver(arrival(b"0c", 0, []), None)
        fanout.deliver(arrival(b"1d", 1, []), None)
        kept = [(await anext(subscription)).payload for _ in range(4)]

    assert kept == [b"1a", b"1b", b"1c", b"1d"]
    assert counters.dropped == 3


async def test_after_a_lost_link_a_full_queue_lets_anything_go() -> None:
    counters = Counters()
    fanout = Fanout(counters)
    with fanout.open(("a",), 1, 3) as subscription:
        for number in range(3):
            fanout.deliver(arrival(b"old%d" % number, 1, []), None)
        fanout.link_lost()
        for number in range(2):
            fanout.deliver(arrival(b"new%d" % number, 1, []), None)
        kept = [(await anext(subscription)).payload for _ in range(3)]

    assert kept == [b"old2", b"new0", b"new1"]
    assert counters.dropped == 2


async def test_a_closed_subscription_ends_after_what_waits() -> None:
    fanout = Fanout(Counters())
    with fanout.open(("a",), 0, 3) as subscription:
        fanout.deliver(arrival(b"last", 0, []), None)

    assert [inbound.payload async for inbound in subscription] == [b"last"]


async def test_who_takes_a_topic_is_found_anew_when_a_subscription_comes_or_goes() -> None:
    counters = Counters()
    fanout = Fanout(counters)
    fanout.deliver(arrival(b"too soon", 0, []), ("a",))
    with fanout.open(("a",), 0, 9) as one:
        fanout.deliver(arrival(b"one", 0, []), ("a",))
        with fanout.open(("+",), 0, 9) as two:
            fanout.deliver(arrival(b"plain", 0, []), ("a",))
            fanout.deliver(arrival(b"wild", 0, []), ("+",))
    fanout.deliver(arrival(b"too late", 0, []), ("a",))

    assert [inbound.payload async for inbound in one] == [b"one", b"plain"]
    assert [inbound.payload async for inbound in two] == [b"wild"]
    assert counters.unclaimed == 2
