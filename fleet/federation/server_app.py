"""The hub's side of a run of rounds, as a plain Flower ServerApp: `app`.

The run's configuration names the plan (`fleet.federation.plan`), the head (`head`: a file), the
folder of the rounds (`ledger`), and the hub's own samples to validate with (`holdout`), if any.
"""

from collections.abc import Callable
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fleet.errors import InvalidInputError
from fleet.federation.collect import Watch
from fleet.federation.ledger import FolderLedger, Ledger
from fleet.federation.plan import Plan
from fleet.federation.round import Task
from fleet.federation.rounds import Rounds
from fleet.federation.samples import SampleRing
from fleet.models.head_weights import HeadWeights


def server_app(
    ledger: Ledger | None = None,
    watch: Watch = lambda _: None,
    stopped: Callable[[], bool] = lambda: False,
) -> ServerApp:
    """An app that keeps its rounds in `ledger`, or in the folder that its run names."""
    made = ServerApp()

    @made.main()
    def main(grid: Grid, context: Context) -> None:
        config = context.run_config
        kept = ledger or FolderLedger(Path(_named(context, "ledger")))
        holdout = None
        if "holdout" in config:
            holdout = SampleRing.open(Path(str(config["holdout"]))).read()
            holdout = holdout[holdout.has_law]
        task = Task(HeadWeights.load(Path(_named(context, "head"))), holdout)
        Rounds(grid, task, Plan.from_config(config), kept, watch, stopped).run()

    return made


def _named(context: Context, name: str) -> str:
    if name not in context.run_config:
        raise InvalidInputError(f"the run's configuration has no {name!r}")
    return str(context.run_config[name])


app = server_app()
