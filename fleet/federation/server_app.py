"""The hub's side of a run of rounds, as a plain Flower ServerApp: `app`.

The run's configuration names the plan (`fleet.federation.plan`), the head (`head`: a file), the
folder of the rounds (`ledger`), and the hub's own samples to validate with (`holdout`), if any.
"""

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fleet.errors import InvalidInputError
from fleet.federation.collect import NOBODY, Observer
from fleet.federation.ledger import FolderLedger, Ledger
from fleet.federation.plan import Plan
from fleet.federation.rounds import Rounds
from fleet.federation.samples import SampleRing
from fleet.federation.task import Task
from fleet.models.head_weights import HeadWeights


def server_app(
    ledger: Ledger | None = None,
    task: Task | None = None,
    observer: Observer = NOBODY,
) -> ServerApp:
    """An app that trains `task` and keeps its rounds in `ledger`, or what its run names."""
    made = ServerApp()

    @made.main()
    def main(grid: Grid, context: Context) -> None:
        config = context.run_config
        kept = ledger or FolderLedger(Path(_named(context, "ledger")))
        trained = task or _task(context)
        Rounds(grid, trained, Plan.from_config(config), kept, observer).run()

    return made


def _task(context: Context) -> Task:
    holdout = None
    if "holdout" in context.run_config:
        holdout = SampleRing.open(Path(_named(context, "holdout"))).read()
        holdout = holdout[holdout.has_law]
    return Task(HeadWeights.load(Path(_named(context, "head"))), holdout)


def _named(context: Context, name: str) -> str:
    if name not in context.run_config:
        raise InvalidInputError(f"the run's configuration has no {name!r}")
    return str(context.run_config[name])


app = server_app()
