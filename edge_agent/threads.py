"""How many threads the device step runs on: measured at the first start, then remembered.

A small model loses by a second thread what it gains; a large one does not. What was measured
holds for one device model on one number of cores, and is measured again for another.
"""

import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from edge_agent.files import replace_text
from fleet.logs import get_logger

STEPS = 12  # measured for each number of threads, after some to warm up
WARM_UP = 2
SMALL_S = 0.003  # a step shorter than this is never worth a second thread
WORTH_IT = 0.9  # more threads must take less than this share of the time

log = get_logger(__name__)


def candidates(cores: int) -> list[int]:
    """Numbers of threads worth a try: 1, 2, 4, … up to the cores."""
    found = [1]
    while found[-1] * 2 <= cores:
        found.append(found[-1] * 2)
    return found


def remembered(file: Path, model: str, choose: Callable[[], int]) -> int:
    """The number of threads for a device model on this machine; `choose` measures it once."""
    key = f"{model} on {os.cpu_count()} cores"
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        threads = int(kept[key])
        if threads >= 1:
            return threads
    except (OSError, ValueError, KeyError, TypeError):
        pass
    threads = choose()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_text(file, json.dumps({key: threads}))
    except OSError as error:
        log.warning("number of threads not kept", reason=error.strerror)
    return threads


def fastest(stepper: Callable[[int], Callable[[], None]], cores: int) -> int:
    """The least number of threads that is not clearly slower than more of them.

    Args:
        stepper: For a number of threads, a function that runs one device step.
        cores: Of the machine.
    """
    best, best_s = 1, _median_s(stepper(1))
    if best_s < SMALL_S:
        return best
    for threads in candidates(cores)[1:]:
        seconds = _median_s(stepper(threads))
        if seconds > WORTH_IT * best_s:
            break
        best, best_s = threads, seconds
    return best


def _median_s(step: Callable[[], None]) -> float:
    for _ in range(WARM_UP):
        step()
    times = []
    for _ in range(STEPS):
        begun = time.perf_counter()
        step()
        times.append(time.perf_counter() - begun)
    return statistics.median(times)
