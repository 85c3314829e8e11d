"""A Python client of the agent on this machine: `EdgeClient().generate("google: red heart")`."""

import http.client
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from edge_agent.answer import Glimpse, Made, Step
from edge_agent.endpoint import HOST, Endpoint, find
from edge_agent.settings import AgentSettings, WithoutCloud
from fleet import errors
from fleet.errors import FleetError, TransportError

STATUS_S = 10.0
SILENCE_S = 20.0  # the agent says something at least every five seconds


class NoAgentError(TransportError):
    """No agent runs on the state folder."""


class EdgeClient:
    """Asks the agent that runs on a state folder; one request at a time."""

    def __init__(self, state_dir: Path | None = None) -> None:
        """Finds the agent's address when it is asked, not before.

        Args:
            state_dir: The agent's state folder; None takes the one of the settings.
        """
        folder = state_dir.expanduser() if state_dir else AgentSettings().state_path
        self._file = folder / "api.json"
        self._caller = f"{os.getuid()}-{os.getpid()}"

    def generate(  # noqa: PLR0913 - what one may say about a picture
        self,
        caption: str,
        *,
        seed: int | None = None,
        policy: str | None = None,
        deadline_s: float | None = None,
        without_cloud: WithoutCloud | None = None,
        on_step: Callable[[Step], None] = lambda _: None,
        on_preview: Callable[[Glimpse], None] | None = None,
    ) -> Made:
        """The picture of `caption`; what is None is taken from the agent's settings.

        `on_preview` gets the picture as far as its rows are final, a few times a second.

        Raises:
            NoAgentError: No agent runs on the state folder.
            FleetError: Whatever the agent says is wrong, as the error that it raised.
        """
        wish = {
            "caption": caption,
            "seed": seed,
            "policy": policy,
            "deadline_s": deadline_s,
            "without_cloud": without_cloud,
            "caller": self._caller,
            "previews": on_preview is not None,
        }
        with self._asking("POST", "/v1/pictures", json.dumps(wish), SILENCE_S) as response:
            for kind, data in _events(response):
                if kind == "made":
                    return Made.model_validate_json(data)
                if kind == "error":
                    raise _raised(json.loads(data))
                if kind == "step":
                    on_step(Step.model_validate_json(data))
                elif on_preview is not None:
                    on_preview(Glimpse.model_validate_json(data))
        raise TransportError("the agent ended in the middle of the picture: look at its log")

    def status(self) -> dict[str, Any]:
        """What the agent is and sees.

        Raises:
            NoAgentError: No agent runs on the state folder.
        """
        with self._asking("GET", "/v1/status", None, STATUS_S) as response:
            found: dict[str, Any] = json.loads(response.read())
            return found

    def pictures(self) -> list[dict[str, Any]]:
        """Pictures that wait to be corrected, are, or will not be: `state` says which.

        Raises:
            NoAgentError: No agent runs on the state folder.
        """
        with self._asking("GET", "/v1/pictures", None, STATUS_S) as response:
            found: list[dict[str, Any]] = json.loads(response.read())
            return found

    def picture(self, generation_id: str) -> Made:
        """The newest version of one of them; `repairs` tells whether it is a corrected one.

        Raises:
            NoAgentError: No agent runs on the state folder.
            InvalidInputError: It is not kept, or no more.
        """
        path = f"/v1/pictures/{quote(generation_id, safe='')}"
        with self._asking("GET", path, None, STATUS_S) as response:
            return Made.model_validate_json(response.read())

    @contextmanager
    def _asking(
        self, method: str, path: str, body: str | None, silence_s: float
    ) -> Iterator[http.client.HTTPResponse]:
        """The response to one request.

        The file of an agent that was killed stays behind: whoever has its port now is not
        that agent, and does not know the token.
        """
        endpoint = find(self._file)
        if endpoint is None:
            raise NoAgentError(f"no agent runs on {self._file.parent}: start `edge_agent run`")
        connection = http.client.HTTPConnection(HOST, endpoint.port, timeout=silence_s)
        try:
            try:
                connection.request(method, path, body, _headers(endpoint))
                response = connection.getresponse()
            except TimeoutError as error:
                raise TransportError(
                    f"the agent does not answer within {silence_s:g} s: look at its log"
                ) from error
            except (OSError, http.client.HTTPException) as error:
                raise self._gone() from error
            if response.status in {401, 404}:
                raise self._gone()
            if response.status == 422:
                raise _raised(json.loads(response.read()))
            try:
                yield response
            except (OSError, http.client.HTTPException) as error:
                raise TransportError(
                    "the agent ended in the middle of the picture: look at its log"
                ) from error
        finally:
            connection.close()

    def _gone(self) -> NoAgentError:
        return NoAgentError(
            f"the agent that wrote {self._file} is gone: start `edge_agent run` again"
        )


def _headers(endpoint: Endpoint) -> dict[str, str]:
    return {"authorization": f"Bearer {endpoint.token}", "content-type": "application/json"}


def _events(response: http.client.HTTPResponse) -> Iterator[tuple[str, str]]:
    """Server-sent events as (kind, data)."""
    kind = ""
    while line := response.readline():
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name == "event":
            kind = value
        elif name == "data":
            yield kind, value


def _raised(said: dict[str, Any]) -> FleetError:
    """The agent's error as the same error here."""
    kind = getattr(errors, str(said.get("error")), FleetError)
    known = isinstance(kind, type) and issubclass(kind, FleetError)
    return (kind if known else FleetError)(str(said.get("sentence")))
