"""A grid of nodes in this process: the same apps without broker, network or Ray."""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from fleet.federation import codec
from fleet.federation.flower import (
    FAILED,
    instruction,
    message_id_of,
    name_message,
)
from fleet.federation.named_run import NamedRunGrid

Answer = Message  # of a node

# What a test or a simulation does to a node's answer: None swallows it.
Fault = Callable[[int, Answer], Answer | None]


class LocalGrid(NamedRunGrid):
    """Nodes by number, each with a context of its own; bytes take the way they take on a wire."""

    def __init__(
        self,
        app: ClientApp,
        nodes: Mapping[int, dict[str, Any]],  # configuration by node
        *,
        run: int = 7,
        run_config: dict[str, Any] | None = None,
        fault: Fault = lambda _, message: message,
        pool: Executor | None = None,
    ) -> None:
        """Nodes answer one after the other in a thread, or wherever `pool` runs them."""
        super().__init__(run)
        self.trained: list[str] = []  # message ids, one each time an app ran "train"
        self.traffic: dict[int, tuple[int, int]] = {}
        self._app = app
        self._fault = fault
        self._contexts = {
            node: Context(run, node, config, RecordDict(), run_config or {})
            for node, config in nodes.items()
        }
        self._pool = pool or ThreadPoolExecutor(1, thread_name_prefix="node")
        self._answers: dict[str, Future[Message | None]] = {}

    def get_node_ids(self) -> Iterable[int]:
        """All nodes."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Hands messages to their nodes; the same message has the same id and runs once."""
        ids = []
        bodies: dict[int, bytes] = {}
        for message in messages:
            body = bodies.setdefault(id(message.content), codec.pack(message.content))
            message_id = message_id_of(self._run, message, codec.digest(body))
            name_message(message, message_id)
            if message_id not in self._answers:
                self._answers[message_id] = self._pool.submit(self._ask, message, body)
            ids.append(message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Those of the answers that are there; each is given once."""
        found = []
        for message_id in message_ids:
            answer = self._answers.get(message_id)
            if answer is not None and answer.done():
                del self._answers[message_id]
                if (message := answer.result()) is not None:
                    found.append(message)
        return found

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """See `Grid`."""
        answers = [self._answers[each] for each in self.push_messages(messages)]
        found = [answer.result(timeout) for answer in answers]
        return [message for message in found if message is not None]

    def _ask(self, message: Message, body: bytes) -> Message | None:
        node = message.metadata.dst_node_id
        received = instruction(
            codec.unpack(body),
            run=self._run,
            message_id=message.metadata.message_id,
            node=node,
            message_type=message.metadata.message_type,
            ttl=message.metadata.ttl,
        )
        if message.metadata.message_type == "train":
            self.trained.append(message.metadata.message_id)
        return self._carry(message, self._fault(node, self._answer(received)), len(body))

    def _answer(self, received: Message) -> Message:
        try:
            return self._app(
                message=received, context=self._contexts[received.metadata.dst_node_id]
            )
        except Exception as error:  # noqa: BLE001 - whatever an app raises is its node's answer
            return Message(Error(FAILED, f"{type(error).__name__}: {error}"), reply_to=received)

    def _carry(self, message: Message, answer: Message | None, down: int) -> Message | None:
        """The answer as the hub makes it from bytes."""
        node = message.metadata.dst_node_id
        so_far = self.traffic.get(node, (0, 0))
        self.traffic[node] = (so_far[0] + down, so_far[1])
        if answer is None:
            return None
        if answer.has_error():
            return Message(answer.error, reply_to=message)
        data = codec.pack(answer.content)
        self.traffic[node] = (so_far[0] + down, so_far[1] + len(data))
        return Message(codec.unpack(data), reply_to=message)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
