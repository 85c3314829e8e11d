"""Views for analysts: named for questions, kept stable while tables change.

They are made anew by every migration from the definitions that Python uses too; `v_version` says
which edition a database has.
"""

from typing import Any

from sqlalchemy import Connection, Double, inspect, text
from sqlalchemy.sql.elements import KeyedColumnElement

from cloud_hub.store import histograms
from cloud_hub.store.periods import DAY_S, HOUR_S
from cloud_hub.store.sums import columns, keys
from cloud_hub.store.tables import (
    Base,
    CheckSumRow,
    GenerationRow,
    HistogramRow,
    ScoreSumRow,
    SumRow,
    TokenRow,
)
from cloud_hub.store.tables.base import Hex, shown_hex
from fleet.buckets import SCORE_CODES_A_BIN
from fleet.definitions import DECISIONS, RATIOS, Z_95
from fleet.protocol.arrays import SCORE_CEILING, SCORE_FLOOR

EDITION = 4

_PACKED = {"scores", "decisions", "confidences"}
_SPAN = "node_id, device_version, cloud_version, policy"
_FALSE = "CAST(mismatched AS DOUBLE PRECISION) / NULLIF(checked, 0)"
_SPREAD = f"({Z_95 * Z_95} / NULLIF(checked, 0))"  # Wilson's z^2 / n
_HALF = f"SQRT({_FALSE} * (1 - {_FALSE}) * {_SPREAD} + {_SPREAD} * {_SPREAD} / 4)"


def names() -> list[str]:
    """The views, in an order in which they can be made."""
    return list(_queries("sqlite"))


def make(connection: Connection) -> None:
    """Makes all views; `drop` first where there are some."""
    for name, query in _queries(connection.dialect.name).items():
        connection.execute(text(f"CREATE VIEW {name} AS {query}"))


def drop(connection: Connection) -> None:
    """Drops every view of ours, so that the tables below can change."""
    for name in inspect(connection).get_view_names():
        if name.startswith("v_"):
            connection.execute(text(f'DROP VIEW "{name}"'))


def are_current(connection: Connection) -> bool:
    """Whether the views are of this release's edition."""
    if "v_version" not in inspect(connection).get_view_names():
        return False
    return connection.execute(text("SELECT edition FROM v_version")).scalar() == EDITION


def day_of(dialect: str, column: str = "starts_at") -> str:
    """The day (UTC, as text) of a moment."""
    if dialect == "sqlite":
        return f"DATE({column})"
    return f"TO_CHAR({column} AT TIME ZONE 'UTC', 'YYYY-MM-DD')"


def _queries(dialect: str) -> dict[str, str]:
    token = _shown(TokenRow.__table__.c.generation_id, dialect)
    pictures = [_shown(c, dialect) for c in GenerationRow.__table__.c if c.name not in _PACKED]
    ratios = ", ".join(f"{ratio.sql} AS {_named(ratio.name)}" for ratio in RATIOS)
    by = f"day, {_SPAN}"
    return {
        "v_version": f"SELECT {EDITION} AS edition",
        "v_picture": f"SELECT {', '.join(pictures)}, bytes_up + bytes_down AS bytes,"
        " CAST(local AS DOUBLE PRECISION) / NULLIF(tokens, 0) AS local_share FROM generation",
        "v_acceptance": f"SELECT {by}, {', '.join(columns(SumRow))}, {ratios}"
        f" FROM {_by_day(SumRow, dialect)}",
        "v_latency": histograms.view(by, _by_day(HistogramRow, dialect)),
        "v_score": f"SELECT {by}, score_bin, {_score(0)} AS score_from, {_score(1)} AS score_to,"
        " local, verified, corrected, unverified,"
        " CAST(verified - corrected AS DOUBLE PRECISION) / NULLIF(verified, 0) AS match_rate"
        f" FROM {_by_day(ScoreSumRow, dialect)}",
        "v_spot_check": f"SELECT {by}, region, score_bin, {_score(0)} AS score_from,"
        f" {_score(1)} AS score_to, checked, mismatched,"
        f" {_FALSE} AS false_accept_rate,"
        f" ({_FALSE} + {_SPREAD} / 2 - {_HALF}) / (1 + {_SPREAD}) AS low,"
        f" ({_FALSE} + {_SPREAD} / 2 + {_HALF}) / (1 + {_SPREAD}) AS high,"
        f" harm / NULLIF(checked, 0) AS harm FROM {_by_day(CheckSumRow, dialect)}",
        "v_token": f"SELECT node_id, {token}, position, received_at, score,"
        f" CASE decision {_decisions()} END AS decision, confidence FROM token",
        "v_node": "SELECT * FROM node",
        "v_threshold": "SELECT * FROM threshold",
        "v_round": "SELECT r.run_id, r.number, r.outcome, r.reason, r.figures, r.opened_at,"
        " r.ended_at, r.duration_s, p.node_id, p.part, p.reason AS node_reason, p.examples,"
        " p.weight, p.loss_before, p.loss_after, p.bytes_down, p.bytes_up FROM round r"
        " LEFT JOIN round_participant p ON p.run_id = r.run_id AND p.number = r.number",
        "v_rollout": "SELECT r.*, n.node_id, n.stage, n.state AS node_state,"
        " n.reason AS node_reason FROM rollout r"
        " LEFT JOIN rollout_node n ON n.rollout_id = r.rollout_id",
    }


def _by_day(table: type[Base], dialect: str) -> str:
    """A table's sums, a row for each day, node, versions, policy and key of the table.

    Days that are over come as they stand, so that the first rows are there at once; the present
    one is added up from its hours.
    """
    day, mark = day_of(dialect), f"(SELECT until FROM sum_mark WHERE span_s = {DAY_S})"
    midnight = f"DATE({mark})" if dialect == "sqlite" else f"DATE_TRUNC('day', {mark}, 'UTC')"
    own = ", ".join([f"{day} AS day", _SPAN, *keys(table)])
    sums = ", ".join(_sum(table.__table__.c[name]) for name in columns(table))
    rows = f"FROM {table.__tablename__} JOIN span ON span.id = span_id"
    return (
        f"(SELECT {own}, {', '.join(columns(table))} {rows}"
        f" WHERE span_s = {DAY_S} AND starts_at < {midnight}"
        f" UNION ALL SELECT {own}, {sums} {rows}"
        f" WHERE span_s = {HOUR_S} AND starts_at >= {midnight}"
        f" GROUP BY {', '.join([day, _SPAN, *keys(table)])}) AS summed"
    )


def _shown(column: KeyedColumnElement[Any], dialect: str) -> str:
    """A column; a text that PostgreSQL keeps as bytes is a text again."""
    if isinstance(column.type, Hex) and dialect != "sqlite":
        return f"{shown_hex(column.name)} AS {column.name}"
    return str(column.name)


def _sum(column: KeyedColumnElement[Any]) -> str:
    """A sum under its column's name; PostgreSQL's own sum of a count is no integer."""
    kind = "DOUBLE PRECISION" if isinstance(column.type, Double) else "BIGINT"
    return f"CAST(SUM({column.name}) AS {kind}) AS {column.name}"


def _decisions() -> str:
    return " ".join(f"WHEN {code} THEN '{name}'" for code, name in enumerate(DECISIONS))


def _named(ratio: str) -> str:
    """A ratio's column; those that bear a sum's name are means."""
    return f"mean_{ratio}" if ratio in columns(SumRow) else ratio


def _score(step: int) -> str:
    """A bin's lower or upper end; as both ends' codes round, half a code beside."""
    code = f"((score_bin + {step}) * {SCORE_CODES_A_BIN} - 0.5)"
    return f"{SCORE_FLOOR!r} * POWER({SCORE_CEILING / SCORE_FLOOR!r}, {code} / 255.0)"
