"""The fleet's sums as Prometheus reads them: counters since ever, by versions, never by device.

Ratios are left to whoever scrapes: `fleet_pictures_local_total / fleet_pictures_tokens_total` is
`local_share` since ever, and the ratio of their rates that of a while.
"""

from collections.abc import Iterable

from sqlalchemy import Connection

from cloud_hub.store.groups import grouped
from cloud_hub.store.periods import Period
from cloud_hub.store.sums import columns
from cloud_hub.store.tables import Base, CheckSumRow, SumRow

_BY = ("version", "cloud", "policy")
_LABELS = ("device_version", "cloud_version", "policy")
_FAMILIES: tuple[tuple[str, type[Base]], ...] = (("pictures", SumRow), ("checks", CheckSumRow))


def exposition(connection: Connection) -> str:
    """All counters in the text format."""
    return (
        "\n".join(line for family, table in _FAMILIES for line in _lines(connection, family, table))
        + "\n"
    )


def _lines(connection: Connection, family: str, table: type[Base]) -> Iterable[str]:
    names = columns(table)
    rows = grouped(connection, table, _BY, Period(), names)
    for name in names:
        metric = f"fleet_{family}_{name}_total"
        yield f"# TYPE {metric} counter"
        for *group, sums in rows:
            pairs = zip(_LABELS, group, strict=True)
            shown = ",".join(f'{label}="{_escape(value)}"' for label, value in pairs)
            yield f"{metric}{{{shown}}} {sums[name]!r}"


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
