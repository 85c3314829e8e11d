"""How far a device's prediction can be trusted: scores of an interval, and the interval feature."""

import math

import numpy as np
from numpy.typing import NDArray

from fleet.decoding.sampling import law
from fleet.interval import Interval

Floats = NDArray[np.floating]

LOG_FLOOR = 1e-12
TEMPERATURES = 20
FEATURE_LIMIT = 127


def scores(interval: Interval, codebook: Floats) -> Floats:
    """All scores [..., 6] in the order of `prediction.SCORE_NAMES`.

    Args:
        interval: Of the guided center logits, before temperature and top-k; [..., V].
        codebook: The image tokenizer's code vectors, each of length 1; [V, d].
    """
    return np.stack(
        [
            uncertainty(interval),
            rejection_bound(interval),
            entropy(interval),
            one_minus_max(interval),
            spread(interval, codebook),
            spread_bound(interval, codebook),
        ],
        axis=-1,
    )


def volume(interval: Interval) -> Floats:
    """Total ambiguity volume Ω [...]: the sum of all widths (arXiv:2603.25463)."""
    total: Floats = interval.width.sum(axis=-1)
    return total


def disparity(interval: Interval) -> Floats:
    """Confidence disparity Σ [...]: the standard deviation of the widths (arXiv:2603.25463)."""
    deviation: Floats = interval.width.std(axis=-1)
    return deviation


def uncertainty(interval: Interval) -> Floats:
    """U = Ω · Σ [...] (arXiv:2603.25463); exactly 0 where all radii are."""
    return volume(interval) * disparity(interval)


def rejection_bound(interval: Interval) -> Floats:
    """B = min(1 - sum lower, sum upper - 1) [...]; exactly 0 where all radii are.

    The center law sums to 1, so 1 - sum lower is the sum of center - lower, which needs no
    subtraction. If a law p lies inside the interval, the total variation distance between the
    center law and p is at most B: it is sum (center - p)+ <= sum (center - lower), and also
    sum (p - center)+ <= sum (upper - center).
    """
    short: Floats = interval.below.sum(axis=-1)
    excess: Floats = interval.above.sum(axis=-1)
    bound: Floats = np.minimum(short, excess)
    return bound


def entropy(interval: Interval) -> Floats:
    """Entropy of the center law [...] in nats."""
    nats: Floats = -np.einsum("...v,...v->...", interval.center, interval.log_center)
    return nats


def one_minus_max(interval: Interval) -> Floats:
    """Probability of all codes but the most likely [...], free of cancellation."""
    top: Floats = interval.log_odds.max(axis=-1)
    return 1 / (1 + np.exp(top))


def spread(interval: Interval, codebook: Floats) -> Floats:
    """Mean squared distance of two draws' code vectors [...], between 0 and 4.

    For vectors e of length 1, E |e_x - e_x'|² = 2 (1 - |E e_x|²) over independent x, x' from
    the center law.
    """
    mean = interval.center @ codebook
    distance: Floats = np.maximum(2 * (1 - np.einsum("...d,...d->...", mean, mean)), 0)
    return distance


def spread_bound(interval: Interval, codebook: Floats) -> Floats:
    """A bound [...] on the spread of every law inside the interval; exactly `spread` where all
    radii are 0.

    Let m = E e_x under the center law, a_i = m · e_i and b = |m|². For a law s inside the
    interval, m · E_s e = b + sum (s_i - center_i)(a_i - b), of which codes with a_i > b can
    take away at most (center - lower)(a - b), the others (upper - center)(b - a): together D.
    So |E_s e|² >= (b - D)+² / b, by Cauchy and Schwarz, and the spread is at most
    2 - 2 (b - D)+² / b = spread + 2 D' (2 - D' / b) with D' = min(D, b).
    """
    mean = interval.center @ codebook
    square = np.einsum("...d,...d->...", mean, mean)[..., None]
    lead = np.einsum("...d,vd->...v", mean, codebook) - square
    lost = np.where(lead > 0, interval.below, interval.above) * np.abs(lead)
    most = np.minimum(lost.sum(axis=-1, keepdims=True), square)
    share = most / np.maximum(square, square.dtype.type(LOG_FLOOR))
    bound: Floats = spread(interval, codebook) + (2 * most * (2 - share))[..., 0]
    return bound


def perturbation(logits: Floats) -> Floats:
    """How often a draft differs from draws at other temperatures [...], of logits [..., V].

    U-HLM (arXiv:2412.12687) counts how many of 20 draws at temperatures up to 2 differ from the
    draft. A decision must not look at the draft (`docs/method.md`), so this is the expectation
    of that share over the draft and the draws, at 20 temperatures evenly within (0, 2].
    """
    temperatures = (np.arange(TEMPERATURES) + 0.5) * (2 / TEMPERATURES)
    wide = logits.astype(np.float64)
    tempered = law(wide[..., None, :] / temperatures[:, None]).mean(axis=-2)
    differs: Floats = 1 - np.einsum("...v,...v->...", law(wide), tempered)
    return differs


def unit_codebook(codebook: Floats) -> Floats:
    """Code vectors [V, d] scaled to length 1, as `scores` wants them."""
    length: Floats = np.linalg.norm(codebook, axis=-1, keepdims=True)
    return codebook / length


def feature_scalars(
    interval: Interval, token: NDArray[np.int64], score: Floats, threshold: float
) -> Floats:
    """The sixteen numbers of the interval feature [..., 16] that describe the interval.

    In order: log lower, log center and log upper probability, a tenth of the log-odds and the
    radius of the token; log volume, log disparity, rejection bound, entropy over log V, largest
    probability, lead of the most likely code over the next, log rank of the token over log V;
    mean and largest radius; score minus threshold (0 if the threshold is infinite); 1.

    Args:
        interval: [..., V].
        token: The drafted token; [...].
        score: The policy's score; [...].
        threshold: What the score is compared with.
    """
    log_size = math.log(interval.log_odds.shape[-1])
    first, second = _top_two(interval.center)
    margin = score - threshold if np.isfinite(threshold) else np.zeros_like(score)
    columns = [
        _at(interval.log_lower, token),
        _at(interval.log_center, token),
        _at(interval.log_upper, token),
        _at(interval.log_odds, token) / 10,
        _at(interval.radius, token),
        np.log(np.maximum(volume(interval), LOG_FLOOR)),
        np.log(np.maximum(disparity(interval), LOG_FLOOR)),
        rejection_bound(interval),
        entropy(interval) / log_size,
        first,
        first - second,
        np.log(_rank(interval.log_odds, token)) / log_size,
        interval.radius.mean(axis=-1),
        interval.radius.max(axis=-1),
        margin,
        np.ones_like(first),
    ]
    return np.stack(columns, axis=-1).astype(interval.log_odds.dtype)


def quantise_features(features: Floats, scale: Floats) -> NDArray[np.int8]:
    """Interval features [k, 48] as int8 multiples of each channel's scale [48].

    Rounds half to even; clips at ±127; zero stays zero, and what is not a number becomes zero.
    """
    steps = np.rint(np.nan_to_num(features / scale, nan=0.0))
    return np.clip(steps, -FEATURE_LIMIT, FEATURE_LIMIT).astype(np.int8)


def restore_features(steps: NDArray[np.int8], scale: Floats) -> NDArray[np.float32]:
    """Interval features [k, 48] from their int8 steps and the channels' scale [48]."""
    return steps.astype(np.float32) * scale.astype(np.float32)


def _at(values: Floats, token: NDArray[np.int64]) -> Floats:
    return np.take_along_axis(values, np.asarray(token)[..., None], axis=-1)[..., 0]


def _top_two(values: Floats) -> tuple[Floats, Floats]:
    pair = np.partition(values, -2, axis=-1)
    return pair[..., -1], pair[..., -2]


def _rank(values: Floats, token: NDArray[np.int64]) -> NDArray[np.int64]:
    above: NDArray[np.int64] = (values > _at(values, token)[..., None]).sum(axis=-1)
    return above + 1
