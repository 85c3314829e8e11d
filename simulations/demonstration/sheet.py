"""The contact sheet: every picture with its uncertainty map and who drew which token."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from cloud_hub.store.queries import DeviceRow
from fleet.errors import OutputError
from simulations.demonstration import palette
from simulations.demonstration.pictures import DECISIONS, ToldPicture, score_range

ZOOM = 4
MAP = 108
GAP = 12
PAD = 14
MARGIN = 40
HEADER = 132
COLUMN_HEAD = 58
CAPTION = 34
FOOT = 30
BETWEEN = 24

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


def write_sheet(path: Path, pictures: Sequence[ToldPicture], rows: Sequence[DeviceRow]) -> None:
    """Write the sheet as a PNG: a column a device, a card a picture.

    Raises:
        OutputError: The file cannot be written.
    """
    columns = _columns(pictures)
    sheet = _Sheet(columns, {row.node_id: row for row in rows}, score_range(list(pictures)))
    try:
        sheet.draw().save(path)
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror}") from error


class _Sheet:
    """One sheet in the making."""

    def __init__(
        self,
        columns: list[list[ToldPicture]],
        rows: dict[str, DeviceRow],
        scores: tuple[float, float],
    ) -> None:
        self._columns = columns
        self._rows = rows
        self._scores = scores
        side = columns[0][0].picture.made.side * ZOOM
        self._side = side
        self._card = (side + GAP + MAP + 2 * PAD, CAPTION + side + FOOT + 2 * PAD - 10)
        tallest = max(len(column) for column in columns)
        width = 2 * MARGIN + len(columns) * self._card[0] + (len(columns) - 1) * BETWEEN
        height = HEADER + COLUMN_HEAD + tallest * (self._card[1] + BETWEEN) + MARGIN - BETWEEN
        self._image = Image.new("RGB", (width, height), palette.PAPER)
        self._pen = ImageDraw.Draw(self._image)

    def draw(self) -> Image.Image:
        """Header, legend and all cards."""
        self._header()
        for index, column in enumerate(self._columns):
            x = MARGIN + index * (self._card[0] + BETWEEN)
            self._column_head(x, column[0])
            for row, told in enumerate(column):
                self._draw_card(x, HEADER + COLUMN_HEAD + row * (self._card[1] + BETWEEN), told)
        return self._image

    def _header(self) -> None:
        self._text((MARGIN, 30), "Twelve pictures, three devices, one hub", 30)
        line = "Each device draws what it is sure of and asks the cloud about the rest."
        self._text((MARGIN, 72), line, 15, palette.QUIET)
        self._decision_legend(y=104)
        self._ramp_legend(y=104)

    def _decision_legend(self, y: int) -> None:
        x = MARGIN
        for name in self._present():
            self._pen.rounded_rectangle(
                (x, y, x + 14, y + 14), 3, fill=palette.DECISION_COLOURS[name]
            )
            self._text((x + 21, y - 1), name, 13)
            x += 21 + int(self._pen.textlength(name, _font(13))) + 22

    def _ramp_legend(self, y: int) -> None:
        width = 150
        right = self._image.width - MARGIN
        left = right - width - int(self._pen.textlength("unsure", _font(13))) - 8
        ramp = palette.ramp_pixels(np.linspace(0, 1, width))[None].repeat(14, axis=0)
        self._image.paste(Image.fromarray(ramp), (left, y))
        self._text((left + width + 8, y - 1), "unsure", 13)
        before = int(self._pen.textlength("certain", _font(13))) + 8
        self._text((left - before, y - 1), "certain", 13)

    def _present(self) -> list[str]:
        seen = {
            int(code) for column in self._columns for told in column for code in told.decisions.flat
        }
        return [name for code, name in enumerate(DECISIONS) if code in seen]

    def _column_head(self, x: int, first: ToldPicture) -> None:
        plan = first.picture.plan
        self._text((x, HEADER + 2), plan.node, 19)
        row = self._rows.get(plan.node)
        figures = (
            ""
            if row is None or row.cloud_share is None
            else (f" · {row.cloud_share:.0%} cloud · {row.tokens_per_s or 0:.0f} tokens/s")
        )
        self._text((x, HEADER + 28), plan.place + figures, 13, palette.QUIET)

    def _draw_card(self, x: int, y: int, told: ToldPicture) -> None:
        width, height = self._card
        self._pen.rounded_rectangle(
            (x, y, x + width, y + height), 10, fill=palette.CARD, outline=palette.EDGE
        )
        left, top = x + PAD, y + PAD
        self._text((left, top - 4), _fit(told.picture.caption, 40), 16)
        top += CAPTION - 8
        self._paste_picture((left, top), told)
        self._paste_maps((left + self._side + GAP, top), told)
        self._text((left, top + self._side + 9), _story(told), 12, palette.QUIET)

    def _paste_picture(self, at: tuple[int, int], told: ToldPicture) -> None:
        picture = Image.fromarray(told.picture.made.image)
        size = (self._side, self._side)
        self._image.paste(picture.resize(size, Image.Resampling.LANCZOS), at)
        self._pen.rectangle((at[0], at[1], at[0] + size[0], at[1] + size[1]), outline=palette.EDGE)

    def _paste_maps(self, at: tuple[int, int], told: ToldPicture) -> None:
        low, high = self._scores
        x, y = at
        maps = (
            ("uncertainty", palette.ramp_pixels((np.log10(told.scores) - low) / (high - low))),
            ("who decided", palette.decision_pixels(told.decisions)),
        )
        step = self._side - MAP - 18
        for index, (name, pixels) in enumerate(maps):
            top = y + index * step
            self._text((x, top - 1), name, 12, palette.QUIET)
            cells = Image.fromarray(pixels).resize((MAP, MAP), Image.Resampling.NEAREST)
            self._image.paste(cells, (x, top + 18))

    def _text(
        self, at: tuple[int, int], text: str, size: int, colour: palette.Rgb = palette.INK
    ) -> None:
        self._pen.text(at, text, fill=colour, font=_font(size))


def _columns(pictures: Sequence[ToldPicture]) -> list[list[ToldPicture]]:
    nodes: dict[str, list[ToldPicture]] = {}
    for told in pictures:
        nodes.setdefault(told.picture.plan.node, []).append(told)
    return list(nodes.values())


def _story(told: ToldPicture) -> str:
    made = told.picture.made
    fallback = f" · {made.fallback}" if made.fallback else ""
    return (
        f"{made.local_share:.0%} local · {told.cloud_share:.0%} cloud · {made.corrected} corrected"
        f" · {made.round_trips} round trips · {made.duration_s:.1f} s{fallback}"
    )


def _fit(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _font(size: int) -> Font:
    return ImageFont.load_default(size)
