"""The page of the demonstration: one file that opens anywhere, without a server or a network."""

import base64
import html
import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from cloud_hub.store.queries import DeviceRow
from fleet.errors import OutputError
from simulations.demonstration import palette
from simulations.demonstration.pictures import DECISIONS, ToldPicture, score_range

TEMPLATE = "page.html"


def write_page(out: Path, pictures: Sequence[ToldPicture], rows: Sequence[DeviceRow]) -> None:
    """Write `index.html`, and every picture as a PNG of its own in `pictures/`.

    Raises:
        OutputError: A file cannot be written.
    """
    try:
        folder = out / "pictures"
        folder.mkdir(exist_ok=True)
        for told in pictures:
            (folder / _file_name(told)).write_bytes(_png(told.picture.made.image))
        (out / "index.html").write_text(page(pictures, rows), encoding="utf-8")
    except OSError as error:
        raise OutputError(f"{out} cannot be written: {error.strerror}") from error


def page(pictures: Sequence[ToldPicture], rows: Sequence[DeviceRow]) -> str:
    """The page as HTML."""
    content = {
        "pictures": [_picture(told) for told in pictures],
        "devices": [asdict(row) for row in rows],
        "decisions": [
            {
                "name": name,
                "colour": "#{:02x}{:02x}{:02x}".format(*palette.DECISION_COLOURS[name]),
                "meaning": palette.DECISION_MEANINGS[name],
            }
            for name in DECISIONS
        ],
        "ramp": palette.ramp_pixels(np.linspace(0, 1, 64)).tolist(),
        "range": score_range(list(pictures)),
    }
    # Inside a script element only "</" could end it early.
    data = json.dumps(content, allow_nan=False).replace("</", "<\\/")
    template = (
        resources.files("simulations.demonstration").joinpath(TEMPLATE).read_text(encoding="utf-8")
    )
    count = html.escape(f"{len(pictures)} pictures, {len(rows)} devices, one hub")
    return template.replace("@TITLE@", count).replace("@DATA@", data)


def _picture(told: ToldPicture) -> dict[str, Any]:
    made, plan = told.picture.made, told.picture.plan
    facts = made.model_dump(mode="json", exclude={"pixels", "notes"})
    return {
        **facts,
        "node": plan.node,
        "place": plan.place,
        "file": f"pictures/{_file_name(told)}",
        "png": base64.b64encode(_png(made.image)).decode(),
        "cloud_share": told.cloud_share,
        "local_share": made.local_share,
        "scores": [float(f"{value:.4g}") for value in told.scores.ravel()],
        "marks": told.decisions.ravel().tolist(),
    }


def _png(pixels: np.ndarray[Any, np.dtype[np.uint8]]) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG", optimize=True)
    return stream.getvalue()


def _file_name(told: ToldPicture) -> str:
    words = "".join(letter if letter.isalnum() else "-" for letter in told.picture.caption)
    return f"{words.strip('-').replace('--', '-')}-{told.picture.made.seed}.png"
