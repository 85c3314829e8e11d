"""Model versions as lines for people, and as fields for programs; pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from cloud_hub.store.catalog import Version

_COLUMNS = (16, 6, 16, 18, 17, 8)  # widths; the last column takes what is left


def lines(versions: Sequence[Version], running: Mapping[str, int]) -> Iterator[str]:
    """One line a version; `running`: how many devices run each now, in the catalog or not."""
    known = {each.version for each in versions}
    if not known and not running:
        yield "no device is up, and `cloud_hub rounds publish` has made no version yet"
        return
    yield _line("version", "kind", "parent", "run", "made", "devices", "loss")
    for each in versions:
        made = f"{each.made_at:%Y-%m-%d %H:%M}"
        of = (each.version, each.kind, each.parent or "-", each.round_id or "-", made)
        yield _line(*of, str(running.get(each.version, 0)), _loss(each.facts))
    for version in sorted(running.keys() - known):
        yield _line(version, "device", "-", "-", "-", str(running[version]), "not from rounds")


def fields(versions: Sequence[Version], running: Mapping[str, int]) -> list[dict[str, Any]]:
    """The same as JSON."""
    return [
        {
            **asdict(each),
            "made_at": each.made_at.isoformat(),
            "devices": running.get(each.version, 0),
        }
        for each in versions
    ] + [
        {"version": version, "kind": "device", "devices": running[version]}
        for version in sorted(running.keys() - {each.version for each in versions})
    ]


def _line(*cells: str) -> str:
    padded = [f"{cell:<{width}}" for cell, width in zip(cells, _COLUMNS, strict=False)]
    return "  ".join([*padded, cells[-1]]).rstrip()


def _loss(facts: Mapping[str, Any]) -> str:
    figures = facts.get("figures", {})
    if "loss_before" not in figures or "loss_after" not in figures:
        return "-"
    nodes = facts.get("nodes", figures.get("nodes"))
    text = f"{figures['loss_before']:.4f} -> {figures['loss_after']:.4f}"
    return f"{text} on {nodes:.0f} nodes" if nodes is not None else text
