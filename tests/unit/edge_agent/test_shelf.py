"""The shelf: what waits stays, what is corrected may be fetched, and it has an end."""

from pathlib import Path

import pytest

from edge_agent.answer import Made
from edge_agent.drafts import Mark
from edge_agent.shelf import Shelf, Unfinished
from fleet.decoding.accept import Policy, verify_all
from fleet.errors import OutputError
from fleet.ids import GenerationId, ModelVersion
from tests.unit.edge_agent.toy import CIAR, order

NUMBERS = [name for name, field in Made.model_fields.items() if field.annotation in {int, float}]


def made(name: str = "g1", **fields: object) -> Made:
    texts = {
        "generation_id": name,
        "caption": "a toy",
        "policy": "entropy",
        "device_version": "toy",
        "cloud_version": "",
        "fallback": "timeout",
        "pixels": "AAAA",
    }
    known = {
        **dict.fromkeys(NUMBERS, 0),
        **texts,
        "threshold": float("-inf"),
        "notes": [],
        "side": 1,
        **fields,
    }
    return Made.model_validate(known)


def unfinished(name: str = "g1", policy: Policy = CIAR) -> Unfinished:
    return Unfinished(
        generation_id=GenerationId(name),
        device_version=ModelVersion("toy"),
        order=order(policy=policy),
        tokens=[1, 2, 3],
        marks=[Mark.PREFIX, Mark.LOCAL, Mark.VERIFIED],
    )


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def shelf(path: Path, limit: int = 3, clock: Clock | None = None) -> Shelf:
    return Shelf(path / "pictures", limit=limit, keep_s=100, clock=clock or Clock())


@pytest.mark.parametrize("policy", [CIAR, verify_all()])
def test_what_was_put_there_is_there_after_a_restart(tmp_path: Path, policy: Policy) -> None:
    shelf(tmp_path).put(unfinished(policy=policy), made())

    found = shelf(tmp_path).next_waiting()

    assert found is not None
    assert unfinished(policy=policy) == found.unfinished
    assert made() == found.made
    assert [1, 2, 3] == list(found.unfinished.known.tokens)


def test_a_corrected_picture_waits_no_more_and_keeps_its_name(tmp_path: Path) -> None:
    kept = shelf(tmp_path)
    kept.put(unfinished(), made())
    waiting = kept.next_waiting()
    assert waiting is not None

    kept.correct(waiting, made("g2", repairs="g1", fallback=""))

    for each in (kept, shelf(tmp_path)):
        assert each.next_waiting() is None
        found = each.find(GenerationId("g1"))
        assert found is not None
        assert ("corrected", "g1") == (found.state, found.made.repairs)


def test_the_oldest_goes_first_and_what_waits_goes_last(tmp_path: Path) -> None:
    kept = shelf(tmp_path, limit=3)
    for name in ("a", "b", "c"):
        kept.put(unfinished(name), made(name))
    second = kept.find(GenerationId("b"))
    assert second is not None
    kept.correct(second, made("b2", repairs="b"))

    kept.put(unfinished("d"), made("d"))
    kept.put(unfinished("e"), made("e"))

    assert ["c", "d", "e"] == [each.generation_id for each in kept.all()]
    assert ["c", "d", "e"] == [each.generation_id for each in shelf(tmp_path).all()]


def test_nothing_is_kept_for_ever(tmp_path: Path) -> None:
    clock = Clock()
    kept = shelf(tmp_path, clock=clock)
    kept.put(unfinished(), made())
    clock.now += 100

    assert [] == kept.all()
    assert [] == list((tmp_path / "pictures").glob("*.json"))


def test_a_broken_file_is_set_aside(tmp_path: Path) -> None:
    shelf(tmp_path).put(unfinished(), made())
    (tmp_path / "pictures" / "bad.json").write_text('{"state": "waiting"')

    assert ["g1"] == [each.generation_id for each in shelf(tmp_path).all()]
    assert (tmp_path / "pictures" / "bad.bad").exists()


def test_a_folder_that_takes_nothing_is_told(tmp_path: Path) -> None:
    (tmp_path / "pictures").write_text("a file")

    with pytest.raises(OutputError, match="cannot be used"):
        shelf(tmp_path)
