"""Histograms as whoever asks gets them: a row for each metric and bucket that any picture is in.

The table has a row for each bucket and a column for each metric; see `tables/sums.py`.
"""

from functools import cache
from typing import Any

from sqlalchemy import Subquery, case, literal, select, true, union_all

from cloud_hub.store.sums import SPAN, columns, rows_of
from cloud_hub.store.tables import HistogramRow
from fleet.buckets import GAMMA, ZERO

METRICS = columns(HistogramRow)


@cache
def by_metric() -> Subquery:
    """Columns of the span, `metric`, `bucket`, and how many `pictures` lie in it."""
    there: Any = rows_of(HistogramRow).c
    metric: Any = union_all(*(select(literal(name).label("metric")) for name in METRICS)).subquery()
    pictures = case({name: there[name] for name in METRICS}, value=metric.c.metric)
    spans = [there[name] for name in SPAN]
    query = (
        select(*spans, metric.c.metric, there.bucket, pictures.label("pictures"))
        .select_from(rows_of(HistogramRow).join(metric, true()))
        .where(pictures > 0)
    )
    return query.subquery(HistogramRow.__tablename__)


def view(names: str, summed: str) -> str:
    """The query of `v_latency`: rows by metric, made of a day's sums.

    Args:
        names: Of the columns of a day and its span.
        summed: What to select them from, beside the buckets and the metrics.
    """
    metrics = " UNION ALL ".join(f"SELECT '{name}' AS metric" for name in METRICS)
    chosen = " ".join(f"WHEN '{name}' THEN {name}" for name in METRICS)
    pictures = f"CASE metric {chosen} END"
    value = f"CASE bucket WHEN {ZERO} THEN 0 ELSE 2 * POWER({GAMMA!r}, bucket) / {GAMMA + 1!r} END"
    return (
        f"SELECT {names}, metric, bucket, {value} AS value, {pictures} AS pictures"  # noqa: S608
        f" FROM {summed} CROSS JOIN ({metrics}) AS metrics WHERE {pictures} > 0"
    )
