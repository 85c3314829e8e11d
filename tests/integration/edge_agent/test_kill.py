"""Kill -9 at any time: what the spool has taken is there after the next start."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from edge_agent.outbox import Limits, Outbox

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
