"""What every number means: each ratio once, for SQL, Python and docs/metrics.md; pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

QUANTILES = (0.5, 0.9, 0.95, 0.99)
DECISIONS = ("prefix", "local", "verified", "corrected", "unverified")  # by code
Z_95 = 1.959963984540054  # of the normal law: two-sided, 95%


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of two sums of `picture_sum`; it has no value where `whole` is 0.

    Attributes:
        part: Columns that are added; those with a "-" before are taken off.
        whole: A column.
        says: The definition in words.
    """

    name: str
    part: tuple[str, ...]
    whole: str
    says: str

    def of(self, sums: Mapping[str, float]) -> float | None:
        """The ratio of these sums."""
        whole = sums[self.whole]
        part = sum(-sums[name[1:]] if name[0] == "-" else sums[name] for name in self.part)
        return part / whole if whole else None

    @property
    def sql(self) -> str:
        """The ratio of columns that are sums already, as both databases spell it."""
        signed = (f"- {name[1:]}" if name[0] == "-" else f"+ {name}" for name in self.part)
        part = " ".join(signed).removeprefix("+ ")
        return f"CAST({part} AS DOUBLE PRECISION) / NULLIF({self.whole}, 0)"


RATIOS = (
    Ratio("local_share", ("local",), "tokens", "tokens accepted by the device alone / tokens"),
    Ratio("cloud_share", ("forwards",), "tokens", "forwards of the cloud for a picture / tokens"),
    Ratio("call_share", ("calls",), "pictures", "pictures that the cloud took part in / pictures"),
    Ratio("correction_rate", ("corrected",), "verified", "corrected / verified tokens"),
    Ratio("match_rate", ("verified", "-corrected"), "verified", "verified tokens that stood"),
    Ratio("unverified_share", ("unverified",), "tokens", "kept by the fallback policy / tokens"),
    Ratio("wasted_share", ("wasted",), "tokens", "drafts thrown away / tokens"),
    Ratio("fallback_share", ("fallbacks",), "pictures", "pictures with a fallback / pictures"),
    Ratio("round_trips", ("round_trips",), "pictures", "round trips a picture"),
    Ratio("bytes_up", ("bytes_up",), "pictures", "bytes sent a picture"),
    Ratio("bytes_down", ("bytes_down",), "pictures", "bytes received a picture"),
    Ratio("seconds", ("duration_s",), "pictures", "mean seconds a picture"),
    Ratio("tokens_per_s", ("tokens",), "duration_s", "tokens / seconds of the pictures"),
)


@dataclass(frozen=True, slots=True)
class Accepted:
    """What spot checks say of tokens that devices accepted alone; docs/metrics.md.

    Attributes:
        false_accept_rate: mismatched / checked.
        low, high: Wilson's 95% interval of it.
        tv_low, tv_high: What it says of the mean total variation of both laws there.
        harm: Mean squared distance of the two draws' code vectors, 0 to 4.
    """

    checked: int
    mismatched: int
    false_accept_rate: float | None
    low: float | None
    high: float | None
    tv_low: float | None
    tv_high: float | None
    harm: float | None


def accepted(checked: int, mismatched: int, harm: float) -> Accepted:
    """The rates of these counts; `harm` is the sum."""
    if not checked:
        return Accepted(0, 0, None, None, None, None, None, None)
    rate = mismatched / checked
    low, high = wilson(mismatched, checked)
    return Accepted(checked, mismatched, rate, low, high, rate / (2 - rate), rate, harm / checked)


def wilson(hits: float, count: float, z: float = Z_95) -> tuple[float, float]:
    """Wilson's interval of a share (JASA 1927); the whole of [0, 1] where nothing was counted."""
    if not count:
        return 0.0, 1.0
    share, spread = hits / count, z * z / count
    centre = (share + spread / 2) / (1 + spread)
    half = math.sqrt(share * (1 - share) * spread + spread * spread / 4) / (1 + spread)
    return max(0.0, centre - half), min(1.0, centre + half)


def stability_index(counts: Sequence[int], reference: Sequence[int]) -> float | None:
    """Population stability index of two histograms over the same bins: Σ (p - r) ln(p / r).

    Half a count is added to each bin that either holds, so that an empty one is finite. Below
    0.1 is commonly read as no drift, above 0.25 as a large one. None if either is empty.
    """
    bins = [(a, b) for a, b in zip(counts, reference, strict=True) if a or b]
    if not sum(a for a, _ in bins) or not sum(b for _, b in bins):
        return None
    whole = [sum(each[side] for each in bins) + len(bins) / 2 for side in (0, 1)]
    shares = [((a + 0.5) / whole[0], (b + 0.5) / whole[1]) for a, b in bins]
    return math.fsum((p - r) * math.log(p / r) for p, r in shares)


def calibration_error(
    found: Sequence[tuple[int, int]], reference: Sequence[tuple[int, int]]
) -> float | None:
    """How far match rates by score are off those of a reference: Σ n/N |m - m_reference|.

    Args:
        found, reference: Judged and matched tokens of each score bin, same bins; bins that either
            lacks are left out.
    """
    both = [
        (judged, matched / judged, known / seen)
        for (judged, matched), (seen, known) in zip(found, reference, strict=True)
        if judged and seen
    ]
    whole = sum(judged for judged, _, _ in both)
    if not whole:
        return None
    return math.fsum(judged * abs(match - expected) for judged, match, expected in both) / whole
