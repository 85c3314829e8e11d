"""Programs are waited for with a deadline, tell the end of their log, and surely end."""

import socket
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from simulations.processes import Program, ProgramError, free_port, program

SAYS = "import time; print('ready', flush=True); time.sleep(60)"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "print('ready', flush=True); time.sleep(60)"
)


def start(tmp_path: Path, code: str) -> AbstractContextManager[Program]:
    module = tmp_path / "said.py"
    module.write_text(code)
    return program("said", ["said"], {"PYTHONPATH": str(tmp_path)}, tmp_path / "log")


def soon() -> float:
    return time.monotonic() + 15


def test_a_program_that_speaks_is_awaited_and_ended(tmp_path: Path) -> None:
    with start(tmp_path, SAYS) as running:
        running.wait_for("speak", lambda: running.says("ready"), soon())
        assert running.is_running

    assert not running.is_running


def test_a_program_that_ends_early_shows_the_end_of_its_log(tmp_path: Path) -> None:
    code = "import sys; print('the disk is on fire'); sys.exit(3)"

    with (
        pytest.raises(ProgramError, match="said ended with exit code 3: see") as refused,
        start(tmp_path, code) as running,
    ):
        running.wait_for("speak", lambda: running.says("ready"), soon())

    assert refused.value.tail == "the disk is on fire"


def test_a_silent_program_is_given_up_at_the_deadline(tmp_path: Path) -> None:
    with (
        pytest.raises(ProgramError, match="said did not speak in time"),
        start(tmp_path, "import time; time.sleep(60)") as running,
    ):
        running.wait_for("speak", lambda: running.says("ready"), time.monotonic() + 0.2)

    assert not running.is_running


def test_a_killed_program_is_gone_at_once(tmp_path: Path) -> None:
    with start(tmp_path, STUBBORN) as running:
        running.wait_for("speak", lambda: running.says("ready"), soon())
        running.kill()

        assert not running.is_running


def test_a_program_that_ignores_a_request_to_end_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simulations.processes._GOODBYE_S", 0.3)

    with start(tmp_path, STUBBORN) as running:
        running.wait_for("speak", lambda: running.says("ready"), soon())
        code = running.stop()

    assert code == -9


def test_a_free_port_can_be_bound() -> None:
    port = free_port()

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", port))


def test_a_log_is_kept_across_starts(tmp_path: Path) -> None:
    with start(tmp_path, "print('once')") as first:
        first.process.wait(10)
    with start(tmp_path, "print('again')") as second:
        second.process.wait(10)

    assert second.log.read_text() == "once\nagain\n"
