"""A run that has ended, as the database holds it."""

from dataclasses import asdict
from datetime import UTC, datetime

from cloud_hub.store import rounds as store
from cloud_hub.store.database import Database
from cloud_hub.store.rounds import DatabaseLedger, Run
from fleet.federation.head import main_directions, no_change
from fleet.federation.ledger import Commit, Opening
from fleet.federation.plan import Plan
from fleet.models.bundle import STEP_GRAPH, Bundle
from fleet.models.head_weights import HeadWeights, head_of

PLAN = Plan(rounds=1, rank=4)
FIGURES = {"loss_before": 2.0, "loss_after": 1.5, "stretch": 1.25}


def finished(database: Database, name: str, bundle: Bundle, outcome: str = "kept") -> HeadWeights:
    """A run that has ended; the head that it was to change."""
    head = head_of(bundle.read(STEP_GRAPH))
    version, now = bundle.manifest.device_version, datetime.now(UTC)
    run = Run(name, "done", "by hand", "", asdict(PLAN), version, head.version, {}, now, now)
    with database.write() as connection:
        store.begin(connection, run, head.to_bytes())
    change = no_change(head, main_directions(head, PLAN.rank))
    change["center"] += 0.01
    ledger = DatabaseLedger(database, name, str)
    ledger.open(Opening(1, 1, ()))
    ledger.commit(Commit(1, outcome, "", change, figures=FIGURES))  # type: ignore[arg-type]
    return head
