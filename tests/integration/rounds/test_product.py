"""What a run gives: a signed bundle that a device runs, with the head that the rounds kept."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cloud_hub.app import device_bundle, model_files
from cloud_hub.rounds.product import publish
from cloud_hub.store import catalog
from cloud_hub.store.database import Database
from cloud_hub.store.revision import migrate
from edge_agent.app import agent, load_device
from edge_agent.maker import Wish
from edge_agent.settings import AgentSettings, DeviceSettings, NodeSettings, TrainingSettings
from edge_agent.station import open_station
from fleet.errors import InvalidInputError
from fleet.federation.head import main_directions
from fleet.models.bundle import STEP_GRAPH
from fleet.models.head_weights import head_of
from fleet.models.signing import generate_key
from fleet.protocol import topics
from fleet.protocol.codec import decode, encode
from fleet.protocol.messages import DesiredSettings, NodeStatus
from fleet.serving import serving
from fleet.transport.memory import MemoryBroker
from tests.integration.rounds.finished import FIGURES, PLAN, finished

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database(f"sqlite:///{tmp_path / 'hub.db'}") as made:
        migrate(made)
        yield made


class Quiet:
    """Looks at nothing."""

    def queued(self, ahead: int) -> None: ...

    def progress(self, progress: object) -> None: ...

    def preview(self, preview: object) -> None: ...


async def test_a_device_fetches_tests_and_runs_what_rounds_made_and_goes_back(
    database: Database, tmp_path: Path
) -> None:
    base = device_bundle(None)
    head = finished(database, "run", base)
    generate_key(tmp_path / "key", tmp_path / "public")
    models = tmp_path / "models"
    made = publish(database, "run", base, models, tmp_path / "key")
    again = publish(database, "run", base, models, tmp_path / "key")

    bundle = device_bundle(None, made.folder)  # by the public key that lies beside
    trained = head_of(bundle.read(STEP_GRAPH))
    directions = main_directions(head, PLAN.rank)
    np.testing.assert_allclose(
        trained.center - head.center,
        np.broadcast_to(0.01 * directions.sum(axis=0), head.center.shape),
        atol=1e-5,
    )
    np.testing.assert_allclose(trained.radius_up, 1.25 * head.radius_up, atol=1e-6)
    np.testing.assert_allclose(trained.radius_bias, 1.25 * head.radius_bias, atol=1e-6)
    assert again == made
    assert bundle.manifest.made_by == base.manifest.device_version
    with database.read() as connection:
        (entry,) = catalog.versions(connection)
    assert (entry.version, entry.parent, entry.round_id) == (
        made.version,
        base.manifest.device_version,
        "run",
    )
    assert entry.facts["figures"] == FIGURES

    settings = AgentSettings(
        state_dir=tmp_path / "agent",
        node=NodeSettings(id="tablet", heartbeat_s=300.0),
        device=DeviceSettings(threads=1, public_key=tmp_path / "public"),
        training=TrainingSettings(take_part=False),
    )
    broker = MemoryBroker()
    operator = broker.connect("operator")
    with open_station(settings.state_path, "tablet", patience_s=0) as station:
        device = load_device(settings)
        async with (
            serving(model_files(models), "127.0.0.1", 0, "models.port") as port,
            operator.subscribe(topics.NODE_STATES, qos=1, limit=100) as states,
            agent(
                settings, station, device, broker.connect("tablet"), lambda _: None, trains=True
            ) as running,
        ):
            source = f'"http://127.0.0.1:{port}/models"'

            async def want(number: int, version: str) -> None:
                values = {"device.version": f'"{version}"', "device.source": source}
                wanted = DesiredSettings(version=number, settings=values)
                topic = topics.desired(station.node)
                await operator.publish(topic, encode(wanted), qos=1, retain=True)

            async def until(version: str) -> float:
                begun = time.monotonic()
                async for inbound in states:
                    inbound.ack()
                    status = decode(inbound.payload)
                    assert isinstance(status, NodeStatus)
                    assert "failed" not in status.facts.get("update", "")
                    if status.device_version == version and "update" not in status.facts:
                        break
                return time.monotonic() - begun

            await want(1, made.version)
            seconds = await until(made.version)
            wish = Wish("google: red heart", seed=1, policy="device-only")
            picture = await running.make(wish, Quiet())
            await want(2, "")
            await until(base.manifest.device_version)
            before = await running.make(wish, Quiet())

    assert seconds < 250  # said at once, not with the next heartbeat
    assert picture.device_version == made.version
    assert before.device_version == base.manifest.device_version
    assert await asyncio.to_thread((tmp_path / "agent/models").is_dir)


def test_a_run_that_kept_nothing_or_trained_another_head_gives_nothing(
    database: Database, tmp_path: Path
) -> None:
    base = device_bundle(None)
    generate_key(tmp_path / "key", tmp_path / "public")
    finished(database, "useless", base, "discarded")
    finished(database, "run", base)
    made = publish(database, "run", base, tmp_path / "models", tmp_path / "key")
    other = device_bundle(None, made.folder)

    with pytest.raises(InvalidInputError, match="has kept no round"):
        publish(database, "useless", base, tmp_path / "models", tmp_path / "key")
    with pytest.raises(InvalidInputError, match="name that bundle with --bundle"):
        publish(database, "run", other, tmp_path / "models", tmp_path / "key")
