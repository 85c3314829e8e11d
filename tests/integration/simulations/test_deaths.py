"""The bench of deaths kills a real daemon, and notices what is missing."""

from pathlib import Path

import pytest

from fleet.models.bundle import DEVICE_FOLDER, PUBLIC_KEY, reference_path
from simulations.kills import daemon

pytestmark = [pytest.mark.alone, pytest.mark.slow, pytest.mark.timeout(240)]


def test_a_killed_daemon_starts_again_and_has_all_it_answered(tmp_path: Path) -> None:
    said: list[str] = []
    models = (reference_path() / DEVICE_FOLDER, reference_path() / PUBLIC_KEY)

    found = daemon.bench(models, 3, 2, tmp_path / "run", said.append)

    assert len(said) == found.kills == 3
    assert (found.lost, found.torn) == (0, 0)
    assert found.pictures > 0
    assert found.switches >= 1
    assert 0 < found.start_s < 60


def test_what_is_torn_or_lost_is_seen(tmp_path: Path) -> None:
    models = (reference_path() / DEVICE_FOLDER, reference_path() / PUBLIC_KEY)
    versions = daemon._versions(*models, tmp_path / "versions")
    kept = tmp_path / "versions" / versions[1]

    whole = daemon._is_whole(kept, tmp_path / "versions" / PUBLIC_KEY)
    step = kept / "step.onnx"
    step.write_bytes(step.read_bytes()[:-1])

    assert whole
    assert not daemon._is_whole(kept, tmp_path / "versions" / PUBLIC_KEY)
