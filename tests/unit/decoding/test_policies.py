"""Policies by name."""

from dataclasses import dataclass, field

import pytest

from fleet.decoding.accept import Policy, device_only, verify_all
from fleet.decoding.policies import BASES, PolicyName
from fleet.errors import InvalidInputError
from fleet.prediction import SCORE_NAMES


@dataclass(frozen=True)
class Calibrated:
    score: str = "spread"
    thresholds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SCORE_NAMES, 0.4))
    call_share: float = 0.25
    dynamic: bool = False
    max_run: int = 0
    row_starts: bool = False
    grid: int = 16


def resolve(name: str, calibration: Calibrated | None = None) -> Policy:
    return PolicyName.parse(name).policy(calibration or Calibrated())


def test_names_give_the_policies_that_they_say() -> None:
    assert resolve("ciar") == Policy("spread", 0.4)
    assert resolve("verify-all") == resolve("verify_all") == verify_all()
    assert resolve("device-only") == device_only()
    assert resolve("entropy") == Policy("entropy", 0.4)
    assert resolve("random") == Policy("random", 0.75)
    assert resolve("entropy+dynamic+run12+rows") == Policy("entropy", 0.4, 0.25, 12, 16)


def test_ciar_is_all_that_the_bundle_says_and_a_score_is_bare() -> None:
    bundle = Calibrated(dynamic=True, max_run=8, row_starts=True)

    assert resolve("ciar", bundle) == Policy("spread", 0.4, 0.25, 8, 16)
    assert resolve("ciar+run5", bundle) == Policy("spread", 0.4, 0.25, 5, 16)
    assert resolve("spread", bundle) == Policy("spread", 0.4)


@pytest.mark.parametrize("name", [each for each in BASES if each != "ciar"])
def test_a_policy_s_own_name_reads_back_as_the_policy(name: str) -> None:
    bundle = Calibrated(thresholds=dict.fromkeys(BASES, 0.4))
    for added in ("", "+run7", "+run7+rows"):
        policy = resolve(name + added, bundle)

        assert policy.name == name + added
        assert resolve(policy.name, bundle) == policy


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("confidence", "take one of ciar, verify_all"),
        ("spread+fast", "run12"),
        ("spread+run0", "run12"),
        ("", "unknown"),
        ("device-only+dynamic", "finite"),
        ("perturbation", "no threshold for the score 'perturbation', only for uncertainty"),
    ],
)
def test_a_name_that_cannot_be_followed_is_refused_with_what_to_do(name: str, said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        resolve(name)
