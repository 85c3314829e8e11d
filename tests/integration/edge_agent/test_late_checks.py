"""Tokens that no forward has run are held against the cloud's draws all the same, later."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import func, select

from cloud_hub import app as hub_app
from cloud_hub.settings import EngineSettings, HubSettings, StoreSettings
from cloud_hub.store.checks import CheckedPicture, checked_pictures
from cloud_hub.store.database import Database
from cloud_hub.store.revision import migrate
from cloud_hub.store.tables import CheckSumRow, SpotCheckRow
from edge_agent.app import Agent, agent
from edge_agent.generate import Outcome
from edge_agent.maker import Wish
from edge_agent.settings import AgentSettings, GenerationSettings, RecordSettings
from edge_agent.station import open_station
from fleet.ids import new_id
from fleet.protocol.codec import decode
from fleet.transport.memory import MemoryBroker
from tests.integration.cloud_hub.hub import PATIENCE_S, make_hub
from tests.integration.edge_agent.test_with_toy_hub import Quiet
from tests.integration.edge_agent.toy_hub_device import CAPTION, WORDS, HubToyDevice
from tests.unit.cloud_hub.toy import run_of, toy_draw


@pytest.fixture
def database(tmp_path: Path) -> Any:
    with Database(f"sqlite:///{tmp_path / 'hub.db'}") as found:
        migrate(found)
        yield found


@asynccontextmanager
async def serving(broker: MemoryBroker, hub: hub_app.Hub, share: float = 1.0) -> AsyncIterator[Any]:
    settings = HubSettings(
        store=StoreSettings(batch_wait_s=0.01), engine=EngineSettings(check_share=share)
    )
    is_ready = asyncio.Event()
    async with broker.connect(f"hub-{new_id()}", hub.identity.will) as transport:
        task = asyncio.create_task(
            hub_app.serve(settings, transport, hub, ready=is_ready.set), name="hub"
        )
        try:
            await is_ready.wait()
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])


@asynccontextmanager
async def joined(broker: MemoryBroker, folder: Path, **record: Any) -> AsyncIterator[Agent]:
    settings = AgentSettings(
        state_dir=folder / "state",
        generation=GenerationSettings(
            start_patience_s=0.01, outage_patience_s=0.01, open_deadline_s=0.5
        ),
        record=RecordSettings(**({"unseen_share": 1.0} | record)),
    )
    async with AsyncExitStack() as stack:
        station = stack.enter_context(open_station(settings.state_path, "node", patience_s=0))
        transport = await stack.enter_async_context(broker.connect("node"))
        work = agent(settings, station, HubToyDevice(), transport, lambda _: None)
        yield await stack.enter_async_context(work)


async def made(running: Agent, seed: int, policy: str = "ciar") -> Outcome:
    outcome, note = await running.maker.make(Wish(CAPTION, seed, policy), Quiet())
    assert note == ""
    return outcome


async def checked(database: Database, pictures: int) -> list[CheckedPicture]:
    """Waits until so many pictures were checked and counted."""
    counted = select(func.count()).where(SpotCheckRow.is_counted)
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with database.read() as connection:
                if connection.execute(counted).scalar_one() >= pictures:
                    return checked_pictures(connection)
            await asyncio.sleep(0.05)


def files(folder: Path) -> list[bytes]:
    """What the hub's database has written."""
    return [file.read_bytes() for file in folder.glob("hub.db*")]


def matches(outcome: Outcome) -> dict[int, bool]:
    """By local position: whether the cloud would have drawn the device's token there."""
    tokens, local = outcome.picture.tokens, outcome.picture.marks == 1
    return {
        position: toy_draw(
            WORDS, run_of(tokens[:position].tolist(), local[:position].tolist()), outcome.order.seed
        )
        == tokens[position]
        for position in np.flatnonzero(local).tolist()
    }


async def test_a_picture_that_never_called_is_checked_once_there_is_a_hub(
    database: Database, tmp_path: Path
) -> None:
    broker = MemoryBroker()
    async with joined(broker, tmp_path) as running:
        outcomes = [await made(running, seed) for seed in range(3)]
        assert {outcome.meter.forwards for outcome in outcomes} == {0}
        async with serving(broker, make_hub(database)):
            assert await running.delivery.flush(PATIENCE_S)
            found = await checked(database, 3)

    by_name = {each.generation: each for each in found}
    for outcome in outcomes:
        picture = by_name[outcome.generation]
        assert picture.local.all()
        pairs = zip(picture.positions.tolist(), picture.matches.tolist(), strict=True)
        assert dict(pairs) == matches(outcome)
    with database.read() as connection:
        sums = connection.execute(
            select(func.sum(CheckSumRow.checked), func.sum(CheckSumRow.mismatched))
        ).one()
    every = [match for outcome in outcomes for match in matches(outcome).values()]
    assert tuple(sums) == (len(every), every.count(False))


async def test_after_a_picture_s_last_question_only_the_rest_of_it_is_new(
    database: Database, tmp_path: Path
) -> None:
    broker = MemoryBroker()
    async with joined(broker, tmp_path) as running, serving(broker, make_hub(database)):
        running.maker.configure(GenerationSettings())
        outcomes = [await made(running, seed) for seed in range(8)]
        late = [each for each in outcomes if (each.picture.marks[each.picture.seen :] == 1).any()]
        assert 0 < len(late)
        assert await running.delivery.flush(PATIENCE_S)
        async with asyncio.timeout(PATIENCE_S):
            while {each.generation: len(matches(each)) for each in outcomes} != {
                each.generation: int(each.local.sum())
                for each in await checked(database, len(outcomes))
            }:
                await asyncio.sleep(0.05)


async def test_neither_caption_nor_tokens_are_kept(database: Database, tmp_path: Path) -> None:
    broker = MemoryBroker()
    async with joined(broker, tmp_path) as running:
        outcome = await made(running, 1)
        (spooled,) = running.delivery._outbox.pending(1)
        assert decode(spooled.payload).unseen.caption == CAPTION
        async with serving(broker, make_hub(database)):
            assert await running.delivery.flush(PATIENCE_S)
            await checked(database, 1)

    tokens = outcome.picture.tokens.astype("<u2").tobytes()
    assert not [file for file in files(tmp_path) if CAPTION.encode() in file or tokens in file]


@pytest.mark.parametrize(
    ("policy", "record"),
    [("device-only", {}), ("ciar", {"unseen_share": 0}), ("ciar", {"level": "none"})],
)
async def test_what_is_not_to_leave_the_device_does_not(
    tmp_path: Path, policy: str, record: dict[str, Any]
) -> None:
    async with joined(MemoryBroker(), tmp_path, **record) as running:
        await made(running, 1, policy)
        (spooled,) = running.delivery._outbox.pending(1)

    assert decode(spooled.payload).unseen is None
    assert CAPTION.encode() not in spooled.payload
