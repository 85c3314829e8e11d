"""Warnings are counted always and logged once a minute for each node and kind."""

import structlog

from cloud_hub.notices import Notices


def test_a_node_that_sends_junk_is_logged_once_a_minute_and_counted_always() -> None:
    now = [0.0]
    notices = Notices(lambda: now[0])

    with structlog.testing.capture_logs() as logs:
        for second in range(130):
            now[0] = float(second)
            notices.warn("dropped", "noisy", "junk")
        notices.warn("dropped", "other", "junk")

    assert [(line["node"], line["so_far"]) for line in logs] == [
        ("noisy", 1),
        ("noisy", 61),
        ("noisy", 121),
        ("other", 131),
    ]
    assert notices.counts == {"dropped": 131}


def test_many_nodes_do_not_fill_the_memory() -> None:
    notices = Notices(lambda: 0.0)

    with structlog.testing.capture_logs():
        for number in range(10_000):
            notices.warn("dropped", f"n{number}", "junk")

    assert len(notices._said) <= 4096
    assert notices.counts["dropped"] == 10_000
