"""The catalog of model versions: what they are, where they come from, how they measured."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import Connection, func, select

from cloud_hub.store.database import insert_new
from cloud_hub.store.tables import ModelVersionRow, NodeRow


@dataclass(frozen=True, slots=True)
class Version:
    """A model that devices or the cloud may run.

    Attributes:
        version: A hash of its content.
        parent: The version that it was trained from, or empty.
        round_id: The run of rounds that made it, or empty.
        facts: Sizes, figures, how many nodes took part.
    """

    version: str
    kind: Literal["device", "cloud"]
    family: str
    parent: str
    round_id: str
    made_at: datetime
    facts: Mapping[str, Any]


def add(connection: Connection, version: Version) -> None:
    """Adds a version; one that is there stays as it is."""
    connection.execute(insert_new(connection, ModelVersionRow), asdict(version))


def versions(connection: Connection) -> list[Version]:
    """All versions, the newest first."""
    statement = select(ModelVersionRow).order_by(ModelVersionRow.made_at.desc())
    return [Version(**row) for row in connection.execute(statement).mappings()]


def running(connection: Connection) -> dict[str, int]:
    """How many devices that are up run each version."""
    version = NodeRow.device_version
    counted = select(version, func.count()).where(NodeRow.state == "ready", version != "")
    return {row[0]: row[1] for row in connection.execute(counted.group_by(version))}
