"""An HTTP application inside a program that has a loop, a port and signals of its own."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import uvicorn
from starlette.applications import Starlette

from fleet.errors import AddressInUseError

_END_S = 5.0
_WAITING = 64  # connections not yet taken


@asynccontextmanager
async def serving(app: Starlette, host: str, port: int, setting: str) -> AsyncIterator[int]:
    """Serves until the context ends; gives the port, which is any free one for 0.

    Raises:
        AddressInUseError: Another process holds the port; `setting` names what to change.
    """
    listener = _listen(host, port, setting)
    server = _Server(
        uvicorn.Config(
            app, log_config=None, access_log=False, lifespan="off", ws="none", http="h11"
        )
    )
    task = asyncio.create_task(server.serve(sockets=[listener]), name=f"http {setting}")
    try:
        yield int(listener.getsockname()[1])
    finally:
        server.should_exit = server.force_exit = True
        await asyncio.wait([task], timeout=_END_S)
        listener.close()


class _Server(uvicorn.Server):
    """Uvicorn inside somebody else's program: signals are not its business."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _listen(host: str, port: int, setting: str) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(_WAITING)
    except OSError as error:
        listener.close()
        raise AddressInUseError(
            f"port {port} on {host} is taken: set {setting} to another, or to 0 for any"
        ) from error
    return listener
