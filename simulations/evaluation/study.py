"""The comparison that the model card shows: every method against real pictures."""

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fleet.models.image_tokenizer import ImageTokenizer, to_pixels, to_unit
from fleet.prediction import SCORE_NAMES, ScoreName
from fleet.training.pictures import Pictures
from simulations.evaluation.captions import Assignment
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
_BATCH = 32


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
    calls: float | None  # share of tokens for which the cloud was asked, prefix included
    corrected: float | None  # share of the asked, without prefix, that the cloud changed
    kernel: Estimate  # KD-EffNet
    kernel_held_out: float | None  # on the captions of emoji that training never saw
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
        self.pictures = pictures
        self.assignment = assignment
        self._real_pictures = pictures.pixels[assignment.rows]
        features = self.real_features()
        self._standard = Standard.of(features)
        self._real = self._standard.apply(features)
        self._drawn: dict[str, Sample] = {}

    def sheet(self) -> dict[str, NDArray[np.uint8]]:
        """Real pictures and what each method drew for the same captions."""
        return {"real": self._real_pictures} | {
            name: sample.pictures for name, sample in self._drawn.items()
        }

    def real_features(self) -> NDArray[np.float32]:
        """Features [N, 1280] of the captions' own pictures."""
        return self._studio.features(self._real_pictures, f"real-{len(self.assignment.rows)}")

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
        ciar, cloud, device, reference = self._studio.draw(first, self.assignment)
        self._drawn = {"cloud-only": cloud, "CIAR": ciar, "device-only": device}
        matched = equal_calls(plan.shipped, ciar, plan.scores)
        samples = self._studio.draw([(each, plan.others) for each in matched], self.assignment)
        self._drawn |= {each.name: sample for each, sample in zip(matched, samples, strict=True)}
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

    def real_rows(self, others: Assignment, tokenizer: ImageTokenizer, version: str) -> list[Row]:
        """What real pictures score: those of other captions, and the same through the tokenizer."""
        foreign = self.pictures.pixels[others.rows]
        some = self._real_pictures[: len(foreign)]
        passed = through_tokenizer(tokenizer, some)
        return [
            self._real_row(
                "real pictures of other captions",
                self._studio.features(foreign, f"other-{len(foreign)}"),
            ),
            self._real_row(
                "the same pictures through the tokenizer",
                self._studio.features(passed, f"tokenizer-{version}-{len(passed)}"),
                pixel_distance(passed, some),
            ),
        ]

    def _real_row(
        self, name: str, features: NDArray[np.float32], pixels: float | None = None
    ) -> Row:
        made = self._standard.apply(features)
        return Row(
            name=name,
            sampling="",
            pictures=len(made),
            calls=None,
            corrected=None,
            kernel=self._kernel_distance(made),
            kernel_held_out=None,
            frechet=frechet_distance(self._real[: len(made)], made),
            coverage=precision_recall(self._real[: len(made)], made),
            pixels=pixels,
        )

    def row(self, method: Method, sample: Sample, reference: Sample) -> Row:
        """The figures of one method's sample."""
        count = len(sample)
        made = self._standard.apply(sample.features)
        held_out = self.assignment.held_out
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
        groups = self.assignment.groups[: len(made)]
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


@torch.inference_mode()
def through_tokenizer(tokenizer: ImageTokenizer, pictures: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Pictures [N, side, side, 3] as they come back from their tokens."""
    parts = torch.from_numpy(pictures).split(_BATCH)
    passed = [to_pixels(tokenizer.decode(tokenizer.encode(to_unit(part)))) for part in parts]
    return torch.cat(passed).numpy()


def _pixels(sample: Sample, reference: Sample) -> float | None:
    count = min(len(sample), len(reference))
    if sample is reference:
        return 0.0
    return pixel_distance(sample.pictures[:count], reference.pictures[:count])
