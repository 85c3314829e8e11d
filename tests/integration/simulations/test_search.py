"""The search: seeds keep every law, and one that does not is told how to be repeated."""

import os

import pytest
from click.testing import CliRunner

from simulations import search as searching
from simulations.cli import main
from simulations.scenarios.files import load
from simulations.search import Tried, search

SEEDS = 200 if os.environ.get("CI") == "true" else 12


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_no_seed_breaks_a_law() -> None:
    tried = list(search(load("search"), range(SEEDS), trouble=3, processes=2))

    assert [each for each in tried if each.broken] == []
    assert [each.seed for each in tried] == list(range(SEEDS))
    assert sum(each.pictures for each in tried) > SEEDS


def test_a_seed_that_breaks_a_law_prints_the_command_that_repeats_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def found(*_: object, **__: object) -> list[Tried]:
        return [Tried(6, 8, ()), Tried(7, 9, ("nothing is lost: node-1, wish 2",))]

    monkeypatch.setattr(searching, "search", found)

    told = CliRunner().invoke(main, ["search", "--seeds", "2", "--first", "6"])

    assert told.exit_code == 1
    assert "seed 7: nothing is lost: node-1, wish 2" in told.output
    assert "python -m simulations run search --seed 7 --trouble 3 --out seed-7" in told.output
    assert "seed 6" not in told.output
    assert "1 of 2 seeds break a law" in told.output
