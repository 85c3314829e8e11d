"""A device spares its memory and starts quickly."""

import os
import re
from pathlib import Path

import pytest

from edge_agent.client import EdgeClient
from simulations.processes import Program
from simulations.site import Site, device

IDLE_MIB, GENERATING_MIB = 150, 200
READY_S = 1.5

pytestmark = [pytest.mark.alone, pytest.mark.slow, pytest.mark.timeout(300)]


def most_resident_mib(program: Program) -> float:
    status = Path(f"/proc/{program.process.pid}/status").read_text()
    resident = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
    assert resident is not None
    return int(resident[1]) / 1024


def processor_s(program: Program) -> float:
    fields = Path(f"/proc/{program.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_an_agent_stays_small_idle_and_at_work(site: Site) -> None:
    with device(site, "small", EDGE_AGENT_GENERATION__START_PATIENCE_S="0") as running:
        idle = most_resident_mib(running)
        for seed in range(3):
            EdgeClient(site.state("small")).generate("google: red heart", seed=seed, deadline_s=60)
        at_work = most_resident_mib(running)

    assert idle < IDLE_MIB
    assert at_work < GENERATING_MIB


def test_an_agent_is_ready_soon_also_the_first_time(site: Site) -> None:
    """In processor time, so that a busy machine does not fail it; the first start measures too."""
    taken = []
    for _ in range(2):
        with device(site, "quick") as running:
            taken.append(processor_s(running))

    assert (site.state("quick") / "threads.json").exists()
    assert max(taken) < READY_S
