"""The cloud as one picture sees it: open a session, have backlogs judged, close."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_agent.device import Order
from edge_agent.drafts import Backlog, Verdict
from fleet.ids import BootId, GenerationId, NodeId, RequestId, WorkerId
from fleet.protocol import topics
from fleet.protocol.arrays import (
    pack_features,
    pack_laws,
    pack_mask,
    pack_tokens,
    unpack_confidences,
    unpack_top_laws,
)
from fleet.protocol.codec import encode
from fleet.protocol.messages import (
    GenerationClose,
    GenerationOpen,
    History,
    VerifyRequest,
    VerifyResponse,
)
from fleet.transport.base import Transport
from fleet.transport.calls import Answer, Calls, CallStats, Request

Features = NDArray[np.int8]  # [number of local tokens, 48]


@dataclass(frozen=True, slots=True)
class Patience:
    """How long requests are waited for, and when they are sent again at the latest."""

    open_s: float
    verify_s: float
    retry_after_s: float


@dataclass(frozen=True, slots=True)
class Speaker:
    """Who asks: one boot of one node, for the tokens of one family.

    It learns from `law_size` codes of the cloud's law, at a share of the positions that the hub
    chooses; 0: not at all.
    """

    node: NodeId
    boot: BootId
    family: str
    law_size: int = 0


@dataclass(frozen=True, slots=True)
class About:
    """Which request, on which picture, how many seconds that has left, when to ask again."""

    request_id: RequestId
    generation: GenerationId
    deadline_s: float
    repeat_s: float  # until it is sent again


class Verifier:
    """Requests of one boot of one node, answered by whichever worker has the session."""

    def __init__(
        self, transport: Transport, calls: Calls, speaker: Speaker, patience: Patience
    ) -> None:
        self._transport = transport
        self._calls = calls
        self._node = speaker.node
        self._boot = speaker.boot
        self._family = speaker.family
        self._law_size = speaker.law_size
        self._patience = patience
        self.heard_at = 0.0  # seconds since the epoch: the last answer of any worker
        self._listeners: set[Callable[[WorkerId], None]] = set()

    def worker_is_down(self, worker: WorkerId) -> None:
        """Tells every open session that a worker has died or said goodbye."""
        for listener in tuple(self._listeners):
            listener(worker)

    @contextmanager
    def listening(self, listener: Callable[[WorkerId], None]) -> Iterator[None]:
        """Calls `listener` with each worker that goes, until the context ends."""
        self._listeners.add(listener)
        try:
            yield
        finally:
            self._listeners.discard(listener)

    @property
    def longest_repeat_s(self) -> float:
        """Seconds after which an unanswered request goes out again at the latest."""
        return self._patience.retry_after_s

    @property
    def is_connected(self) -> bool:
        """Whether the link to the broker is up."""
        return self._transport.is_connected

    async def wait_connected(self) -> None:
        """Returns when the link is up; the caller sets the deadline."""
        await self._transport.wait_connected()

    async def open(
        self,
        about: About,
        order: Order,
        history: Backlog,
        features: Features,
        *,
        wants_condition: bool = False,
    ) -> tuple[Answer, CallStats]:
        """Asks any worker for a session, and for what the caption means if the device wants that.

        Raises:
            RequestTimeout: No worker answered.
            TransportError: The link was down all the time.
        """
        message = GenerationOpen(
            request_id=about.request_id,
            boot_id=self._boot,
            generation_id=about.generation,
            family=self._family,
            caption=order.caption,
            seed=order.seed,
            sampling=order.sampling,
            prefix_tokens=order.prefix_tokens,
            use_features=order.use_features,
            rule=order.rule.name,
            relaxation=order.rule.relaxation,
            law_size=self._law_size,
            wants_condition=wants_condition,
            branch=history.branch,
            history=History(
                tokens=pack_tokens(history.tokens),
                local=pack_mask(history.local),
                features=pack_features(features),
            ),
            deadline_s=about.deadline_s,
        )
        topic = topics.open_request(self._node)
        return await self._call(topic, message, about, self._patience.open_s)

    async def verify(
        self,
        worker: WorkerId,
        about: About,
        backlog: Backlog,
        features: Features,
    ) -> tuple[Answer, CallStats]:
        """Has `worker` judge a backlog.

        Raises:
            RequestTimeout: The worker did not answer.
            TransportError: The link was down all the time.
        """
        message = VerifyRequest(
            request_id=about.request_id,
            boot_id=self._boot,
            generation_id=about.generation,
            branch=backlog.branch,
            start=backlog.start,
            tokens=pack_tokens(backlog.tokens),
            uncertain=pack_mask(backlog.uncertain),
            local=pack_mask(backlog.local),
            features=pack_features(features),
            laws=pack_laws(backlog.laws),
            deadline_s=about.deadline_s,
        )
        topic = topics.pinned_request(self._node, worker)
        return await self._call(topic, message, about, self._patience.verify_s)

    async def close(self, worker: WorkerId, generation: GenerationId) -> None:
        """Lets `worker` free the session; it is not answered.

        Raises:
            TransportError: The link is down.
        """
        message = GenerationClose(boot_id=self._boot, generation_id=generation)
        topic = topics.pinned_request(self._node, worker)
        await self._transport.publish(topic, encode(message), qos=0)

    async def _call(
        self, topic: str, request: Request, about: About, longest_s: float
    ) -> tuple[Answer, CallStats]:
        deadline_s = min(longest_s, about.deadline_s)
        answer = await self._calls.call(
            topic, request, deadline_s=deadline_s, retry_after_s=about.repeat_s
        )
        self.heard_at = time.time()
        return answer


def verdict(response: VerifyResponse, vocab_size: int) -> Verdict:
    """The verdict in a response, for tokens of so many codes.

    Raises:
        ProtocolError: Its arrays are not what they should be.
    """
    return Verdict(
        branch=response.branch,
        accepted=response.accepted,
        next_token=response.next_token,
        confidences=np.asarray(unpack_confidences(response.confidences), np.float64),
        top_laws=unpack_top_laws(response.top_laws, vocab_size),
    )
