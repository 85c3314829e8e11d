"""The comparison: every method against real pictures, at one sampling rule and one budget."""

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fleet.models.image_tokenizer import ImageTokenizer, to_pixels, to_unit
from fleet.training.pictures import Pictures
from simulations.evaluation.budget import PARTS, asked_rate, matched
from simulations.evaluation.captions import Assignment, search_captions
from simulations.evaluation.catalogue import CLOUD, DEVICE, OURS, Setting, Shipped
from simulations.evaluation.catalogue import method as by_name
from simulations.evaluation.jobs import Sample, Studio
from simulations.evaluation.methods import Method, cloud_only, device_only
from simulations.evaluation.metrics import (
    Coverage,
    Estimate,
    Features,
    Standard,
    frechet_distance,
    kernel_distance,
    kernel_distance_gap,
    over_groups,
    pixel_distance,
    precision_recall,
    squared_discrepancy,
)
from simulations.evaluation.moment import CORRECTED, LOCAL, VERIFIED
from simulations.evaluation.sampling_rule import SamplingRule

SUBSET = 400
MATCHED_ON = 240  # captions on which thresholds are tried
_BATCH = 32
CEILING = "cloud-only, shipped sampling"


@dataclass(frozen=True, slots=True)
class Plan:
    """How many pictures of what."""

    pictures: int  # of cloud-only and device-only
    others: int  # of each method in between
    rules: dict[str, SamplingRule]  # the best ones of "cloud" and "device"
    shipped: Shipped
    names: tuple[str, ...]  # the methods in between, at ours' share of calls
    budget: float | None = (
        None  # share of tokens for the cloud; None: what the shipped policy takes
    )


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    name: str
    sampling: str
    pictures: int
    calls: float | None  # share of tokens that are not the device's alone, prefix included
    corrected: float | None  # share of the judged, that the cloud changed
    kernel: Estimate  # KD-EffNet
    kernel_held_out: float | None  # on the captions of emoji that training never saw
    frechet: float  # FD-EffNet: depends on the number of pictures
    coverage: Coverage
    pixels: float | None  # from cloud-only with the same sampling rule and seeds
    gap_lost: Estimate | None = None  # 0: as good as cloud-only, 1: as bad as device-only
    than_ours: Estimate | None = None  # the gap lost, less ours' over the same captions and seeds

    def as_json(self) -> dict[str, Any]:
        """The row as plain values."""
        return {**asdict(self), "f1": self.coverage.f1}


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """A method with what it drew and its line of the table."""

    method: Method
    sample: Sample
    row: Row


class Study:
    """Real pictures, their features, and what was drawn for the same captions."""

    def __init__(self, studio: Studio, pictures: Pictures, assignment: Assignment) -> None:
        self._studio = studio
        self.pictures = pictures
        self.assignment = assignment
        self.real_pixels = pictures.pixels[assignment.rows]
        features = self.real_features()
        self.standard = Standard.of(features)
        self.real = self.standard.apply(features)

    def real_features(self) -> NDArray[np.float32]:
        """Features [N, 1280] of the captions' own pictures."""
        return self._studio.features(self.real_pixels, f"real-{len(self.assignment.rows)}")

    def run(self, plan: Plan) -> list[Result]:
        """Draw what is missing, and return the methods in the order of the table."""
        ends = [cloud_only(plan.rules["cloud"]), device_only(plan.rules["device"])]
        ceiling = replace(cloud_only(plan.shipped.sampling), name=CEILING)
        first = [(plan.shipped.method, plan.others), (ceiling, plan.others)]
        order = [*((end, plan.pictures) for end in ends), *first]
        *drawn, ours, reference = self._studio.draw(order, self.assignment)
        between = self.between(plan, ours)
        samples = self._studio.draw([(each, plan.others) for each in between], self.assignment)
        pairs = [*zip(ends, drawn, strict=True), (ceiling, reference)]
        pairs += zip(between, samples, strict=True)
        found = (drawn[0], drawn[1])
        results = [
            Result(method, sample, self.row(method, sample, reference, found))
            for method, sample in pairs
        ]
        return self.beside_ours(results, found)

    def at_own_best(
        self, plan: Plan, ends: tuple[Sample, Sample], methods: list[Method]
    ) -> list[Result]:
        """Methods at sampling rules of their own, against cloud-only's pictures at the same."""
        results = []
        for method in methods:
            ceiling = cloud_only(method.sampling)
            order = [(method, plan.others), (ceiling, plan.others)]
            sample, reference = self._studio.draw(order, self.assignment)
            results.append(Result(method, sample, self.row(method, sample, reference, ends)))
        return self.beside_ours(results, ends)

    def beside_ours(self, results: list[Result], ends: tuple[Sample, Sample]) -> list[Result]:
        """The results, all but the ends and ours with how much more of the gap than ours they lose.

        Where ours is not among them they come back as they are.
        """
        found = [each.sample for each in results if each.method.name == OURS]
        if not found:
            return results

        def beside(each: Result) -> Result:
            if each.method.name in {CLOUD, DEVICE, OURS}:
                return each
            row = replace(each.row, than_ours=self.gap_lost(each.sample, ends, found[0]))
            return replace(each, row=row)

        return [beside(each) for each in results]

    def between(self, plan: Plan, ours: Sample) -> list[Method]:
        """Ours and the named methods, each asking about as often as ours or the budget says."""
        shipped, length, rate = plan.shipped, ours.tokens.shape[1], rate_of(plan, ours)
        setting = Setting(shipped, shipped.sampling, rate, length)
        names = [name for name in plan.names if name not in {CLOUD, DEVICE, OURS}]
        methods = [by_name(name, setting) for name in names]
        if plan.budget is not None:
            methods = [shipped.method, *methods]
        captions = self.matching_captions()
        few = round(PARTS[0] * len(captions.rows))
        (first,) = self._studio.draw([(shipped.method, few)], captions)
        methods = matched(self._studio, methods, first, rate, captions)
        return methods if plan.budget is not None else [shipped.method, *methods]

    def matching_captions(self) -> Assignment:
        """The captions on which thresholds are tried, none of them compared."""
        count = min(MATCHED_ON, len(self.assignment.rows))
        return search_captions(self.pictures, count, self.assignment)

    def real_rows(self, others: Assignment, tokenizer: ImageTokenizer, version: str) -> list[Row]:
        """What real pictures score: those of other captions, and the same through the tokenizer."""
        foreign = self.pictures.pixels[others.rows]
        some = self.real_pixels[: len(foreign)]
        passed = through_tokenizer(tokenizer, some)
        return [
            self._real_row(
                "real pictures of other captions",
                self._studio.features(foreign, f"others-{len(foreign)}"),
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
        made = self.standard.apply(features)
        return Row(
            name=name,
            sampling="",
            pictures=len(made),
            calls=None,
            corrected=None,
            kernel=self._kernel_distance(made),
            kernel_held_out=None,
            frechet=frechet_distance(self.real[: len(made)], made),
            coverage=precision_recall(self.real[: len(made)], made),
            pixels=pixels,
        )

    def row(
        self, method: Method, sample: Sample, reference: Sample, ends: tuple[Sample, Sample]
    ) -> Row:
        """The figures of one method's sample; `ends` are cloud-only's and device-only's."""
        count = len(sample)
        made = self.standard.apply(sample.features)
        return Row(
            name=method.name,
            sampling=str(method.sampling),
            pictures=count,
            calls=float((sample.decisions != LOCAL).mean()),
            corrected=corrected_share(sample.decisions),
            kernel=self._kernel_distance(made),
            kernel_held_out=self._distance_of(made, self.assignment.held_out),
            frechet=frechet_distance(self.real[:count], made),
            coverage=precision_recall(self.real[:count], made),
            pixels=_pixels(sample, reference),
            gap_lost=self.gap_lost(sample, ends),
        )

    def _distance_of(self, made: Features, chosen: NDArray[np.bool_]) -> float | None:
        """KD-EffNet on the chosen captions alone; None where fewer than two of them were drawn."""
        own = made[chosen[: len(made)]]
        return squared_discrepancy(self.real[chosen], own) if len(own) > 1 else None

    def discrimination(self, cloud: Sample, device: Sample) -> Estimate:
        """How much nearer cloud-only is to the real pictures than device-only, in KD-EffNet."""
        near, far = (self.standard.apply(each.features) for each in (cloud, device))
        groups = self.assignment.groups[: len(near)]
        return kernel_distance_gap(self.real, near, far, groups=groups)

    def gap_lost(
        self, sample: Sample, ends: tuple[Sample, Sample], beside: Sample | None = None
    ) -> Estimate:
        """Where a sample lies between cloud-only and device-only, by groups of seeds.

        With another sample `beside`, by how much farther than that one. All are cut to the same
        pictures, so what one caption does, it does to all.
        """
        samples = [sample, *ends, *([] if beside is None else [beside])]
        count = min(map(len, samples))
        groups = self.assignment.groups[:count]
        made = [self.standard.apply(each.features[:count]) for each in samples]

        def lost(chosen: NDArray[np.bool_]) -> float:
            # The real set's own similarity would cancel.
            own, cloud, device, *other = (
                squared_discrepancy(self.real, each[chosen], within=0.0) for each in made
            )
            return (own - (other[0] if other else cloud)) / (device - cloud)

        return over_groups(lost, groups)

    def _kernel_distance(self, made: Features) -> Estimate:
        groups = self.assignment.groups[: len(made)]
        rng = np.random.default_rng(0)
        return kernel_distance(self.real, made, groups=groups, subset=SUBSET, rng=rng)


def rate_of(plan: Plan, ours: Sample) -> float:
    """The share of the tokens after the prefix that the cloud is asked about."""
    if plan.budget is None:
        return asked_rate(ours, plan.shipped.prefix)
    share = plan.shipped.prefix / int(ours.tokens.shape[1])
    rate: float = max(0.0, (plan.budget - share) / (1 - share))
    return rate


def corrected_share(decisions: NDArray[np.uint8]) -> float:
    """Share of the positions judged by the cloud that it changed; 0 if it judged none."""
    judged = np.isin(decisions, (VERIFIED, CORRECTED)).sum()
    return float((decisions == CORRECTED).sum() / judged) if judged else 0.0


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
