"""A scenario from its beginning to its report."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cloud_hub.store.database import Database
from fleet.decoding.policies import PolicyName
from fleet.errors import InvalidInputError, OutputError
from fleet.ids import ModelVersion
from fleet.logs import configure_logs
from simulations.history.checker import Violation, check
from simulations.history.events import read_events
from simulations.history.run import Run, Twin
from simulations.history.stored import read_stored
from simulations.history.tally import Tally
from simulations.real.run import RealOrder
from simulations.real.run import run_real as run_programs
from simulations.real.twins import twin_of as real_twin_of
from simulations.report.findings import Findings
from simulations.results import claim
from simulations.scenarios.faults import REAL_ONLY
from simulations.scenarios.population import population
from simulations.scenarios.scenario import Scenario
from simulations.stand_in import pixel
from simulations.world.node import image_name
from simulations.world.versions import devices_by_version
from simulations.world.world import DATABASE, EVENTS, Order, device_of, simulate

LOG = "log.jsonl"


def run(order: Order, on_tick: Callable[[Tally], None] = lambda _: None) -> Findings:
    """Simulates on the virtual clock and examines what was left; writes no report.

    Raises:
        InvalidInputError: The scenario has a fault that only the real clock has.
        OutputError: The order's folder cannot be written, or holds something else.
    """
    for fault in order.scenario.faults:
        if fault.kind in REAL_ONLY:
            raise InvalidInputError(
                f"the fault {fault.kind!r} needs the real clock: take it out, or run the scenario"
                " with --clock real"
            )
    claim(order.out)
    begun = time.perf_counter()
    with _logs(order.out / LOG):
        simulate(order, on_tick)
    real_s = time.perf_counter() - begun
    return _findings(order.scenario, order.seed, order.out, "virtual", real_s, twin_of(order))


def run_real(order: RealOrder, on_tick: Callable[[Tally], None] = lambda _: None) -> Findings:
    """Runs on the real clock and examines what was left; writes no report.

    Raises:
        InvalidInputError, ProgramError, OutputError: As `simulations.real.run.run_real`.
    """
    begun = time.perf_counter()
    run_programs(order, on_tick)
    real_s = time.perf_counter() - begun
    twin = real_twin_of(order, list(read_events(order.out / EVENTS)))
    return _findings(order.scenario, order.seed, order.out, "real", real_s, twin)


def _findings(
    scenario: Scenario, seed: int, out: Path, clock: str, real_s: float, twin: Twin | None
) -> Findings:
    return Findings(
        scenario=scenario,
        seed=seed,
        clock=clock,
        fleet=population(scenario, seed),
        events=list(read_events(out / EVENTS)),
        violations=examine(out, scenario.generation.deadline_s, twin),
        real_s=real_s,
    )


@contextmanager
def _logs(file: Path) -> Iterator[None]:
    """What agents and hub write to their logs, together in one file."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        stream = file.open("w", encoding="utf-8")
    except OSError as error:
        raise OutputError(f"{file} cannot be written: {error.strerror}") from error
    with stream:
        configure_logs(log_format="json", level="warning", stream=stream)
        try:
            yield
        finally:
            configure_logs(log_format="console", level="warning")


def examine(out: Path, deadline_s: float, twin: Twin | None) -> list[Violation]:
    """The laws that what a run left in a folder breaks.

    Raises:
        InvalidInputError, StoreError: Events or database cannot be read.
    """
    with Database(f"sqlite:///{out / DATABASE}", must_exist=True) as database:
        stored = read_stored(database)
    return check(Run(list(read_events(out / EVENTS)), stored, deadline_s, twin))


def twin_of(order: Order) -> Twin:
    """What undisturbed stand-ins of a version make of a caption and a seed."""
    device, wishes = device_of(order), order.scenario.generation
    devices, manifest = devices_by_version(order.scenario, device), device.manifest
    policy = PolicyName.parse(wishes.policy).policy(manifest).name
    prefix = manifest.prefix_tokens if wishes.prefix_tokens is None else wishes.prefix_tokens

    def twin(caption: str, seed: int, version: str) -> str:
        drawn = devices[ModelVersion(version)].alone(caption, seed, policy, prefix)
        return image_name(pixel(drawn))

    return twin
