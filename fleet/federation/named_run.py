"""What every grid of ours does alike: its run has a number, and messages are plain."""

from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fleet.federation.flower import take_identity


class NamedRunGrid(Grid):
    """A grid whose run is a number, given at the beginning; how messages travel is left open."""

    def __init__(self, run: int) -> None:
        take_identity(run)
        self._run = run

    def set_run(self, run: Any) -> None:
        """Does nothing: the run was named at the beginning."""

    @property
    def run(self) -> Any:
        """No strategy asks for it."""
        raise NotImplementedError("this grid's run is a number only")

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """See `Grid`."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)
