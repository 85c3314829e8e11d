"""The process in which a device trains: `python -m fleet.federation.worker FOLDER [BUNDLE KEY]`.

The agent, which has no torch, asks over the standard streams: a frame is four bytes of length and
a msgpack map. The process ends with its input, and dies with its parent, also while it is paused.
"""

import contextlib
import ctypes
import os
import signal
import sys
from pathlib import Path
from typing import Any, BinaryIO

import msgpack

_PR_SET_PDEATHSIG = 1
_NICENESS = 10


def main(folder: Path, bundle: Path | None, key: Path | None) -> None:
    """Answers requests until the input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints is no answer
    with contextlib.suppress(OSError, AttributeError):  # Linux; elsewhere the input's end does
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.nice(_NICENESS)
    if bundle is not None and key is not None:
        _take_head(folder, bundle, key)
    while (request := read_frame(sys.stdin.buffer)) is not None:
        write_frame(answers, _answer(request, folder))


def read_frame(stream: BinaryIO) -> dict[str, Any] | None:
    """The next frame, or None at the end."""
    head = stream.read(4)
    if len(head) < 4:
        return None
    found: dict[str, Any] = msgpack.unpackb(stream.read(int.from_bytes(head, "big")))
    return found


def write_frame(stream: BinaryIO, fields: dict[str, Any]) -> None:
    """Writes a frame at once."""
    data: bytes = msgpack.packb(fields)
    stream.write(len(data).to_bytes(4, "big") + data)
    stream.flush()


def _take_head(folder: Path, bundle: Path, key: Path) -> None:
    """Keeps the head of the bundle's graph where the app looks for it."""
    from fleet.federation.client_app import HEAD_FILE
    from fleet.models.bundle import STEP_GRAPH, Bundle
    from fleet.models.head_weights import head_of

    folder.mkdir(parents=True, exist_ok=True)
    head_of(Bundle.open(bundle, key).read(STEP_GRAPH)).save(folder / HEAD_FILE)


def _answer(request: dict[str, Any], folder: Path) -> dict[str, Any]:
    try:
        return {"content": _run(request, folder)}
    except Exception as error:  # noqa: BLE001 - whatever an app raises is the node's answer
        return {"error": f"{type(error).__name__}: {error}"[:500]}


def _run(request: dict[str, Any], folder: Path) -> bytes:
    from flwr.app import Context, RecordDict

    from fleet.federation import client_app, codec
    from fleet.federation.flower import instruction

    if request["kind"] != "query":
        import torch

        torch.set_num_threads(1)  # one order of all sums
    message = instruction(
        codec.unpack(request["body"]),
        run=request["run"],
        message_id=request["message_id"],
        node=request["number"],
        message_type=request["kind"],
        ttl=request["deadline_s"],
    )
    about = {"folder": str(folder)}
    context = Context(request["run"], request["number"], about, RecordDict(), {})  # type: ignore[arg-type]
    reply = client_app.app(message=message, context=context)
    return codec.pack(reply.content)


if __name__ == "__main__":
    paths = [Path(each) for each in sys.argv[1:]]
    main(paths[0], *(paths[1:] or (None, None)))
