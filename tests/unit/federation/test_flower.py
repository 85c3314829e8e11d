"""The contract with Flower: what `fleet.federation` relies on, public and private."""

import ast
import inspect
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from flwr.app import Array, ConfigRecord, Error, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid, strategy
from numpy.typing import NDArray

from fleet.errors import ProtocolError
from fleet.federation import codec
from fleet.federation.flower import HUB_NODE, instruction, name_message, take_identity


def content() -> RecordDict:
    arrays: dict[str, NDArray[Any]] = {
        "a": np.arange(6, dtype=np.float16).reshape(2, 3),
        "b": np.zeros((), np.float32),
    }
    return RecordDict(
        {
            "arrays": codec.to_record(arrays),
            "metrics": MetricRecord({"loss": 0.5, "n": 3, "curve": [1.0, 2.0]}),
            "config": ConfigRecord({"name": "x", "bytes": b"\0\1", "on": True}),
        }
    )


def test_the_release_is_the_pinned_one() -> None:
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    pins = [
        line
        for extra in project["optional-dependencies"].values()
        for line in extra
        if line.startswith("flwr")
    ]

    assert pins
    assert all(pin.split("==")[1] == version("flwr") for pin in pins)


def test_a_grid_has_the_members_that_ours_have() -> None:
    assert Grid.__abstractmethods__ == {
        *("set_run", "run", "create_message", "get_node_ids"),
        *("push_messages", "pull_messages", "send_and_receive"),
    }


@pytest.mark.parametrize(
    ("hook", "arguments"),
    [
        ("configure_train", ["self", "server_round", "arrays", "config", "grid"]),
        ("aggregate_train", ["self", "server_round", "replies"]),
        ("configure_evaluate", ["self", "server_round", "arrays", "config", "grid"]),
    ],
)
def test_strategies_have_the_hooks_that_the_loop_calls(hook: str, arguments: list[str]) -> None:
    assert list(inspect.signature(getattr(strategy.Strategy, hook)).parameters) == arguments


def test_adam_keeps_its_moments_where_they_are_saved() -> None:
    assert {"m_t", "v_t", "current_arrays"} <= vars(strategy.FedAdam()).keys()


def test_an_instruction_and_its_reply_name_each_other() -> None:
    take_identity(7)
    asked = Message(content(), 42, MessageType.TRAIN)
    name_message(asked, "m1")

    received = instruction(
        content(), run=7, message_id="m1", node=42, message_type="train", ttl=60.0
    )
    reply = Message(Error(1, "no"), reply_to=received)

    assert asked.metadata.message_id == received.metadata.message_id == "m1"
    assert reply.metadata.reply_to_message_id == "m1"
    assert (reply.metadata.src_node_id, reply.metadata.dst_node_id) == (42, HUB_NODE)
    assert reply.metadata.run_id == asked.metadata.run_id == 7


def test_records_come_back_as_they_went_in() -> None:
    data = codec.pack(content())

    found = codec.unpack(data)

    assert codec.pack(found) == data
    arrays = codec.from_record(found.array_records["arrays"])
    assert arrays["a"].dtype == np.float16
    np.testing.assert_array_equal(arrays["a"], np.arange(6).reshape(2, 3))
    assert arrays["b"].shape == ()
    assert dict(found.metric_records["metrics"]) == {"loss": 0.5, "n": 3, "curve": [1.0, 2.0]}
    assert found.config_records["config"]["bytes"] == b"\0\1"


@pytest.mark.parametrize(
    "value",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.full((), 3, np.float16),
        np.zeros((0, 4), np.float32),
    ],
)
def test_an_array_is_read_as_flower_reads_it(value: NDArray[Any]) -> None:
    array = Array(value)

    found = codec.values_of(array)

    assert found.dtype == array.numpy().dtype
    np.testing.assert_array_equal(found, array.numpy(), strict=True)


def test_an_array_is_read_without_pythons_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    # Which fails in two threads at once before CPython 3.11.8.
    monkeypatch.setattr(ast, "literal_eval", lambda _: pytest.fail("parsed"))

    assert codec.from_record(codec.to_record({"a": np.ones((2, 2), np.float32)}))["a"].sum() == 4


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x93\1\2\3",
        msgpack.packb({"x": ["arrays", {"a": ["<f2", [1 << 40], b"12"]}]}),
        msgpack.packb({"x": ["arrays", {"a": ["|O", [1], b"12345678"]}]}),
        msgpack.packb({"x": ["arrays", {"a": ["<f2", [1, 1, 1, 1, 1], b"12"]}]}),
        msgpack.packb({"x": ["pickle", {}]}),
        msgpack.packb({"x": ["metrics", {"a": "text"}]}),
    ],
)
def test_what_are_no_records_is_refused_with_a_sentence(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        codec.unpack(data)
