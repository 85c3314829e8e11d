"""Flower's grid over the fleet's transport: the nodes of a ServerApp behind the broker."""

import asyncio
from collections.abc import Iterable
from typing import Literal, cast

from flwr.app import Error, Message

from cloud_hub.rounds.exchange import Exchange
from fleet.errors import ProtocolError, TransportError
from fleet.federation import codec
from fleet.federation.bodies import count
from fleet.federation.collect import Patience, Way, collect
from fleet.federation.flower import FAILED, message_id_of, name_message
from fleet.federation.named_run import NamedRunGrid
from fleet.ids import RequestId
from fleet.protocol.messages import RoundTask

PUSH_S = 60.0


class MqttGrid(NamedRunGrid):
    """Asks the nodes of an `Exchange` that runs on `loop`; called from another thread."""

    def __init__(
        self, exchange: Exchange, loop: asyncio.AbstractEventLoop, *, run: int, deadline_s: float
    ) -> None:
        """`deadline_s` is what a node is told; the loop over rounds keeps its own."""
        super().__init__(run)
        self._exchange = exchange
        self._loop = loop
        self._deadline_s = deadline_s
        self._asked: dict[str, Message] = {}

    @property
    def traffic(self) -> dict[int, tuple[int, int]]:
        """Bytes down and up by node, until they are taken."""
        return self._exchange.traffic

    def get_node_ids(self) -> Iterable[int]:
        """Those that are up and can train."""
        return list(self._exchange.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Sends messages; those before are not waited for any more.

        Raises:
            TransportError: They could not be handed over in time.
        """
        self._asked = {}
        bodies: dict[int, bytes] = {}
        tasks = []
        for message in messages:
            body = bodies.setdefault(id(message.content), codec.pack(message.content))
            name = codec.digest(body)
            message_id = message_id_of(self._run, message, name)
            name_message(message, message_id)
            self._asked[message_id] = message
            tasks.append(self._task(message, name, len(body)))
        future = asyncio.run_coroutine_threadsafe(
            self._exchange.ask(tasks, bodies.values()), self._loop
        )
        try:
            future.result(PUSH_S)
        except TimeoutError as error:
            future.cancel()
            raise TransportError(f"a round's tasks were not sent within {PUSH_S:g} s") from error
        return list(self._asked)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Those of the answers that are there; each is given once."""
        found = []
        for message_id in message_ids:
            answer = self._exchange.answers.pop(message_id, None)
            if answer is not None:
                found.append(_reply(self._asked[message_id], answer.content, answer.error))
        return found

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """See `Grid`."""
        wait = Patience(timeout or self._deadline_s, 1.0, 0.0)
        return list(collect(Way(self), messages, wait, 0, "").values())

    def _task(self, message: Message, body: str, size: int) -> RoundTask:
        meta = message.metadata
        return RoundTask(
            message_id=RequestId(meta.message_id),
            run=self._run,
            number=meta.dst_node_id,
            kind=cast(Literal["query", "train", "evaluate"], meta.message_type),
            body=body,
            chunks=count(size),
            deadline_s=self._deadline_s,
        )


def _reply(asked: Message, content: bytes, error: str) -> Message:
    if error:
        return Message(Error(FAILED, error), reply_to=asked)
    try:
        return Message(codec.unpack(content), reply_to=asked)
    except ProtocolError as refused:
        return Message(Error(FAILED, str(refused)), reply_to=asked)
