"""Reply: what a forward gave goes to those who asked; what failed or came too late, too."""

from collections.abc import Sequence

from cloud_hub.engine.collect import Collector
from cloud_hub.engine.counters import Counters
from cloud_hub.engine.forward import Step
from cloud_hub.engine.requests import Answer, Denied, Full, Judged, Opened, Opening, Reason
from cloud_hub.engine.settling import Broken, Result
from cloud_hub.engine.steps import Task

_FAILED_RETRY_S = 1.0


class Replier:
    """Answers every admitted request once."""

    def __init__(self, collector: Collector, counters: Counters) -> None:
        self._collector = collector
        self._counters = counters

    async def deliver(self, steps: Sequence[Step], results: Sequence[Result]) -> None:
        """Answers the steps of a forward, or queues their next."""
        for (task, _), result in zip(steps, results, strict=True):
            if not task.session.is_open:
                continue  # its device closed it meanwhile
            match result:
                case None:
                    self._collector.resume(task)
                case Broken():
                    self._counters.failed += 1
                    await self._end(task, Full(_FAILED_RETRY_S))
                case _:
                    await self.answer(task, result)

    async def answer(self, task: Task, answer: Answer) -> None:
        """Sends an answer; a result is kept for the request's repeats."""
        if isinstance(answer, Opened | Judged):
            task.session.remember(task.request.request_id, answer)
        seconds = self._collector.finish(task)
        if task.session.unchecked is not None:
            self._counters.looked += isinstance(answer, Opened)
        else:
            self._counters.count(answer, task.request)
            self._counters.timed(answer, seconds)
        await task.reply(answer)

    async def give_back(self, task: Task, retry_after_s: float) -> None:
        """The deadline passed before the request's turn: whoever still listens may ask again."""
        self._counters.late += 1
        if isinstance(task.request, Opening):
            await self._end(task, Full(retry_after_s))
        else:
            await self.answer(task, Full(retry_after_s))

    async def _end(self, task: Task, answer: Answer) -> None:
        """Answers a request and ends its session, and tells those who wait for it."""
        await self.answer(task, answer)
        for waiting in self._collector.close(task.request.key):
            await self.answer(waiting, Denied(Reason.UNKNOWN_SESSION))
