"""Kill -9 at any time: what the spool has taken is there after the next start."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from edge_agent.outbox import Limits, Outbox
from fleet.ids import BootId
from fleet.protocol.codec import decode
from tests.unit.edge_agent.toy_record import toy_record

ROOT = Path(__file__).parents[3]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("lines", [1, 7, 40])
def test_a_killed_agent_leaves_every_record_that_it_spooled(tmp_path: Path, lines: int) -> None:
    spool = tmp_path / "outbox.sqlite"
    taken = 0
    for boot in ("first", "second"):
        with subprocess.Popen(
            [sys.executable, "-m", "tests.integration.edge_agent.spooler", str(spool), boot],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            said = [int(process.stdout.readline()) for _ in range(lines)]
            process.send_signal(signal.SIGKILL)
            said += [int(line) for line in process.stdout.read().split()]
        taken += len(said)

        with Outbox(spool, Limits(1 << 24, 100_000)) as outbox:
            found = [(each.boot_id, each.sequence) for each in outbox.pending(100_000)]

        # The last record may be on disk without its line having been written.
        assert list(range(1, len(said) + 1)) == said
        assert taken <= len(found) <= taken + 1
        assert len(set(found)) == len(found)
        assert {(boot, number) for number in said} <= set(found)
        taken = len(found)


KILLS = 200
SMALL = Limits(max_bytes=3_000, max_records=6, max_age_s=1e9)


def _work(spool: Path, boot: str, steps: int) -> None:
    """Puts, strips, drops and confirms until SQLite has run `steps` hundreds of instructions."""
    left = [steps]

    def count_down() -> int:
        left[0] -= 1
        if left[0] <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return 0

    with Outbox(spool, SMALL) as outbox:
        outbox._db.set_progress_handler(count_down, 100)
        for number in range(1, 40):
            outbox.put(toy_record(boot=boot, arrays=300))
            if number % 5 == 0:
                outbox.drop(BootId(boot), [number - 1])


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_killed_at_any_step_of_any_statement_the_spool_stays_whole(tmp_path: Path) -> None:
    """One spool lives through all kills, each at another hundred of SQLite's instructions."""
    spool = tmp_path / "outbox.sqlite"
    seen: dict[tuple[str, int], None] = {}
    killed = 0
    for kill in range(KILLS):
        child = os.fork()
        if not child:
            _work(spool, f"b{kill}", 1 + kill % 97)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        killed += os.WIFSIGNALED(status)

        with Outbox(spool, SMALL) as outbox:
            assert ("ok",) == outbox._db.execute("PRAGMA integrity_check").fetchone()
            pending = outbox.pending(1000)
            state = outbox.state()
        records = [decode(each.payload) for each in pending]
        seen |= dict.fromkeys((each.boot_id, each.sequence) for each in pending)
        assert [each.sequence for each in pending] == [record.sequence for record in records]
        assert len(pending) == state.records <= SMALL.max_records
        # Each lost record has left its counts, whole or not at all.
        assert state.sums.get("tokens", 0) == 24 * state.lost
    assert killed > KILLS * 0.9
    assert len({boot for boot, _ in seen}) > KILLS // 4
