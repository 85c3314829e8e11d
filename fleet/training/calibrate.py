"""Thresholds for a budget of cloud calls, and the figures of the pair on validation pictures.

A threshold decides what is drawn, and what is drawn decides the scores that come next. So the
threshold of a score is the quantile of that score along pictures that cloud and device drew
together at the threshold before it, and the first ones are drawn with a coin.
"""

import json
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fleet.training.budget import Bar
from fleet.training.examples import Examples
from fleet.training.metrics import compare, summarise
from fleet.training.sampling import SamplingRule
from fleet.training.together import CALIBRATED, Asks, Pair, Rule, Scores, draw_together

CALL_BUDGET = 0.30
PREFIX_SHARE = 0.06
# The prefix is made by the cloud, so fewer of the other tokens may be asked about.
CALL_SHARE = (CALL_BUDGET - PREFIX_SHARE) / (1 - PREFIX_SHARE)
ROUNDS = 3
CAPTIONS = 60
UNSEEN_PART = 4  # one caption in so many is of an emoji that training never saw
VALIDATION_PICTURES = 244
_AT_ONCE = 6  # captions, with a picture for each score

Floats = NDArray[np.float64]


def calibrate(
    work: Path, pair: Pair, examples: Examples, sampling: SamplingRule, seed: int, bar: Bar
) -> None:
    """Write `calibration.json` and `metrics.json` for one sampling."""
    search = Search(pair, examples, sampling, seed, bar)
    thresholds = search.run()
    measured = search.share_at(thresholds)
    calibration = {
        "call_budget": CALL_BUDGET,
        "prefix_share": PREFIX_SHARE,
        "call_share": CALL_SHARE,
        "captions": CAPTIONS,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "thresholds": {f"{sampling.guidance:g}": _named(thresholds)},
        "measured_share": _named(measured),
    }
    _write(work / "calibration.json", calibration)
    batch = examples.take("validation", VALIDATION_PICTURES)
    compared = compare(pair.cloud, pair.device, pair.codes, batch)
    _write(work / "metrics.json", summarise(compared, CALL_SHARE))


class Search:
    """The search for thresholds, and a look at what they do on pictures drawn afresh."""

    def __init__(
        self, pair: Pair, examples: Examples, sampling: SamplingRule, seed: int, bar: Bar
    ) -> None:
        self._pair = pair
        self._rule = Rule(int(PREFIX_SHARE * pair.cloud.config.n_token), sampling)
        unseen = CAPTIONS // UNSEEN_PART
        sizes, rng = {"train": CAPTIONS - unseen, "validation": unseen}, np.random.default_rng(seed)
        parts = [examples.sample(split, count, rng).captions for split, count in sizes.items()]
        self._captions = torch.cat(parts)
        self._seed = seed
        self._bar = bar
        self._drawings = 0

    def run(self) -> Floats:
        """Return the thresholds, in the order of `CALIBRATED`."""
        coin = np.random.default_rng(self._seed)
        seen, _ = self._draw(lambda own: coin.random(own.shape) < CALL_SHARE)
        for _ in range(ROUNDS - 1):
            seen, _ = self._draw(_asking_above(_quantiles(seen)))
        return _quantiles(seen)

    def share_at(self, thresholds: Floats) -> Floats:
        """Return which share of the tokens after the prefix asks, by score as `run` does."""
        _, asked = self._draw(_asking_above(thresholds))
        share: Floats = asked.mean(axis=(0, 2))
        return share

    def _draw(self, asks: Asks) -> tuple[Scores, NDArray[np.bool_]]:
        generator = torch.Generator().manual_seed(self._seed + self._drawings)
        parts = []
        for start in range(0, len(self._captions), _AT_ONCE):
            part = self._captions[start : start + _AT_ONCE]
            parts.append(draw_together(self._pair, part, self._rule, asks, generator))
            done = self._drawings + (start + len(part)) / len(self._captions)
            self._bar.show(done / (ROUNDS + 1), f"drawing {self._drawings + 1} of {ROUNDS + 1}")
        self._drawings += 1
        seen, asked = zip(*parts, strict=True)
        return np.concatenate(seen), np.concatenate(asked)


def _asking_above(thresholds: Floats) -> Asks:
    return lambda own: own > thresholds


def _quantiles(seen: Scores) -> Floats:
    """Return for each score [B, S, T'] what the wanted share of its values lies above."""
    found: Floats = np.quantile(seen, 1 - CALL_SHARE, axis=(0, 2))
    return found


def _named(values: Floats) -> dict[str, float]:
    return dict(zip(CALIBRATED, map(float, values), strict=True))


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
