"""Recorded traffic goes to the replaying process and back unchanged."""

from simulations.load.recording import Script
from simulations.load.replay import Order, _from_json, _to_json
from tests.unit.cloud_hub.records import open_message, verify_message

SCRIPT = Script(
    open_message(),
    (verify_message([3, 4, 5]), verify_message([6, 7], start=6, request_id="r3")),
    (0.1, 0.0),
)


def test_an_order_is_the_same_in_the_other_process() -> None:
    order = Order(1883, 64, 5.0, 2.0, True, (SCRIPT,))

    assert _from_json(_to_json(order)) == order


def test_a_picture_drawn_by_the_cloud_alone_asks_for_all_tokens_at_once() -> None:
    whole = SCRIPT.whole

    assert SCRIPT.tokens == 8
    assert (whole.opening.prefix_tokens, whole.backlogs) == (SCRIPT.tokens, ())
