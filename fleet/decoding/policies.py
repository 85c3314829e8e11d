"""Policies by name, such as "ciar", "random" or "entropy+dynamic+run12+rows"."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol, cast

from fleet.decoding.accept import Policy, device_only, verify_all
from fleet.errors import InvalidInputError
from fleet.prediction import POLICY_SCORES, PolicyScore

CALIBRATED = "ciar"
_FIXED = {"verify_all": verify_all, "device_only": device_only}
BASES = (CALIBRATED, *_FIXED, *POLICY_SCORES)
_RUN = re.compile(r"run([1-9]\d{0,3})")


class Calibration(Protocol):
    """What a bundle says about policies; `fleet.models.bundle.Manifest` is one."""

    @property
    def score(self) -> str: ...  # of the policy in force

    @property
    def thresholds(self) -> Mapping[str, float]: ...  # one a calibrated score

    @property
    def call_share(self) -> float: ...  # of the tokens after the prefix

    @property
    def dynamic(self) -> bool: ...

    @property
    def max_run(self) -> int: ...

    @property
    def row_starts(self) -> bool: ...

    @property
    def grid(self) -> int: ...  # tokens in a row


@dataclass(frozen=True, slots=True)
class PolicyName:
    """A policy's name, taken apart; `parse` makes one."""

    base: str
    dynamic: bool = False
    max_run: int = 0
    row_starts: bool = False

    @classmethod
    def parse(cls, text: str) -> "PolicyName":
        """Read a base and what is added to it: "dynamic", "runN" or "rows", joined by "+".

        Raises:
            InvalidInputError: A part is unknown; the sentence lists those that exist.
        """
        base, *added = text.strip().replace("-", "_").split("+")
        if base not in BASES:
            raise InvalidInputError(f"policy {base!r} is unknown: take one of {', '.join(BASES)}")
        name = cls(base)
        for part in added:
            run = _RUN.fullmatch(part)
            if run:
                name = replace(name, max_run=int(run[1]))
            elif part == "dynamic":
                name = replace(name, dynamic=True)
            elif part == "rows":
                name = replace(name, row_starts=True)
            else:
                raise InvalidInputError(
                    f"{part!r} adds nothing to a policy: write dynamic, rows or, as in run12,"
                    " how many tokens in a row may go unverified"
                )
        return name

    def policy(self, calibration: Calibration) -> Policy:
        """The policy under a calibration; "ciar" is the calibration's own.

        Raises:
            InvalidInputError: The score was not calibrated, or what is added does not fit.
        """
        dynamic, max_run, rows = self.dynamic, self.max_run, self.row_starts
        if self.base == CALIBRATED:
            dynamic, rows = dynamic or calibration.dynamic, rows or calibration.row_starts
            max_run = max_run or calibration.max_run
        return replace(
            self._plain(calibration),
            call_share=calibration.call_share if dynamic else 0.0,
            max_run=max_run,
            row_length=calibration.grid if rows else 0,
        )

    def _plain(self, calibration: Calibration) -> Policy:
        if self.base in _FIXED:
            return _FIXED[self.base]()
        score = calibration.score if self.base == CALIBRATED else self.base
        if score == "random":
            # The coin is even, so its quantile is known.
            return Policy("random", 1 - calibration.call_share)
        if score not in calibration.thresholds:
            raise InvalidInputError(
                f"the bundle has no threshold for the score {score!r}, only for"
                f" {', '.join(calibration.thresholds)}"
            )
        return Policy(cast(PolicyScore, score), calibration.thresholds[score])
