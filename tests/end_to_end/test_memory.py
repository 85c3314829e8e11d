"""A device spares its memory."""

import re
from pathlib import Path

import pytest

from simulations.processes import Program

IDLE_MIB = 150

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_an_idle_agent_with_its_models_loaded_stays_small(tablet: Program) -> None:
    status = Path(f"/proc/{tablet.process.pid}/status").read_text()

    resident = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
    assert resident is not None
    assert int(resident[1]) / 1024 < IDLE_MIB
