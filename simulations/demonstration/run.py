"""The demonstration: a hub, three devices, twelve pictures, and a folder to look at."""

import shutil
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cloud_hub.store import queries
from cloud_hub.store.database import Database
from cloud_hub.store.queries import DeviceRow, Story
from edge_agent.client import EdgeClient
from fleet.errors import FleetError, OutputError, RequestTimeout
from simulations.demonstration.page import write_page
from simulations.demonstration.pictures import Picture, ToldPicture, told
from simulations.demonstration.plan import DEVICES, DevicePlan
from simulations.demonstration.screen import Screen, screen
from simulations.demonstration.sheet import write_sheet
from simulations.demonstration.tables import device_text, write_tables
from simulations.processes import Program, free_port, remaining
from simulations.site import Site, device, hub, wait_for_hub

WHOLE_S = 110.0  # the demonstration ends within this, whatever happens
START_S = 60.0  # the first import of torch after an installation is slow
RECORDS_S = 10.0
PICTURE_S = 25.0
_MARKER = ".ciar-demo"


@dataclass(frozen=True, slots=True)
class Results:
    """What came out: the pictures with their stories, and a row a device."""

    pictures: list[ToldPicture]
    rows: list[DeviceRow]


def run_demo(out: Path, models: Path | None, devices: tuple[DevicePlan, ...] = DEVICES) -> None:
    """Runs the demonstration and lays out its results in `out`.

    Raises:
        OutputError: `out` holds something that no demonstration has written.
        ProgramError: A program ended or said nothing; the error shows the end of its log.
        RequestTimeout: It took longer than it may.
    """
    begun = time.monotonic()
    _clear(out)
    site = Site(out, free_port(), models, start_s=START_S)
    with screen(devices) as view:
        results = _run(site, devices, view, begun + WHOLE_S)
        write_tables(out, results.rows)
        write_sheet(out / "sheet.png", results.pictures, results.rows)
        write_page(out, results.pictures, results.rows)
        for line in _closing(out, results, time.monotonic() - begun):
            view.say(line)


def _run(site: Site, devices: tuple[DevicePlan, ...], view: Screen, deadline: float) -> Results:
    with ExitStack() as stack:
        view.say(f"starting the hub (broker on 127.0.0.1:{site.port}) and {len(devices)} devices")
        stack.enter_context(hub(site))
        agents = _start(stack, site, devices)
        for plan, agent in agents.items():
            wait_for_hub(site, plan.node, agent, deadline)
        view.say("drawing")
        pictures = _draw(site, agents, view, deadline)
        return _collect(site, pictures, min(deadline, time.monotonic() + RECORDS_S))


def _start(
    stack: ExitStack, site: Site, devices: tuple[DevicePlan, ...]
) -> dict[DevicePlan, Program]:
    """Starts all devices at the same time."""
    with ThreadPoolExecutor(len(devices), "start") as pool:
        # Each context is left by the stack, also those whose neighbours failed to start.
        started = {
            plan: pool.submit(stack.enter_context, device(site, plan.node, plan.link))
            for plan in devices
        }
        return {plan: future.result() for plan, future in started.items()}


def _draw(
    site: Site, agents: dict[DevicePlan, Program], view: Screen, deadline: float
) -> list[Picture]:
    """All devices at once, each its pictures one after the other.

    Raises:
        ProgramError: A device could not make a picture.
        RequestTimeout: The deadline passed.
    """
    pool = ThreadPoolExecutor(len(agents), "ask")
    try:
        asked = [pool.submit(_ask, site, plan, agent, view) for plan, agent in agents.items()]
        return [picture for future in asked for picture in future.result(remaining(deadline))]
    except TimeoutError as error:
        raise RequestTimeout(f"the pictures took too long: see {site.folder / 'logs'}") from error
    finally:
        # After a failure others may still draw: they end when their devices are stopped.
        pool.shutdown(wait=False, cancel_futures=True)


def _ask(site: Site, plan: DevicePlan, agent: Program, view: Screen) -> list[Picture]:
    client = EdgeClient(site.state(plan.node))
    pictures = []
    for index, (caption, seed) in enumerate(plan.orders):
        try:
            made = client.generate(
                caption,
                seed=seed,
                deadline_s=PICTURE_S,
                on_step=partial(view.show, plan, index),
            )
        except FleetError as error:
            raise agent.failure(f"could not draw {caption!r} ({error})") from error
        pictures.append(Picture(plan, made))
        view.finished(plan, index, made)
    return pictures


def _collect(site: Site, pictures: Sequence[Picture], deadline: float) -> Results:
    """Waits until the database holds every record, and reads it.

    Raises:
        RequestTimeout: A record did not arrive.
    """
    names = [picture.made.generation_id for picture in pictures]
    with Database(site.store_url) as database:
        while True:
            with database.read() as connection:
                stories = queries.stories(connection, names)
                rows = queries.devices(connection)
            if len(stories) == len(names):
                return Results(_join(pictures, stories), rows)
            if time.monotonic() > deadline:
                raise RequestTimeout(
                    f"{len(names) - len(stories)} records did not reach the database: "
                    f"see {site.log('hub')}"
                )
            time.sleep(min(0.1, remaining(deadline)))


def _join(pictures: Sequence[Picture], stories: dict[str, Story]) -> list[ToldPicture]:
    return [told(picture, stories[picture.made.generation_id]) for picture in pictures]


def _clear(out: Path) -> None:
    """An empty folder, if it is ours to empty.

    Raises:
        OutputError: It holds something else, or cannot be written.
    """
    try:
        if out.exists() and any(out.iterdir()) and not (out / _MARKER).exists():
            raise OutputError(
                f"{out} holds something that no demo wrote: take another folder with --out"
            )
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        (out / _MARKER).touch()
    except OSError as error:
        raise OutputError(f"{out} cannot be written: {error.strerror}") from error


def _closing(out: Path, results: Results, took_s: float) -> list[str]:
    return [
        "",
        device_text(results.rows),
        "",
        f"{len(results.pictures)} pictures in {took_s:.0f} s. Look at:",
        f"  {out / 'index.html'}   pictures, maps and the table, with every token under the mouse",
        f"  {out / 'sheet.png'}    the same as one picture",
        f"  {out / 'devices.csv'}  the table, as `cloud_hub query devices` prints it",
        f"  {out / 'logs'}         what each program said",
        "The database stays, so ask it more:",
        f"  CLOUD_HUB_DATA_DIR={out / 'state' / 'hub'} cloud_hub query generations",
    ]
