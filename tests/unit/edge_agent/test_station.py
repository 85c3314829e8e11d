"""A node keeps its name, and its folder to itself."""

import os
from pathlib import Path

import pytest

from edge_agent.station import open_station
from fleet.errors import InvalidInputError, OutputError


def test_the_node_id_is_made_once_and_the_boot_id_at_each_start(tmp_path: Path) -> None:
    with open_station(tmp_path / "state", None, patience_s=0) as first:
        pass
    with open_station(tmp_path / "state", None, patience_s=0) as second:
        pass

    assert first.node == second.node
    assert first.node.startswith("node-")
    assert first.boot != second.boot
    assert second.boot == (tmp_path / "state" / "boot_id").read_text().strip()


def test_a_name_from_the_settings_wins(tmp_path: Path) -> None:
    with open_station(tmp_path, "kitchen", patience_s=0) as station:
        assert "kitchen" == station.node


def test_a_name_that_is_no_topic_level_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(InvalidInputError, match="node id"),
        open_station(tmp_path, "Kitchen/1", patience_s=0),
    ):
        pass


def test_a_second_agent_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    with (
        open_station(tmp_path, None, patience_s=0),
        pytest.raises(InvalidInputError, match="another agent works on the state folder"),
        open_station(tmp_path, None, patience_s=0.1),
    ):
        pass


def test_the_folder_is_free_again_after_the_first_one_ends(tmp_path: Path) -> None:
    with open_station(tmp_path, None, patience_s=0):
        pass
    with open_station(tmp_path, None, patience_s=0):
        pass


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_rights_is_refused_with_its_name(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)

    with pytest.raises(OutputError), open_station(tmp_path / "state", None, patience_s=0):
        pass


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")

    with (
        pytest.raises(OutputError, match="state_dir"),
        open_station(tmp_path / "state", None, patience_s=0),
    ):
        pass
