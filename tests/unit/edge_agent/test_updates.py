"""The device runs what the operator wants, or what it ran before, and says why."""

import asyncio
from pathlib import Path

import pytest

from edge_agent.device import Device
from edge_agent.model_store import DamagedError, ModelStore, Signed
from edge_agent.updates import Replaceable, Updates
from fleet.errors import BundleError, TransportError
from fleet.ids import ModelVersion
from tests.unit.edge_agent.toy import MANIFEST, ToyDevice

OWN = MANIFEST.device_version
NEW = ModelVersion("1234567890abcdef")


class ToyStore(ModelStore):
    """Has versions without a network, or says why not."""

    def __init__(self) -> None:
        super().__init__(Path(), Signed(Path(), Path(), MANIFEST), Path())
        self.troubles: list[Exception] = []

    def get(self, version: ModelVersion, source: str) -> Signed:
        if self.troubles:
            raise self.troubles.pop(0)
        manifest = MANIFEST.model_copy(update={"device_version": version})
        return Signed(Path(source), Path(), manifest)


class Bench:
    """Updates around a toy device, and what they told."""

    def __init__(self) -> None:
        self.store = ToyStore()
        self.device = Replaceable(ToyDevice())
        self.told: list[str] = []
        self.failing: list[Exception] = []
        self.updates = Updates(self.store, self.load, self.replace, self.told.append)

    def load(self, signed: Signed) -> Device:
        if self.failing:
            raise self.failing.pop(0)
        return ToyDevice(manifest=signed.manifest)

    async def replace(self, _: Signed, device: Device) -> None:
        self.device.take(device)

    async def until(self, version: ModelVersion, told: str) -> None:
        """Returns when the device runs a version and the last word is `told`."""
        async with asyncio.timeout(30):
            while (self.device.manifest.device_version, self.told[-1:]) != (version, [told]):
                await asyncio.sleep(0.01)

    async def __aenter__(self) -> "Bench":
        self.task = asyncio.create_task(self.updates.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])


async def test_a_wanted_version_runs_and_an_empty_one_is_the_own_bundle_again() -> None:
    async with Bench() as bench:
        bench.updates.want(NEW, "http://hub")
        await bench.until(NEW, "")
        bench.updates.want("", "")
        await bench.until(OWN, "")

    assert bench.told == [f"fetching {NEW}", "", f"fetching {OWN}", ""]


async def test_what_fails_its_test_is_not_run_and_the_reason_is_told() -> None:
    async with Bench() as bench:
        bench.failing = [BundleError("it gives no numbers")]
        bench.updates.want(NEW, "http://hub")
        await bench.until(OWN, f"{NEW} failed: it gives no numbers; not tried again")
        bench.updates.want("", "")
        await bench.until(OWN, "")


async def test_a_source_that_is_away_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_agent.updates.RETRY_S", 0.05)
    async with Bench() as bench:
        bench.store.troubles = [TransportError("away"), TransportError("away")]
        bench.updates.want(NEW, "http://hub")
        await bench.until(NEW, "")

    assert [line for line in bench.told if "failed" in line] == [
        f"{NEW} failed: away; again in 0.05 s",
        f"{NEW} failed: away; again in 0.1 s",
    ]


async def test_what_comes_damaged_is_fetched_again_some_times_and_then_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("edge_agent.updates.RETRY_S", 0.01)
    monkeypatch.setattr("edge_agent.updates.RETRY_CAP_S", 0.02)
    async with Bench() as bench:
        bench.store.troubles = [DamagedError("its hash differs") for _ in range(9)]
        bench.updates.want(NEW, "http://hub")
        await bench.until(OWN, f"{NEW} failed: its hash differs; given up after 5 fetches")
        await asyncio.sleep(0.1)
        left = len(bench.store.troubles)
        bench.store.troubles = [DamagedError("its hash differs")]
        bench.updates.want("", "")
        bench.updates.want(NEW, "http://other-hub")
        await bench.until(NEW, "")

    assert left == 9 - 5
    failed = [line for line in bench.told if "failed" in line]
    assert failed[1] == f"{NEW} failed: its hash differs; fetch 2 of 5, again in 0.02 s"
