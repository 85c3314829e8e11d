"""A run of rounds over the fleet: its exchange on the loop, the ServerApp in a thread."""

import asyncio
import contextlib
import hashlib
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from flwr.app import Context, RecordDict

from cloud_hub.rounds.exchange import Exchange
from cloud_hub.rounds.grid import MqttGrid
from fleet.federation.collect import NOBODY, Observer
from fleet.federation.flower import HUB_NODE
from fleet.federation.ledger import Commit, Ledger
from fleet.federation.plan import Plan
from fleet.federation.server_app import server_app
from fleet.federation.task import Task
from fleet.transport.base import Transport


async def conduct(
    transport: Transport,
    name: str,
    config: Mapping[str, Any],  # the plan's, and, without a task, `head` and perhaps `holdout`
    ledger: Ledger,
    observer: Observer = NOBODY,
    task: Task | None = None,
) -> Commit | None:
    """Runs what the ledger lacks of the plan's rounds; the last round that ended.

    The same `name` goes on with a run: its tasks are called the same, so that nodes which have
    answered them do not train again. Cancelled, it stops within a moment and may be resumed.

    Raises:
        InvalidInputError: The plan or the head cannot be used.
        Stopped: The observer said so.
    """
    plan = Plan.from_config(config)
    exchange, is_cancelled = Exchange(transport), threading.Event()
    receiving = asyncio.create_task(exchange.run(), name="round exchange")
    try:
        # Who is up is known once the retained states are in; a resumed round needs nobody new.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(plan.query_s):
                await exchange.wait_nodes(plan.least_nodes)
        run, loop = run_number(name), asyncio.get_running_loop()
        grid = MqttGrid(exchange, loop, run=run, deadline_s=plan.deadline_s)
        watching = replace(observer, stopped=lambda: is_cancelled.is_set() or observer.stopped())
        app = server_app(ledger, task, watching)
        context = Context(run, HUB_NODE, {}, RecordDict(), dict(config))
        await asyncio.to_thread(app, grid=grid, context=context)
    finally:
        is_cancelled.set()
        receiving.cancel()
        await asyncio.wait([receiving])
    return ledger.last()


def run_number(name: str) -> int:
    """What Flower calls a run."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") >> 1
