"""What the shipped models cost and how they get on, measured: what a virtual world runs on.

`python -m simulations profile` measures it again; times are processor seconds of one thread.
"""

from functools import cached_property
from importlib.resources import files
from pathlib import Path

from pydantic import Field, ValidationError

from fleet.errors import InvalidInputError
from fleet.settings import Section
from simulations.stand_in import Pair


class DeviceCosts(Section):
    """Seconds of a device."""

    step_s: float = Field(ge=0, description="one token")
    begin_s: float = Field(ge=0, description="before a picture")
    decode_s: float = Field(ge=0, description="from tokens to pixels")


class WorkerCosts(Section):
    """Seconds of a worker; a forward takes the sum over what is in it."""

    forward_s: float = Field(ge=0, description="any forward")
    token_s: float = Field(ge=0, description="each token in it")
    request_s: float = Field(ge=0, description="each request, its messages and verdict included")


class Agreement(Section):
    """How the two models get on in captions of one style."""

    uncertain: float = Field(ge=0, le=1, description="share of drafts that the cloud judges")
    acceptance: float = Field(ge=0, le=1, description="share of those that stand")


class Profile(Section):
    """A measured profile."""

    machine: str
    family: str
    device: DeviceCosts
    worker: WorkerCosts
    styles: dict[str, Agreement] = Field(min_length=1)

    @cached_property
    def mean(self) -> Agreement:
        """Over the styles."""
        count = len(self.styles)
        return Agreement(
            uncertain=sum(style.uncertain for style in self.styles.values()) / count,
            acceptance=sum(style.acceptance for style in self.styles.values()) / count,
        )

    def pair(self, *, device_speed: float, worker_speed: float, style: str = "") -> Pair:
        """Stand-ins that cost and agree as measured."""
        agreement = self.styles.get(style, self.mean)
        return Pair(
            acceptance=agreement.acceptance,
            uncertain=agreement.uncertain,
            step_s=self.device.step_s / device_speed,
            begin_s=self.device.begin_s / device_speed,
            decode_s=self.device.decode_s / device_speed,
            forward_s=self.worker.forward_s / worker_speed,
            token_s=self.worker.token_s / worker_speed,
            request_s=self.worker.request_s / worker_speed,
        )


def load_profile(path: Path | None = None) -> Profile:
    """The profile in a file, or the one that ships.

    Raises:
        InvalidInputError: The file cannot be read, or is no profile.
    """
    path = path or Path(str(files("simulations") / "profile.json"))
    try:
        return Profile.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InvalidInputError(f"profile {path}: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        raise InvalidInputError(
            f"profile {path}: {key or 'the file'} is not usable ({first['msg']}); `python -m"
            " simulations profile` writes a new one"
        ) from error
