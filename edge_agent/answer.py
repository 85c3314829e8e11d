"""A finished picture as the local interface tells it: numbers, a sentence, and the pixels."""

import base64
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from edge_agent.generate import Outcome, Preview, Progress
from edge_agent.plan import Reason


class Made(BaseModel):
    """One picture and how it came about. Shares are of all tokens; times in seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    generation_id: str
    caption: str
    seed: int
    policy: str
    threshold: float
    tokens: int
    prefix: int
    local: int
    verified: int
    corrected: int
    unverified: int
    wasted: int
    round_trips: int
    retries: int
    reopened: int
    forwards: int
    bytes_up: int
    bytes_down: int
    duration_s: float
    device_s: float
    wait_s: float
    device_version: str
    cloud_version: str
    fallback: Reason
    notes: list[str]
    side: int
    pixels: str  # base64 of u8 [side, side, 3]
    repairs: str = ""  # generation id of the version that this one corrects

    @property
    def image(self) -> NDArray[np.uint8]:
        """The picture [side, side, 3]."""
        return _image(self.pixels, self.side)

    @property
    def local_share(self) -> float:
        """Tokens that the device made and trusted."""
        return self.local / self.tokens


class Step(BaseModel):
    """How far a picture is; `state` says what it waits for, if anything."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    state: Literal["queued", "making"]
    ahead: int = 0
    settled: int = 0
    tokens: int = 0
    local: int = 0
    corrected: int = 0
    round_trips: int = 0
    trouble: Reason = ""


class Glimpse(BaseModel):
    """A picture in the making: its first `rows` rows of pixels are final, the rest is grey."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    side: int
    rows: int
    pixels: str  # base64 of u8 [side, side, 3]

    @property
    def image(self) -> NDArray[np.uint8]:
        """The picture [side, side, 3]."""
        return _image(self.pixels, self.side)


def glimpse_of(preview: Preview) -> Glimpse:
    """A preview, as it is told."""
    pixels = base64.b64encode(preview.image.tobytes()).decode()
    return Glimpse(side=preview.image.shape[0], rows=preview.rows, pixels=pixels)


def step_of(progress: Progress) -> Step:
    """Progress, as it is told."""
    return Step(
        state="making",
        settled=progress.settled,
        tokens=progress.tokens,
        local=progress.tally.local,
        corrected=progress.tally.corrected,
        round_trips=progress.round_trips,
        trouble=progress.trouble,
    )


def made_of(outcome: Outcome, device_version: str, note: str, *, repairs: str = "") -> Made:
    """An outcome, as it is told."""
    tally, meter, timing = outcome.picture.tally, outcome.meter, outcome.timing
    notes = [sentence for sentence in (_fallback_note(outcome), note) if sentence]
    return Made(
        generation_id=outcome.generation,
        caption=outcome.order.caption,
        seed=outcome.order.seed,
        policy=outcome.order.policy.name,
        threshold=outcome.order.policy.threshold,
        tokens=outcome.picture.size,
        prefix=tally.prefix,
        local=tally.local,
        verified=tally.verified,
        corrected=tally.corrected,
        unverified=tally.unverified,
        wasted=outcome.picture.wasted,
        round_trips=meter.round_trips,
        retries=meter.retries,
        reopened=meter.reopened,
        forwards=meter.forwards,
        bytes_up=meter.bytes_up,
        bytes_down=meter.bytes_down,
        duration_s=timing.duration_s,
        device_s=timing.device_s,
        wait_s=timing.wait_s,
        device_version=device_version,
        cloud_version=meter.cloud_version,
        fallback=outcome.fallback,
        repairs=repairs,
        notes=notes,
        side=outcome.image.shape[0],
        pixels=base64.b64encode(outcome.image.tobytes()).decode(),
    )


def _image(pixels: str, side: int) -> NDArray[np.uint8]:
    return np.frombuffer(base64.b64decode(pixels), np.uint8).reshape(side, side, 3)


def _fallback_note(outcome: Outcome) -> str:
    """What the user should know of a picture that the cloud did not see through."""
    unverified = outcome.picture.tally.unverified
    kept = f"the device finished alone; {unverified} uncertain tokens are unverified"
    match outcome.fallback:
        case "":
            return ""
        case "no_broker":
            return f"no link to the broker: {kept}"
        case "busy":
            return f"the hub was too busy before the deadline: {kept}"
        case "refused":
            return f"the hub refuses this picture ({outcome.detail}): {kept}"
        case _:
            return f"the cloud did not answer in time: {kept}"
