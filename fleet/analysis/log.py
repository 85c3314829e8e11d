"""The tables of an export (`cloud_hub export`) as polars frames; docs/metrics.md has the terms."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np
import polars as pl

from fleet.buckets import quantile
from fleet.definitions import DECISIONS, QUANTILES, RATIOS, Accepted, accepted
from fleet.errors import InvalidInputError
from fleet.protocol.arrays import unpack_confidences, unpack_scores

BY = {
    "node": "node_id",
    "version": "device_version",
    "cloud": "cloud_version",
    "policy": "policy",
    "day": "day",
}


@dataclass(frozen=True, slots=True)
class Log:
    """A folder that `cloud_hub export` wrote, and goes on writing."""

    folder: Path

    def __post_init__(self) -> None:
        if not (self.folder / "watermark.json").exists():
            raise InvalidInputError(f"{self.folder} is no export: run `cloud_hub export` first")

    def table(self, name: str) -> pl.LazyFrame:
        """A table's rows; `day` is the day of hub time, where the table has one.

        Raises:
            InvalidInputError: The export has no such table.
        """
        place = self.folder / name
        if (place / "data.parquet").exists():
            return pl.scan_parquet(place / "data.parquet")
        if not any(place.glob("day=*/*.parquet")):
            raise InvalidInputError(f"the export holds no rows of {name!r}")
        found = pl.scan_parquet(place / "**/*.parquet", hive_partitioning=True)
        return found.with_columns(pl.col("day").cast(pl.String))

    def pictures(self) -> pl.LazyFrame:
        """One row a picture, packed arrays included."""
        return self.table("generation")

    def acceptance(self, by: Sequence[str] = ("node",)) -> pl.DataFrame:
        """`cloud_hub query acceptance`, from the exported sums."""
        keys = [BY[name] for name in by]
        sums = self._summed("picture_sum", keys)
        rows = [
            (
                *(each[key] for key in keys),
                *(each[name] for name in ("pictures", "tokens")),
                *(ratio.of(each) for ratio in RATIOS),
            )
            for each in sums
        ]
        names = [*by, "pictures", "tokens", *(ratio.name for ratio in RATIOS)]
        return pl.DataFrame(rows, schema=names, orient="row", infer_schema_length=None)

    def latency(self, by: Sequence[str] = ("node",)) -> pl.DataFrame:
        """`cloud_hub query latency`, from the exported histograms."""
        keys = [*(BY[name] for name in by), "metric"]
        sums = self.table("histogram").group_by(*keys, "bucket").agg(pl.col("pictures").sum())
        found: dict[tuple[object, ...], list[tuple[int, int]]] = {}
        for *group, bucket, count in sums.sort(*keys, "bucket").collect().iter_rows():
            found.setdefault(tuple(group), []).append((bucket, count))
        rows = [
            (*group, sum(n for _, n in pairs), *(quantile(pairs, q) for q in QUANTILES))
            for group, pairs in found.items()
        ]
        names = [*by, "metric", "pictures", *(f"p{q * 100:g}" for q in QUANTILES)]
        return pl.DataFrame(rows, schema=names, orient="row", infer_schema_length=None)

    def spot_checks(self, by: Sequence[str] = ("node",)) -> pl.DataFrame:
        """`cloud_hub query checks`, from the exported sums; `region` and `score_bin` group too."""
        keys = [BY.get(name, name) for name in by]
        rows = [
            (*(each[key] for key in keys), *astuple(_accepted(each)))
            for each in self._summed("check_sum", keys)
        ]
        names = [*by, *(each.name for each in fields(Accepted))]
        return pl.DataFrame(rows, schema=names, orient="row", infer_schema_length=None)

    def tokens(self, pictures: pl.DataFrame | None = None) -> pl.DataFrame:
        """One row a token of the given pictures (or all): position, score, decision, confidence."""
        found = self.pictures().collect() if pictures is None else pictures
        parts = [_tokens(row) for row in found.iter_rows(named=True)]
        return pl.concat(parts) if parts else _tokens(_NOTHING)

    def checks(self) -> pl.DataFrame:
        """One row a checked position, with the score of its record, each position once."""
        records = self.pictures().select("node_id", "generation_id", "device_version", "scores")
        joined = self.table("spot_check").join(records, on=["node_id", "generation_id"]).collect()
        parts = [_checks(row) for row in joined.iter_rows(named=True)]
        key = ["node_id", "generation_id", "position"]
        return pl.concat(parts).unique(key, keep="first", maintain_order=True)

    def _summed(self, table: str, keys: Sequence[str]) -> list[dict[str, float]]:
        frame = self.table(table).drop("starts_at", "span_s")
        own = [*BY.values(), "region", "score_bin"]
        summed = pl.col(*(n for n in frame.collect_schema().names() if n not in own)).sum()
        grouped = frame.group_by(*keys).agg(summed).sort(*keys) if keys else frame.select(summed)
        return grouped.collect().to_dicts()


def _accepted(sums: dict[str, float]) -> Accepted:
    return accepted(int(sums["checked"]), int(sums["mismatched"]), sums["harm"])


_NOTHING: dict[str, bytes | str] = {
    "node_id": "",
    "generation_id": "",
    "scores": b"",
    "decisions": b"",
    "confidences": b"",
}


def _tokens(row: dict[str, bytes | str]) -> pl.DataFrame:
    scores, decisions, confidences = (
        bytes(row[name])  # type: ignore[arg-type]
        for name in ("scores", "decisions", "confidences")
    )
    codes = np.frombuffer(decisions, np.uint8)
    count = len(codes) if len(scores) == len(codes) else 0
    return pl.DataFrame(
        {
            "node_id": [row["node_id"]] * count,
            "generation_id": [row["generation_id"]] * count,
            "position": np.arange(count),
            "score": unpack_scores(scores)[:count],
            "decision": [DECISIONS[code] for code in codes[:count].tolist()],
            "confidence": unpack_confidences(confidences)[:count],
        },
        schema={
            "node_id": pl.String,
            "generation_id": pl.String,
            "position": pl.Int64,
            "score": pl.Float64,
            "decision": pl.String,
            "confidence": pl.Float64,
        },
    )


def _checks(row: dict[str, bytes]) -> pl.DataFrame:
    positions = np.frombuffer(row["positions"], "<u2").astype(np.int64)
    scores = unpack_scores(row["scores"])
    known = positions < len(scores)
    return pl.DataFrame(
        {
            "node_id": [row["node_id"]] * int(known.sum()),
            "generation_id": [row["generation_id"]] * int(known.sum()),
            "device_version": [row["device_version"]] * int(known.sum()),
            "position": positions[known],
            "score": scores[positions[known]],
            "local": np.frombuffer(row["local"], np.uint8)[known].astype(bool),
            "match": np.frombuffer(row["matches"], np.uint8)[known].astype(bool),
            "harm": np.frombuffer(row["harms"], "<f2")[known].astype(np.float64),
            "probability": np.frombuffer(row["probabilities"], "<f2")[known].astype(np.float64),
        }
    )
