"""Settings from afar: in force at once and after a restart, refused by name, acknowledged."""

import asyncio
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_hub.desired import configure, parse
from edge_agent import remote as remote_module
from edge_agent.remote import REMOTE, Remote, in_force, overlay
from edge_agent.settings import AgentSettings
from fleet.errors import InvalidInputError, RequestTimeout
from fleet.ids import BootId, NodeId
from fleet.protocol.messages import DesiredSettings
from fleet.transport.memory import MemoryBroker

NODE, BOOT = NodeId("node"), BootId("boot")


class Device:
    """A device that only follows settings."""

    def __init__(self, folder: Path) -> None:
        self.applied = [AgentSettings()]
        self.remote = Remote(folder / "desired.json", AgentSettings(), self.applied.append)
        self.remote.start()

    @property
    def deadline_s(self) -> float:
        return self.applied[-1].generation.deadline_s


def desired(version: int, **values: object) -> DesiredSettings:
    known = {name.replace("__", "."): json.dumps(value) for name, value in values.items()}
    return DesiredSettings(version=version, settings=known)


def test_what_can_be_set_from_afar_are_settings_that_exist() -> None:
    assert set(REMOTE) == set(in_force(AgentSettings()))


def test_values_in_force_set_themselves() -> None:
    shown = in_force(AgentSettings())

    changed, refused = overlay(AgentSettings(), shown)

    assert ({}, shown) == (refused, in_force(changed))


def test_what_cannot_be_set_is_refused_by_name_and_does_not_hinder_the_rest() -> None:
    wanted = {
        "generation.deadline_s": "12",
        "generation.window": "0",
        "generation.policy": '"no-such"',
        "broker.host": '"elsewhere"',
        "generation.effort": "nonsense",
    }

    settings, refused = overlay(AgentSettings(), wanted)

    assert 12 == settings.generation.deadline_s
    assert set(wanted) - {"generation.deadline_s"} == set(refused)
    assert "afar" in refused["broker.host"]
    assert "127.0.0.1" == settings.broker.host


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 99)), max_size=12))
def test_only_a_newer_version_counts_whatever_comes_in_whatever_order(
    tmp_path_factory: pytest.TempPathFactory, states: list[tuple[int, int]]
) -> None:
    device = Device(tmp_path_factory.mktemp("state"))
    best: tuple[int, float] = (0, AgentSettings().generation.deadline_s)

    for version, deadline_s in states:
        device.remote.take(desired(version, generation__deadline_s=deadline_s))
        if version > best[0]:
            best = (version, deadline_s)

        assert best == (device.remote.version, device.deadline_s)


def test_what_was_desired_is_in_force_after_a_restart_without_a_link(tmp_path: Path) -> None:
    Device(tmp_path).remote.take(desired(3, generation__deadline_s=12, broker__port=1))

    again = Device(tmp_path)

    assert (3, 12) == (again.remote.version, again.deadline_s)
    report = again.remote.report(BOOT)
    assert "12.0" == report.settings["generation.deadline_s"]
    assert ["broker.port"] == list(report.refused)


def test_a_broken_file_is_as_none(tmp_path: Path) -> None:
    (tmp_path / "desired.json").write_text("{")

    assert 0 == Device(tmp_path).remote.version


async def test_the_operator_sets_the_device_acknowledges_and_its_own_value_comes_back(
    tmp_path: Path,
) -> None:
    broker = MemoryBroker()
    device = Device(tmp_path)
    link, operator = broker.connect("node"), broker.connect("operator")
    following = asyncio.create_task(device.remote.follow(link, NODE, BOOT))

    wanted = parse(["generation.deadline_s=12", "log.level=info", "node.id=other"])
    first = await configure(operator, NODE, wanted, 10)
    set_to = device.deadline_s
    second = await configure(operator, NODE, parse(["generation.deadline_s="]), 10)
    following.cancel()
    await asyncio.wait([following])

    assert (1, 2) == (first.version, second.version)
    assert (12, 30) == (set_to, device.deadline_s)
    assert ["node.id"] == list(first.refused)
    assert '"info"' == second.settings["log.level"]


async def test_a_device_that_is_away_takes_it_when_it_is_back(tmp_path: Path) -> None:
    broker = MemoryBroker()
    operator = broker.connect("operator")

    with pytest.raises(RequestTimeout, match="keeps it"):
        await configure(operator, NODE, {"generation.deadline_s": "7"}, 0.1)
    device = Device(tmp_path)
    following = asyncio.create_task(device.remote.follow(broker.connect("node"), NODE, BOOT))
    async with asyncio.timeout(10):
        while device.remote.version != 1:
            await asyncio.sleep(0.01)
    following.cancel()
    await asyncio.wait([following])

    assert 7 == device.deadline_s


async def test_a_disk_that_takes_nothing_leaves_the_old_settings_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: Path, text: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(remote_module, "replace_text", full)
    broker = MemoryBroker()
    device = Device(tmp_path)
    following = asyncio.create_task(device.remote.follow(broker.connect("node"), NODE, BOOT))

    with pytest.raises(RequestTimeout):
        await configure(broker.connect("operator"), NODE, {"generation.deadline_s": "7"}, 0.5)
    following.cancel()
    await asyncio.wait([following])

    assert 30 == device.deadline_s


@pytest.mark.parametrize("change", ["generation.policy", "=3"])
def test_a_change_that_is_none_is_told(change: str) -> None:
    with pytest.raises(InvalidInputError, match="KEY=VALUE"):
        parse([change])


def test_words_are_strings_and_numbers_are_numbers() -> None:
    assert {"a": '"x"', "b": "3", "c": "true", "d": None} == parse(["a=x", "b=3", "c=true", "d="])


@pytest.mark.parametrize("version", ["1234567890123456", "12e4567890123456", "0012345678901234"])
def test_a_version_that_reads_as_a_number_stays_the_text_that_it_is(version: str) -> None:
    (change,) = parse([f"device.version={version}"]).values()
    assert change is not None

    settings, refused = overlay(AgentSettings(), {"device.version": change})

    assert (settings.device.version, refused) == (version, {})


def test_a_number_that_is_out_of_range_is_still_refused() -> None:
    settings, refused = overlay(AgentSettings(), {"generation.window": "-3"})

    assert "greater than" in refused["generation.window"]
    assert settings.generation.window == AgentSettings().generation.window
