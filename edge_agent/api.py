"""The loopback HTTP interface of a running agent; every request carries the token.

    GET  /v1/status     what the agent is and sees (JSON)
    POST /v1/pictures   a wish as JSON; the answer is a stream of server-sent events:
                        `step` (edge_agent.answer.Step), `preview` (Glimpse) if the wish says
                        `previews`, then `made` (Made) or `error`
    GET  /v1/pictures       pictures on the shelf: to be corrected, or corrected
    GET  /v1/pictures/{id}  the newest version of one of them (Made)

A caller that hangs up cancels its picture. At most `EVENT_LIMIT` events wait for a slow
reader: beyond it steps and previews are left out, the last event never.
"""

import asyncio
import hmac
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from edge_agent.answer import Glimpse, Made, Step, glimpse_of, step_of
from edge_agent.generate import Preview, Progress
from edge_agent.maker import Wish
from edge_agent.settings import WithoutCloud
from edge_agent.shelf import Shelf, Shelved
from fleet.errors import FleetError, InvalidInputError
from fleet.ids import GenerationId
from fleet.logs import get_logger

log = get_logger(__name__)

EVENT_LIMIT = 32
STEP_S = 0.1  # between two steps told
BODY_LIMIT = 16 << 10
QUIET_S = 5.0  # after so long a stream says that it lives

Make = Callable[[Wish, "Events"], Awaitable[Made]]
Status = Callable[[], Awaitable[dict[str, Any]]]
Endpoint = Callable[[Request], Awaitable[Response]]


class WishBody(BaseModel):
    """The body of a request for a picture."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    caption: str
    seed: int | None = None
    policy: str | None = None
    deadline_s: float | None = Field(default=None, gt=0)
    without_cloud: WithoutCloud | None = None
    caller: str = Field(default="", max_length=64)
    previews: bool = False


@dataclass(slots=True)
class Events:
    """One caller's stream."""

    queue: "asyncio.Queue[tuple[str, str]]" = field(
        default_factory=lambda: asyncio.Queue(EVENT_LIMIT)
    )
    _told: float = 0.0

    def queued(self, ahead: int) -> None:
        """Tells the caller that others come first."""
        self._offer(Step(state="queued", ahead=ahead))

    def progress(self, progress: Progress) -> None:
        """Tells the caller how far the picture is, now and then."""
        now = asyncio.get_running_loop().time()
        if now - self._told >= STEP_S:
            self._told = now
            self._offer(step_of(progress))

    def preview(self, preview: Preview) -> None:
        """Shows the caller the picture so far."""
        self._offer(glimpse_of(preview), "preview")

    def _offer(self, told: Step | Glimpse, kind: str = "step") -> None:
        if not self.queue.full():
            self.queue.put_nowait((kind, told.model_dump_json()))


def application(make: Make, status: Status, shelf: Shelf, token: str) -> Starlette:
    """The interface as an ASGI application."""

    async def get_status(_: Request) -> Response:
        return JSONResponse(await status())

    async def post_picture(request: Request) -> Response:
        return StreamingResponse(
            _stream(make, await _wish(request)),
            media_type="text/event-stream",
            headers={"cache-control": "no-store"},
        )

    async def get_pictures(_: Request) -> Response:
        return JSONResponse([_entry(one) for one in shelf.all()])

    async def get_picture(request: Request) -> Response:
        shelved = shelf.find(GenerationId(request.path_params["id"]))
        if shelved is None:
            raise InvalidInputError(
                "no such picture is kept: `edge_agent pictures` lists those that are"
            )
        return JSONResponse(shelved.made.model_dump(mode="json"))

    endpoints: list[tuple[str, str, Endpoint]] = [
        ("GET", "/v1/status", get_status),
        ("POST", "/v1/pictures", post_picture),
        ("GET", "/v1/pictures", get_pictures),
        ("GET", "/v1/pictures/{id}", get_picture),
    ]
    return Starlette(
        routes=[
            Route(path, _guarded(endpoint, token), methods=[method])
            for method, path, endpoint in endpoints
        ]
    )


def _guarded(endpoint: Endpoint, token: str) -> Endpoint:
    """Asks for the token first, and answers a bad request with its sentence."""

    async def guarded(request: Request) -> Response:
        refusal = _refuse(request, token)
        if refusal is not None:
            return refusal
        try:
            return await endpoint(request)
        except InvalidInputError as error:
            return JSONResponse(_error(error), status_code=422)

    return guarded


def _refuse(request: Request, token: str) -> Response | None:
    given = request.headers.get("authorization", "")
    if hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
        return None
    return JSONResponse({"error": "Refused", "sentence": "the token is wrong"}, status_code=401)


async def _wish(request: Request) -> Wish:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > BODY_LIMIT:
            raise InvalidInputError(f"the wish is over {BODY_LIMIT} bytes: shorten the caption")
    try:
        wish = WishBody.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InvalidInputError(f"{where or 'the wish'}: {first['msg']}") from error
    return Wish(**wish.model_dump())


async def _stream(make: Make, wish: Wish) -> AsyncIterator[str]:
    events = Events()

    async def work() -> None:
        try:
            made = await make(wish, events)
            last = ("made", made.model_dump_json())
        except FleetError as error:
            last = ("error", json.dumps(_error(error)))
        except Exception:  # one picture's bug must not end the others
            log.exception("picture failed", caption=wish.caption)
            bug = FleetError("the picture failed by a bug: the agent's log has the traceback")
            last = ("error", json.dumps(_error(bug)))
        await events.queue.put(last)

    task = asyncio.create_task(work(), name="picture for a caller")
    try:
        kind = ""
        while kind not in {"made", "error"}:
            kind, data = await _next(events, task)
            yield f"event: {kind}\ndata: {data}\n\n" if kind else ": still there\n\n"
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _next(events: Events, task: "asyncio.Task[None]") -> tuple[str, str]:
    """The next event, or ("", "") after a while; what goes wrong in the task is raised here."""
    getting = asyncio.create_task(events.queue.get(), name="next event")
    try:
        await asyncio.wait([getting, task], timeout=QUIET_S, return_when=asyncio.FIRST_COMPLETED)
        if getting.done():
            return getting.result()
        if task.done():
            task.result()
            return await getting
        return "", ""
    finally:
        getting.cancel()


def _entry(shelved: Shelved) -> dict[str, Any]:
    return {
        "generation_id": shelved.generation_id,
        "caption": shelved.made.caption,
        "seed": shelved.made.seed,
        "state": shelved.state,
        "since": shelved.since,
        "unverified": shelved.made.unverified,
        "detail": shelved.detail,
    }


def _error(error: FleetError) -> dict[str, Any]:
    return {"error": type(error).__name__, "sentence": str(error)}
