"""The engine's numbers as Prometheus reads them, over HTTP."""

import asyncio
import socket
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cloud_hub.metrics import exposed
from fleet.errors import AddressInUseError
from tests.services import free_port
from tests.unit.cloud_hub.bench import Bench
from tests.unit.cloud_hub.toy import VOCAB, backlog, cloud_only, opening, run_of


def scrape(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        text = answer.read().decode()
    return {
        sample.name.removeprefix("ciar_engine_")
        + "".join(f"/{value}" for value in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_what_the_engine_did_is_what_prometheus_reads() -> None:
    right = cloud_only((3, 1, 4), 7)
    wrong = [right[3], (right[4] + 1) % VOCAB, right[5]]
    port = free_port()
    async with Bench(slots=3).running() as bench:
        with exposed(bench.engine, "127.0.0.1", port):
            await bench.ask(opening(prefix_tokens=3))
            await bench.ask(backlog(3, run_of(wrong), [True] * 3))
            await bench.ask(backlog(5, run_of(right[5:8]), [False, True, True], branch=1))
            await bench.ask(backlog(0, run_of([1]), [True], generation="unknown"))
            found = await asyncio.to_thread(scrape, port)

    assert {name: found[name] for name in ("sessions", "slots", "waiting_requests")} == {
        "sessions": 1,
        "slots": 3,
        "waiting_requests": 0,
    }
    assert found["opened_total"] == 1
    assert found["forwards_total"] == found["forward_seconds_count"] == 5
    assert (found["drafts_total"], found["draft_tokens_total"]) == (2, 5)
    assert (found["accepted_tokens_total"], found["corrected_total"]) == (3, 1)
    assert found["accepted_tokens_per_position_total/0"] == 2
    assert found["accepted_tokens_per_position_total/1"] == 1
    assert found["denied_total/unknown_session"] == 1
    assert found["verify_seconds_count"] == found["verify_seconds_bucket/+Inf"] == 2
    assert found["queue_seconds_count"] == 3


def test_a_port_in_use_is_said() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with (
            pytest.raises(AddressInUseError, match=r"set metrics\.port"),
            exposed(Bench().engine, "127.0.0.1", port),
        ):
            pass
