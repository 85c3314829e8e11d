"""A budget of the settings, on the shipped device model."""

import math

import pytest

from edge_agent.bundle_device import BundleDevice
from edge_agent.generate import Outcome
from edge_agent.maker import Around, Maker, Wish
from edge_agent.remote import overlay
from edge_agent.settings import AgentSettings, GenerationSettings
from fleet.decoding.accept import START, Decision, Policy, decide, follow
from fleet.models.bundle import DEVICE_FOLDER, PUBLIC_KEY, Bundle, reference_path

CAPTION = "google: red heart"
WISH = Wish(CAPTION, 1)


@pytest.fixture(scope="module")
def device() -> BundleDevice:
    return BundleDevice(
        Bundle.open(reference_path() / DEVICE_FOLDER, reference_path() / PUBLIC_KEY)
    )


async def _keep(_: Outcome, __: str) -> str:
    return ""


def policy_of(device: BundleDevice, wish: Wish = WISH, **generation: float) -> Policy:
    around = Around(_keep, lambda: 0.0, lambda: 0.0)
    maker = Maker(device, GenerationSettings(**generation), None, around)  # type: ignore[arg-type]
    return maker._order(wish).policy


@pytest.mark.parametrize("budget", [0.1, 0.15, 0.2])
def test_a_picture_asks_about_as_many_tokens_as_the_budget_says(
    device: BundleDevice, budget: float
) -> None:
    manifest, policy = device.manifest, policy_of(device, budget=budget)
    state = device.model.begin(
        device.model.vocabulary.encode(CAPTION), seed=1, sampling=manifest.sampling, policy=policy
    )
    token, track, asked = -1, START, manifest.prefix_tokens

    for position in range(manifest.tokens):
        found = device.model.step(state, position, token)
        token = found.token
        if position >= manifest.prefix_tokens:
            verify = decide(policy, found.score(policy.score), position, track) is Decision.VERIFY  # type: ignore[arg-type]
            track = follow(policy, track, verify)
            asked += verify

    assert policy.name == f"{manifest.score}+budget"
    assert abs(asked / manifest.tokens - budget) < 0.05


def test_without_a_budget_the_bundle_s_threshold_stands(device: BundleDevice) -> None:
    policy = policy_of(device)

    assert (policy.call_share, policy.firm) == (0.0, False)
    assert policy.threshold == device.manifest.threshold


def test_a_budget_that_the_prefix_takes_asks_about_nothing(device: BundleDevice) -> None:
    assert policy_of(device, budget=0.05).threshold == math.inf


def test_policies_without_a_score_are_what_they_were(device: BundleDevice) -> None:
    assert policy_of(device, Wish(CAPTION, 1, "verify-all"), budget=0.2).name == "verify_all"


def test_a_budget_arrives_from_afar_and_one_out_of_range_is_refused() -> None:
    wanted = {"generation.budget": "0.2"}

    settings, refused = overlay(AgentSettings(), wanted)
    _, why = overlay(AgentSettings(), {"generation.budget": "1.5"})

    assert (settings.generation.budget, refused) == (0.2, {})
    assert "less than 1" in why["generation.budget"]
