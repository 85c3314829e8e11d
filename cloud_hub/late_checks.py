"""Spot checks of tokens that no forward has run: of pictures that never called, and of last rows.

Devices send them with the records of a share of their pictures (`Unseen`). They wait here, bounded,
until the engine has nothing to do and a slot is free; then one picture after the other is opened
with its history, watched like any other, and closed. A request that comes meanwhile waits at most
for one forward of `engine.chunk` tokens. What cannot be checked is counted and dropped.
"""

import asyncio
from collections import deque
from dataclasses import replace

from pydantic import ValidationError

from cloud_hub.engine.loop import Engine
from cloud_hub.engine.requests import Answer, Opened, Opening, Unchecked
from cloud_hub.notices import Notices
from cloud_hub.verification import Service, read_open
from fleet.ids import NodeId, RequestId, new_id
from fleet.logs import get_logger
from fleet.protocol.messages import GenerationOpen, GenerationRecord, Refused

log = get_logger(__name__)

_MOST_WAITING = 256  # records, each of some kilobytes
_EVERY_S = 0.2
_DEADLINE_S = 30.0  # for one picture


class LateChecks:
    """Has pictures run that the cloud did not see, one at a time."""

    def __init__(self, engine: Engine, service: Service, notices: Notices, share: float) -> None:
        """`share` of the tokens is checked; at 0 no picture is run."""
        self._share = share
        self._engine = engine
        self._service = service
        self._notices = notices
        self._waiting: deque[tuple[NodeId, GenerationRecord]] = deque()

    def take(self, node: NodeId, record: GenerationRecord) -> None:
        """Takes a stored record; beyond the bound the oldest that waits is dropped."""
        if record.unseen is None or self._share <= 0:
            return
        if len(self._waiting) >= _MOST_WAITING:
            lost, _ = self._waiting.popleft()
            self._drop(lost, "too many wait")
        self._waiting.append((node, record))

    async def run(self) -> None:
        """Works whenever the engine does not, until cancelled."""
        while True:
            await asyncio.sleep(_EVERY_S)
            load = self._engine.load
            if self._waiting and self._engine.is_idle and load.sessions < load.slots:
                node, record = self._waiting.popleft()
                try:
                    await self._check(node, record)
                except Exception:
                    log.exception("spot check failed", node=node)

    async def _check(self, node: NodeId, record: GenerationRecord) -> None:
        opening = await asyncio.to_thread(_opening, self._service, node, record)
        if isinstance(opening, str):
            self._drop(node, opening)
            return
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        async def reply(answer: Answer) -> None:
            if not answered.done():
                answered.set_result(answer)

        try:
            async with asyncio.timeout(_DEADLINE_S):
                answer = self._engine.submit(opening, reply) or await answered
        except TimeoutError:
            self._drop(node, "the engine is busy")
        else:
            if not isinstance(answer, Opened):
                self._drop(node, "the engine is busy")
        finally:
            self._engine.close(opening.key)

    def _drop(self, node: NodeId, why: str) -> None:
        self._notices.warn("spot check dropped", node, why)


def _opening(service: Service, node: NodeId, record: GenerationRecord) -> Opening | str:
    """The record's picture as an opening, or why it cannot be one."""
    unseen = record.unseen
    assert unseen is not None  # noqa: S101 - `take` sees to it
    try:
        message = GenerationOpen(
            request_id=RequestId(new_id()),
            boot_id=record.boot_id,
            generation_id=record.generation_id,
            family=unseen.family,
            caption=unseen.caption,
            seed=record.seed,
            sampling=record.sampling,
            prefix_tokens=0,
            use_features=unseen.use_features,
            history=unseen.history,
            deadline_s=_DEADLINE_S,
        )
    except ValidationError:
        return "the record's seed is out of range"
    found = read_open(service, node, message)
    if isinstance(found, Refused):
        return f"the picture cannot be run: {found.reason}"
    return replace(found, unchecked=Unchecked(unseen.start, unseen.share))
