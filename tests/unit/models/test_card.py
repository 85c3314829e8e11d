"""A model card's measured part comes from the files of the training run."""

import json
from pathlib import Path

import numpy as np
import pytest

from fleet.errors import FleetError
from fleet.training.card import CURVES, draw_curves, emoji_of_splits
from fleet.training.pictures import Pictures


def test_held_out_names_are_listed_once_whatever_the_styles() -> None:
    captions = ["google: cat", "google: dog", "twitter: dog", "fluent: keycap: *"]
    split = np.array([0, 1, 1, 2], dtype=np.uint8)
    pixels, weight = np.zeros((4, 1, 1, 3), dtype=np.uint8), np.ones(4, dtype=np.float32)

    names = emoji_of_splits(Pictures(pixels, captions, split, weight))

    assert {"validation": ["dog"], "test": ["keycap: *"]} == names


def test_curves_show_every_stage(tmp_path: Path) -> None:
    for name, lines in CURVES:
        rows = [{"step": n, "s": 60.0 * n, **{key: n for _, key, _ in lines}} for n in (1, 2, 3)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))

    shown = {color for _, color in draw_curves(tmp_path).getcolors(1 << 20) or []}

    assert {(0xC4, 0x3C, 0x39), (0x1F, 0x6F, 0xB4)} <= shown


def test_a_stage_without_a_curve_has_no_panel(tmp_path: Path) -> None:
    row = {"step": 1, "s": 1.0, "loss": 2.0, "validation": 3.0}
    (tmp_path / "cloud.jsonl").write_text("\n".join([json.dumps(row)] * 2))

    one = draw_curves(tmp_path)

    (tmp_path / "tokenizer.jsonl").write_text(json.dumps({"step": 1, "s": 1.0, "psnr_db": 20.0}))
    (tmp_path / "device.jsonl").write_text(json.dumps({**row, "kl": 1.0, "validation_kl": 1.2}))
    assert draw_curves(tmp_path).height == 2 * one.height


def test_a_folder_without_curves_is_told(tmp_path: Path) -> None:
    with pytest.raises(FleetError, match="no curves"):
        draw_curves(tmp_path)
