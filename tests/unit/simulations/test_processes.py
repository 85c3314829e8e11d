"""Programs are waited for with a deadline, tell the end of their log, and surely end."""

import signal
import socket
import sqlite3
import time
from contextlib import AbstractContextManager, closing
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


COUNTS = "import time\nfor number in range(100_000): print(number, flush=True); time.sleep(0.01)"


def lines(running: Program) -> int:
    return running.log.read_text().count("\n")


def test_a_program_that_stands_still_goes_on_where_it_stood(tmp_path: Path) -> None:
    with start(tmp_path, COUNTS) as running:
        running.wait_for("count", lambda: running.says("3\n"), soon())
        running.stall()
        time.sleep(0.1)
        then = lines(running)
        time.sleep(0.3)
        assert lines(running) == then
        running.go_on()
        running.wait_for("count on", lambda: lines(running) > then, soon())


def test_one_that_stands_still_is_ended_like_any_other(tmp_path: Path) -> None:
    with start(tmp_path, COUNTS) as running:
        running.wait_for("count", lambda: running.says("3\n"), soon())
        running.stall()

    assert running.process.returncode == -signal.SIGTERM


WRITES = (
    "import time\n"
    "while True:\n"
    "    try:\n"
    "        with open('out', 'ab', buffering=0) as stream: stream.write(b'x')\n"
    "    except OSError as error:\n"
    "        with open('told', 'wb', buffering=0) as stream: stream.write(b'')\n"
    "    time.sleep(0.01)"
)


def test_files_of_a_program_grow_no_more_until_they_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    out, told = tmp_path / "out", tmp_path / "told"
    with start(tmp_path, WRITES) as running:
        running.wait_for("write", lambda: out.exists() and out.stat().st_size > 3, soon())
        running.limit_files(1)
        running.wait_for("be refused", told.exists, soon())
        size = out.stat().st_size
        time.sleep(0.1)
        assert out.stat().st_size == size
        running.limit_files(None)
        running.wait_for("write on", lambda: out.stat().st_size > size, soon())


STORES = (
    "import os, time\n"
    "from cloud_hub.store.database import Database\n"
    "from fleet.errors import StoreError\n"
    "with Database('sqlite:///hub.db') as database:\n"
    "    with database.write() as rows: rows.exec_driver_sql('CREATE TABLE row (number)')\n"
    "    os.mkdir('made')\n"
    "    while not os.path.exists('enough'):\n"
    "        try:\n"
    "            with database.write() as rows:\n"
    "                rows.exec_driver_sql('INSERT INTO row VALUES (1)')\n"
    "        except StoreError as error:\n"
    "            os.makedirs(str(error).replace('/', '_').replace(':', ''), exist_ok=True)\n"
    "        time.sleep(0.01)"
)


def test_a_database_without_room_refuses_and_then_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def rows() -> int:
        with closing(sqlite3.connect("hub.db")) as connection:
            (count,) = connection.execute("SELECT count(*) FROM row").fetchone()
            return int(count)

    with start(tmp_path, STORES) as running:
        running.wait_for("begin", lambda: Path("made").exists(), soon())
        running.limit_files(1)
        running.wait_for("be refused", lambda: any(tmp_path.glob("*disk*")), soon())
        there = rows()
        running.limit_files(None)
        running.wait_for("store on", lambda: rows() > there, soon())
        Path("enough").mkdir()
        running.process.wait(15)

    assert rows() > there
