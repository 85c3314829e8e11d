"""Scenarios: files, sentences for what is wrong in them, and the fleets drawn from them."""

from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from fleet.errors import InvalidInputError
from fleet.models.bundle import CLOUD_FOLDER, VOCABULARY, reference_path
from fleet.models.caption import CaptionVocabulary
from fleet.settings import setting_keys
from simulations.scenarios.faults import KINDS
from simulations.scenarios.files import load, parse, shipped
from simulations.scenarios.population import population
from simulations.scenarios.scenario import Kind, Link, Scenario, Surge

ONE = "about = 'x'\ndevices = 1\nseconds = 9\n"
SMALL = {"name": "small", "about": "A test.", "devices": 10, "seconds": 600.0}


def scenario(**values: object) -> Scenario:
    return parse({**SMALL, **values}, source="a test")


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_scenario_asks_for_captions_that_the_shipped_models_read(name: str) -> None:
    vocabulary = CaptionVocabulary.load(reference_path() / CLOUD_FOLDER / VOCABULARY)

    found = load(name)

    assert found.name == name
    for style in found.captions.styles:
        for things in found.captions.themes.values():
            for thing in things:
                vocabulary.encode(f"{style}: {thing}")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("devices = 3", "'about' is missing"),
        ("about = 'x'\ndevices = 0\nseconds = 1", "'devices' is not usable"),
        ("about = 'x'\ndevices = 1\nseconds = 1\nspeed = 2", "no key 'speed'"),
        (
            "about = 'x'\ndevices = 1\nseconds = 1\n[[links]]\nname = 'wifi'\nshare = 0.4",
            "the shares of links sum to 0.4, not to 1",
        ),
        (
            "about = 'x'\ndevices = 1\nseconds = 1\n[[links]]\nname = 'carrier pigeon'",
            "'carrier pigeon' is none of wifi, 5g, 4g, satellite: give all of round_trip_ms",
        ),
        (
            "about = 'x'\ndevices = 1\nseconds = 1\n[[faults]]\nkind = 'flood'\nat_s = 0",
            "'faults.0' is of no known kind",
        ),
        (
            "about = 'x'\ndevices = 1\nseconds = 1\n[[faults]]\nkind = 'kill-broker'\nat_s = 2",
            "begins after the scenario's end at 1 s",
        ),
        (
            f"{ONE}[[faults]]\nkind = 'slow-worker'\nat_s = 2\nworker = 1",
            "names worker 1; the workers are 0 to 0",
        ),
        (
            f"{ONE}[[faults]]\nkind = 'slow-worker'\nat_s = 2\ntimes = 1",
            "'faults.0.times' is not usable",
        ),
        ("about = ", "is not TOML"),
    ],
)
def test_a_wrong_file_is_told_in_a_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text(text)

    with pytest.raises(InvalidInputError) as told:
        load(str(file))

    assert str(file) in str(told.value)
    assert sentence in str(told.value)


def test_a_misspelt_name_gets_the_nearest_one() -> None:
    with pytest.raises(InvalidInputError, match="did you mean 'city-300'"):
        load("citi-300")


def test_a_missing_file_is_told_by_its_name() -> None:
    with pytest.raises(InvalidInputError, match=r"missing\.toml: No such file"):
        load("missing.toml")


def test_the_same_seed_draws_the_same_fleet_and_another_another() -> None:
    city = scenario(links=[{"name": "4g", "outages_per_hour": 60}])

    assert population(city, 1) == population(city, 1)
    assert population(city, 1) != population(city, 2)


def test_one_more_device_changes_nothing_for_the_others() -> None:
    few, more = population(scenario(), 3), population(scenario(devices=20), 3)

    assert [one.wishes for one in few] == [one.wishes for one in more[:10]]


def test_shares_are_met() -> None:
    kinds = [{"name": "fast", "share": 0.25, "speed": 2.0}, {"name": "slow", "share": 0.75}]

    fleet = population(scenario(devices=200, kinds=kinds), 4)

    assert Counter(one.kind.name for one in fleet) == {"fast": 50, "slow": 150}


@pytest.mark.parametrize("law", ["poisson", "steady"])
def test_pictures_come_at_their_rate_and_surges_multiply_it(law: str) -> None:
    surge = {"at_s": 200.0, "for_s": 100.0, "times": 4.0}
    arrivals = {"law": law, "per_minute": 6.0, "surges": [surge]}

    fleet = population(scenario(devices=100, arrivals=arrivals), 5)
    times = np.array([wish.at_s for one in fleet for wish in one.wishes])
    calm, rushed = ((times < 200) | (times >= 300)).sum(), ((times >= 200) & (times < 300)).sum()

    assert calm == pytest.approx(100 * 0.1 * 500, rel=0.05)
    assert rushed == pytest.approx(100 * 0.1 * 100 * 4, rel=0.05)


def test_a_small_concentration_gives_each_device_a_style_of_its_own() -> None:
    def favourite_share(concentration: float) -> float:
        arrivals = {"per_minute": 6.0}
        captions = {"concentration": concentration}
        fleet = population(scenario(devices=50, arrivals=arrivals, captions=captions), 6)
        styles = [Counter(w.caption.split(":")[0] for w in one.wishes) for one in fleet]
        return float(np.mean([count.most_common(1)[0][1] / count.total() for count in styles]))

    assert favourite_share(0.1) > 0.85
    assert favourite_share(1000) < 0.55


def test_outages_begin_at_their_rate_and_never_overlap() -> None:
    links = [{"name": "4g", "outages_per_hour": 60.0, "outage_s": 5.0}]

    fleet = population(scenario(devices=50, seconds=3600.0, links=links), 7)
    outages = [one.link.outages for one in fleet]

    assert np.mean([len(each) for each in outages]) == pytest.approx(60 * 60 / 65, rel=0.1)
    for each in outages:
        for one, after in pairwise(each):
            assert one.begin_s + one.length_s <= after.begin_s


def test_every_key_and_every_fault_is_explained() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "simulation.md").read_text()
    own = [
        key for key in setting_keys(Scenario) if not key.startswith(("hub.engine.", "generation."))
    ]

    for key in [*own, *(f"kinds.{name}" for name in Kind.model_fields)]:
        assert f"`{key}`" in page, key
    for name in Link.model_fields | Surge.model_fields:
        assert f"`{name}`" in page, name
    for kind in KINDS:
        assert f"`{kind}`" in page, kind
