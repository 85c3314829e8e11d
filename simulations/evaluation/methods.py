"""The methods that are compared: who draws which token, and how sharply."""

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fleet.decoding.noise import Stream, uniform
from fleet.prediction import SCORE_NAMES, ScoreName

Verify = NDArray[np.bool_]  # [B], where the cloud's draw decides


@dataclass(frozen=True, slots=True)
class SamplingRule:
    """Guidance, temperature and top-k, in that order of application."""

    temperature: float = 1.0
    top_k: int = 0  # 0: no cut
    guidance: float = 1.0  # 1: conditional branch only

    def __str__(self) -> str:
        cut = f"k {self.top_k}" if self.top_k else "no cut"
        return f"T {self.temperature:g}, {cut}, guidance {self.guidance:g}"


Kind = Literal["cloud", "device", "score", "random"]


@dataclass(frozen=True, slots=True)
class Method:
    """One way to make a picture from a caption and a seed.

    `cloud` and `device` draw every token in one place. `score` asks the cloud where the score
    is not finite or above the threshold, `random` at a share `rate` of positions by coin, both
    after the injected prefix.
    """

    name: str
    kind: Kind
    sampling: SamplingRule
    prefix: int = 0
    use_features: bool = False
    score: ScoreName = "uncertainty"
    threshold: float = 0.0
    rate: float = 0.0

    @property
    def key(self) -> str:
        """Names all settings in a file name; what the method is called does not matter."""
        text = json.dumps(asdict(replace(self, name="")), sort_keys=True)
        return f"{self.kind}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"

    @property
    def models(self) -> tuple[str, ...]:
        """The checkpoints that its pictures depend on."""
        match self.kind:
            case "cloud" | "device":
                return (f"{self.kind}.pt", "tokenizer.pt")
            case "score" | "random":
                adapter = ("adapter.pt",) if self.use_features else ()
                return ("cloud.pt", "device.pt", "tokenizer.pt", *adapter)

    def asks(self, position: int, scores: NDArray[np.floating], seeds: list[int]) -> Verify:
        """Where the cloud is asked at `position`, from scores [B, 5] and the pictures' seeds."""
        match self.kind:
            case "cloud":
                return np.ones(len(seeds), bool)
            case "device":
                return np.zeros(len(seeds), bool)
            case "score":
                score = scores[:, SCORE_NAMES.index(self.score)]
                certain: Verify = np.isfinite(score) & (score <= self.threshold)
                return ~certain
            case "random":
                return np.array([_coin(seed, position) < self.rate for seed in seeds])


def cloud_only(sampling: SamplingRule) -> Method:
    """Every token from the cloud: the ceiling."""
    return Method("cloud-only", "cloud", sampling)


def device_only(sampling: SamplingRule) -> Method:
    """Every token from the device: the floor."""
    return Method("device-only", "device", sampling)


def _coin(seed: int, position: int) -> float:
    # A stream of its own: the coin must not depend on the draws.
    return float(uniform(seed, np.array([position]), 1, Stream.ACCEPT)[0, 0])
