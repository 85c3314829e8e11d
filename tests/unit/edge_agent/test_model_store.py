"""Versions come over HTTP: only what is missing, from where it broke off, and nothing unsigned."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from edge_agent.model_store import ModelStore, Signed
from fleet.errors import BundleError, InvalidInputError, TransportError
from fleet.ids import ModelVersion
from fleet.models.bundle import MANIFEST, STEP_GRAPH, Manifest, write_bundle
from fleet.models.signing import generate_key
from fleet.serving import serving
from tests.unit.edge_agent.toy import MANIFEST as TOY

GRAPH, DECODER = bytes(range(256)) * 2000, b"decoder" * 1000
FIELDS: dict[str, Any] = TOY.model_dump(exclude={"format", "files", "device_version"})


@dataclass
class Web:
    """A server of bundles, and what was asked of it."""

    folder: Path
    key: Path
    asked: list[tuple[str, str]] = field(default_factory=list)  # file name, range
    url: str = ""

    def publish(self, graph: bytes, **changes: Any) -> Manifest:
        """A bundle with another step graph, in a folder of its version."""
        draft = self.folder / "draft"
        files = {STEP_GRAPH: graph, "decoder.onnx": DECODER}
        manifest = write_bundle(draft, {**FIELDS, **changes}, files, self.key)
        draft.rename(self.folder / manifest.device_version)
        return manifest


class Log:
    """Notes each request."""

    def __init__(self, app: Callable[..., Awaitable[None]], web: Web) -> None:
        self.app, self.web = app, web

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = dict(scope.get("headers", []))
        name = scope.get("path", "").rsplit("/", 1)[-1]
        self.web.asked.append((name, headers.get(b"range", b"").decode()))
        await self.app(scope, receive, send)


@pytest.fixture
async def web(tmp_path: Path) -> AsyncIterator[Web]:
    generate_key(tmp_path / "key", tmp_path / "public")
    folder = tmp_path / "web"
    folder.mkdir()
    made = Web(folder, tmp_path / "key")
    mount = Mount("/models", StaticFiles(directory=folder))
    app = Starlette(routes=[mount], middleware=[Middleware(Log, made)])
    async with serving(app, "127.0.0.1", 0, "port") as port:
        made.url = f"http://127.0.0.1:{port}/models"
        yield made


@pytest.fixture
def store(web: Web, tmp_path: Path) -> ModelStore:
    """The store of a device that came with a bundle of its own."""
    manifest = web.publish(GRAPH)
    base = tmp_path / "base"
    (web.folder / manifest.device_version).rename(base)
    key = tmp_path / "public"
    return ModelStore(tmp_path / "models", Signed(base, key, manifest), key)


async def get(store: ModelStore, version: ModelVersion, source: str) -> Signed:
    return await asyncio.to_thread(store.get, version, source)


async def test_only_what_the_device_lacks_is_fetched_and_only_once(
    web: Web, store: ModelStore
) -> None:
    made = web.publish(GRAPH[::-1], backbone=store.base.manifest.device_version)

    found = await get(store, made.device_version, web.url)
    again = await get(store, made.device_version, "http://127.0.0.1:1")

    assert [name for name, _ in web.asked] == [MANIFEST, "manifest.sig", STEP_GRAPH]
    assert found.open().read(STEP_GRAPH) == GRAPH[::-1]
    assert found.open().read("decoder.onnx") == DECODER
    assert again == found


async def test_a_fetch_that_broke_off_goes_on_where_it_was(
    web: Web, store: ModelStore, tmp_path: Path
) -> None:
    made = web.publish(GRAPH[::-1], backbone=store.base.manifest.device_version)
    part = tmp_path / "models" / f"{made.device_version}.part"
    part.mkdir(parents=True)
    (part / STEP_GRAPH).write_bytes(GRAPH[::-1][:5000])

    found = await get(store, made.device_version, web.url)

    assert web.asked[-1] == (STEP_GRAPH, "bytes=5000-")
    assert found.open().read(STEP_GRAPH) == GRAPH[::-1]


async def test_what_is_not_what_was_signed_is_refused_and_begun_anew(
    web: Web, store: ModelStore
) -> None:
    made = web.publish(GRAPH[::-1], backbone=store.base.manifest.device_version)
    file = web.folder / made.device_version / STEP_GRAPH
    file.write_bytes(GRAPH)

    with pytest.raises(BundleError, match="is not the file that was signed"):
        await get(store, made.device_version, web.url)
    file.write_bytes(GRAPH[::-1])

    assert (await get(store, made.device_version, web.url)).manifest == made


@pytest.mark.parametrize("name", [MANIFEST, STEP_GRAPH])
async def test_a_kept_version_that_is_damaged_is_fetched_again(
    web: Web, store: ModelStore, name: str
) -> None:
    made = web.publish(GRAPH[::-1], backbone=store.base.manifest.device_version)
    first = await get(store, made.device_version, web.url)
    (first.path / name).write_bytes(b"what a broken disk gives")

    with pytest.raises(TransportError, match="cannot be reached"):
        await get(store, made.device_version, "http://127.0.0.1:1")
    found = await get(store, made.device_version, web.url)

    assert found.open().read(STEP_GRAPH) == GRAPH[::-1]


async def test_a_manifest_of_another_key_or_network_is_refused(
    web: Web, store: ModelStore, tmp_path: Path
) -> None:
    network = web.publish(GRAPH[::-1], backbone="another-network")
    generate_key(tmp_path / "other", tmp_path / "other.pub")
    web.key = tmp_path / "other"
    signer = web.publish(GRAPH[::2], backbone=store.base.manifest.device_version)

    with pytest.raises(BundleError, match="is for network another-network"):
        await get(store, network.device_version, web.url)
    with pytest.raises(BundleError, match="was not signed with the key"):
        await get(store, signer.device_version, web.url)
    with pytest.raises(TransportError, match="answers 404"):
        await get(store, ModelVersion("0" * 16), web.url)
    with pytest.raises(TransportError, match="cannot be reached"):
        await get(store, ModelVersion("0" * 16), "http://127.0.0.1:1/models")
    with pytest.raises(InvalidInputError, match="no http or https URL"):
        await get(store, ModelVersion("0" * 16), "file:///etc")


async def test_the_own_bundle_is_never_fetched_and_old_versions_go(
    web: Web, store: ModelStore, tmp_path: Path
) -> None:
    own = store.base.manifest.device_version
    assert await get(store, own, "") == store.base
    versions = [
        web.publish(GRAPH + bytes([number]), backbone=own).device_version for number in range(3)
    ]

    for version in versions:
        await get(store, version, web.url)

    assert {each.name for each in (tmp_path / "models").iterdir()} == set(versions[1:])
    shutil.rmtree(tmp_path / "models")
