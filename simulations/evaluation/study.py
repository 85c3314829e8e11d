"""The comparison that the model card shows: every method against real pictures."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fleet.models.image_tokenizer import ImageTokenizer
from fleet.prediction import SCORE_NAMES, ScoreName
from fleet.training.pictures import Pictures
from simulations.evaluation.captions import GROUPS, Assignment
from simulations.evaluation.decoder import CORRECTED, LOCAL, VERIFIED
from simulations.evaluation.jobs import Sample, Studio
from simulations.evaluation.methods import Method, SamplingRule, cloud_only, device_only
from simulations.evaluation.metrics import (
    Coverage,
    Estimate,
    Features,
    Standard,
    frechet_distance,
    kernel_distance,
    pixel_distance,
    precision_recall,
    squared_discrepancy,
)

SUBSET = 400


@dataclass(frozen=True, slots=True)
class Shipped:
    """The policy in force: what the fleet does unless told otherwise."""

    sampling: SamplingRule
    score: ScoreName
    threshold: float
    prefix: int

    @property
    def method(self) -> Method:
        """CIAR as it ships."""
        return Method(
            "CIAR",
            "score",
            self.sampling,
            prefix=self.prefix,
            use_features=True,
            score=self.score,
            threshold=self.threshold,
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """How many pictures of what."""

    pictures: int  # of cloud-only and device-only
    others: int  # of each method in between
    rules: dict[str, SamplingRule]  # the best ones of "cloud" and "device"
    shipped: Shipped
    scores: tuple[ScoreName, ...]  # compared at the shipped policy's share of calls


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    name: str
    sampling: str
    pictures: int
    calls: float  # share of tokens for which the cloud was asked, prefix included
    corrected: float  # share of the asked, without prefix, that the cloud changed
    kernel: Estimate  # KD-EffNet
    kernel_held_out: float  # on the captions of emoji that training never saw
    frechet: float  # FD-EffNet: depends on the number of pictures
    coverage: Coverage
    pixels: float | None  # from cloud-only with the same sampling rule and seeds

    def as_json(self) -> dict[str, Any]:
        """The row as plain values."""
        return {**asdict(self), "f1": self.coverage.f1}


class Study:
    """Real pictures, their features, and what was drawn for the same captions."""

    def __init__(self, studio: Studio, pictures: Pictures, assignment: Assignment) -> None:
        self._studio = studio
        self._assignment = assignment
        self._real_pictures = pictures.pixels[assignment.rows]
        features = studio.features(self._real_pictures, f"real-{len(assignment.rows)}")
        self._standard = Standard.of(features)
        self._real = self._standard.apply(features)

    def run(self, plan: Plan) -> list[Row]:
        """Draw what is missing, and return the table."""
        best_cloud, best_device = cloud_only(plan.rules["cloud"]), device_only(plan.rules["device"])
        ceiling = replace(cloud_only(plan.shipped.sampling), name="cloud-only, shipped sampling")
        first = [
            (plan.shipped.method, plan.others),
            (best_cloud, plan.pictures),
            (best_device, plan.pictures),
            (ceiling, plan.others),
        ]
        ciar, cloud, device, reference = self._studio.draw(first, self._assignment)
        matched = equal_calls(plan.shipped, ciar, plan.scores)
        samples = self._studio.draw([(each, plan.others) for each in matched], self._assignment)
        rows = [
            self.row(best_cloud, cloud, reference),
            self.row(best_device, device, reference),
            self.row(ceiling, reference, reference),
            self.row(plan.shipped.method, ciar, reference),
        ]
        return rows + [
            self.row(method, sample, reference)
            for method, sample in zip(matched, samples, strict=True)
        ]

    def floor(self, tokenizer: ImageTokenizer, pictures: Pictures) -> dict[str, Any]:
        """What real pictures score: other captions' pictures, and through the tokenizer."""
        raise NotImplementedError

    def row(self, method: Method, sample: Sample, reference: Sample) -> Row:
        """The figures of one method's sample."""
        count = len(sample)
        made = self._standard.apply(sample.features)
        held_out = self._assignment.held_out
        return Row(
            name=method.name,
            sampling=str(method.sampling),
            pictures=count,
            calls=float((sample.decisions != LOCAL).mean()),
            corrected=corrected_share(sample.decisions),
            kernel=self._kernel_distance(made),
            kernel_held_out=squared_discrepancy(self._real[held_out], made[held_out[:count]]),
            frechet=frechet_distance(self._real[:count], made),
            coverage=precision_recall(self._real[:count], made),
            pixels=_pixels(sample, reference),
        )

    def _kernel_distance(self, made: Features) -> Estimate:
        groups = self._assignment.groups[: len(made)]
        rng = np.random.default_rng(0)
        return kernel_distance(self._real, made, groups=groups, subset=SUBSET, rng=rng)


def equal_calls(shipped: Shipped, ciar: Sample, scores: tuple[ScoreName, ...]) -> list[Method]:
    """Random and other scores, each asking about as often as CIAR did.

    A score's threshold is the quantile of its values along CIAR's own pictures; drawn freely it
    may ask a little more or less, and the table says how much.
    """
    body = ciar.decisions[:, shipped.prefix :]
    rate = float((body != LOCAL).mean())
    coin = Method(
        "random", "random", shipped.sampling, prefix=shipped.prefix, use_features=True, rate=rate
    )
    methods = [coin]
    for name in scores:
        if name == shipped.score:
            continue
        values = ciar.scores[:, shipped.prefix :, SCORE_NAMES.index(name)]
        threshold = float(np.quantile(values, 1 - rate))
        methods.append(replace(shipped.method, name=name, score=name, threshold=threshold))
    return methods


def corrected_share(decisions: NDArray[np.uint8]) -> float:
    """Share of the positions judged by the cloud that it changed; 0 if it judged none."""
    judged = np.isin(decisions, (VERIFIED, CORRECTED)).sum()
    return float((decisions == CORRECTED).sum() / judged) if judged else 0.0


def discrimination(rows: list[Row]) -> float:
    """By how many spreads cloud-only is nearer to the real pictures than device-only.

    The spread is that of the difference of two independent estimates.
    """
    cloud, device = rows[0].kernel, rows[1].kernel
    return (device.value - cloud.value) / float(np.hypot(cloud.spread, device.spread))


def write_study(path: Path, plan: Plan, rows: list[Row], version: str) -> None:
    """Write the table and what it was made from, as JSON."""
    content = {
        "family": version,
        "groups": GROUPS,
        "discrimination_in_spreads": discrimination(rows),
        "shipped": asdict(plan.shipped),
        "rows": [row.as_json() for row in rows],
    }
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _pixels(sample: Sample, reference: Sample) -> float | None:
    count = min(len(sample), len(reference))
    if sample is reference:
        return 0.0
    return pixel_distance(sample.pictures[:count], reference.pictures[:count])
