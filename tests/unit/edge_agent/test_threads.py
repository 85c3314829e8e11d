"""Threads: the fewest that are worth it, measured once for one model on one machine."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from edge_agent.threads import candidates, fastest, remembered


def test_candidates_double_up_to_the_cores() -> None:
    assert [[1], [1, 2], [1, 2], [1, 2, 4]] == [candidates(cores) for cores in (1, 2, 3, 4)]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ({1: 1.0, 2: 1.2, 4: 0.1}, 1),  # a step that gets slower is not tried further
        ({1: 1.0, 2: 0.95, 4: 0.1}, 1),  # hardly faster is not worth a core
        ({1: 1.0, 2: 0.6, 4: 0.58}, 2),
        ({1: 1.0, 2: 0.6, 4: 0.35}, 4),
        ({1: 0.0029, 2: 0.0001, 4: 0.0001}, 1),  # so short that no other number is tried
        ({1: 0.0031, 2: 0.0001, 4: 0.0001}, 2),
    ],
)
def test_more_threads_must_be_clearly_faster(
    monkeypatch: pytest.MonkeyPatch, seconds: dict[int, float], expected: int
) -> None:
    now = [0.0]
    monkeypatch.setattr("edge_agent.threads.time.perf_counter", lambda: now[0])

    def stepper(threads: int) -> Callable[[], None]:
        def step() -> None:
            now[0] += seconds[threads]

        return step

    assert expected == fastest(stepper, 4)


def test_it_is_measured_once_for_a_model(tmp_path: Path) -> None:
    file, measured = tmp_path / "state not made yet" / "threads.json", list[int]()

    def choose() -> int:
        measured.append(1)
        return 2

    assert [2, 2, 2] == [remembered(file, model, choose) for model in ("a", "a", "b")]
    assert 2 == len(measured)


@pytest.mark.parametrize("kept", ["", "[]", '{"a on 0 cores": 3}', '{"a": "x"}', "{"])
def test_a_file_that_says_nothing_is_written_anew(tmp_path: Path, kept: str) -> None:
    file = tmp_path / "threads.json"
    file.write_text(kept)

    assert 3 == remembered(file, "a", lambda: 3)
    assert [3] == list(json.loads(file.read_text()).values())


def test_a_folder_that_takes_nothing_costs_a_measurement_only(tmp_path: Path) -> None:
    assert 3 == remembered(tmp_path / "missing" / "threads.json", "a", lambda: 3)
