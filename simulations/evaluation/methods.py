"""The methods that are compared: who draws which token, how sharply, and on which link."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Literal

from simulations.evaluation.rules.base import Rule
from simulations.evaluation.rules.gates import Cloud, Device
from simulations.evaluation.sampling_rule import SamplingRule

# How the tokens travel, for the clock only: the cloud streams them; the device asks and waits; it
# goes on drafting; rounds of drafts cross the link, or stay in the cloud with the drafter.
Exchange = Literal["none", "stream", "wait", "window", "rounds", "hosted"]


@dataclass(frozen=True, slots=True)
class Method:
    """One way to make a picture from a caption and a seed, after an injected prefix."""

    name: str
    rule: Rule
    sampling: SamplingRule
    prefix: int = 0
    use_features: bool = False
    exchange: Exchange = "window"

    @property
    def key(self) -> str:
        """Names all settings in a file name; name and exchange do not change the pictures."""
        settings = asdict(replace(self, name="", exchange="none"))
        text = json.dumps(settings, sort_keys=True)
        kind = type(self.rule).__name__
        return f"{kind.lower()}-{hashlib.sha256(f'{kind} {text}'.encode()).hexdigest()[:8]}"

    @property
    def models(self) -> tuple[str, ...]:
        """The checkpoints that its pictures depend on."""
        cloud = ("cloud.pt",) if self.rule.uses_cloud or self.prefix else ()
        device = ("device.pt",) if self.rule.uses_device else ()
        adapter = ("adapter.pt",) if self.use_features else ()
        return (*cloud, *device, "tokenizer.pt", *adapter)


def cloud_only(sampling: SamplingRule) -> Method:
    """Every token from the cloud: the ceiling."""
    return Method("cloud-only", Cloud(), sampling, exchange="stream")


def device_only(sampling: SamplingRule) -> Method:
    """Every token from the device: the floor."""
    return Method("device-only", Device(), sampling, exchange="none")


MAKERS: dict[str, Callable[[SamplingRule], Method]] = {"cloud": cloud_only, "device": device_only}
