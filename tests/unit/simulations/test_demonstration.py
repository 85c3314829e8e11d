"""The demonstration's layout from made-up pictures: files, colours, text that needs escaping."""

import base64
import csv
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cloud_hub.store.queries import DeviceRow, Story
from edge_agent.answer import Made
from fleet.errors import OutputError
from fleet.protocol.arrays import pack_scores
from simulations.demonstration import palette
from simulations.demonstration.page import page, write_page
from simulations.demonstration.pictures import DECISIONS, Picture, ToldPicture, score_range, told
from simulations.demonstration.plan import DEVICES, DevicePlan
from simulations.demonstration.run import run_demo
from simulations.demonstration.sheet import write_sheet
from simulations.demonstration.tables import write_tables


def made(caption: str, seed: int = 1) -> Made:
    pixels = np.random.default_rng(seed).integers(0, 256, (64, 64, 3), np.uint8)
    counts = dict.fromkeys(
        ("wasted", "retries", "reopened", "bytes_up", "bytes_down", "unverified"), 0
    )
    return Made(
        generation_id=f"g{seed}",
        caption=caption,
        seed=seed,
        policy="uncertainty",
        threshold=0.1,
        tokens=256,
        prefix=15,
        local=180,
        verified=61,
        corrected=20,
        round_trips=9,
        forwards=76,
        duration_s=1.5,
        device_s=0.3,
        wait_s=0.2,
        device_version="d",
        cloud_version="c",
        fallback="",
        notes=[],
        side=64,
        pixels=base64.b64encode(pixels.tobytes()).decode(),
        repairs="",
        **counts,
    )


def story(seed: int) -> Story:
    rng = np.random.default_rng(seed)
    return Story(
        node_id="a",
        threshold=0.1,
        scores=pack_scores(10 ** rng.uniform(-4, -1, 256)),
        decisions=rng.integers(0, 4, 256).astype(np.uint8).tobytes(),
        confidences=b"",
    )


def pictures(caption: str = "google: red heart") -> list[ToldPicture]:
    plans = [DevicePlan(f"device-{k}", "none", "here", ((caption, k),)) for k in range(2)]
    return [told(Picture(plan, made(caption, k)), story(k)) for k, plan in enumerate(plans)]


def row(node: str) -> DeviceRow:
    return DeviceRow(node, "ready", 4, 1024, 0.3, 0.7, 0.2, 9.0, 2000.0, 400.0, 1.2, 1.9, 150.0, 0)


def test_there_are_twelve_pictures_on_three_devices_one_behind_a_slow_link() -> None:
    assert len(DEVICES) == 3
    assert sum(len(plan.orders) for plan in DEVICES) == 12
    assert [plan.link for plan in DEVICES].count("4g") == 1
    assert len({plan.node for plan in DEVICES}) == 3


def test_the_sheet_shows_each_decision_in_its_colour(tmp_path: Path) -> None:
    write_sheet(tmp_path / "sheet.png", pictures(), [row("device-0"), row("device-1")])

    with Image.open(tmp_path / "sheet.png") as sheet:
        colours = {colour for _, colour in sheet.getcolors(1 << 24) or []}
    for name in DECISIONS[:4]:
        assert palette.DECISION_COLOURS[name] in colours


def test_a_sheet_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"nowhere/sheet\.png cannot be written"):
        write_sheet(tmp_path / "nowhere" / "sheet.png", pictures(), [])


def test_the_page_stands_alone_and_holds_every_token(tmp_path: Path) -> None:
    write_page(tmp_path, pictures(), [row("device-0")])

    text = (tmp_path / "index.html").read_text()
    data = text.split('id="data">')[1].split("</script>")[0]
    content = json.loads(data)
    assert "http://" not in text
    assert "https://" not in text
    assert [len(each["marks"]) for each in content["pictures"]] == [256, 256]
    for each in content["pictures"]:
        assert (tmp_path / each["file"]).exists()


def test_a_caption_cannot_end_the_page_s_script() -> None:
    text = page(pictures("</script><b>"), [])

    assert "</script><b>" not in text
    assert text.count("</script>") == 2


def test_the_ramp_gets_lighter_all_the_way() -> None:
    ramp = palette.ramp_pixels(np.linspace(0, 1, 64)).astype(float)

    lightness = ramp @ [0.2126, 0.7152, 0.0722]
    assert (np.diff(lightness) > 0).all()


def test_one_range_of_scores_holds_all_maps() -> None:
    shown = pictures()

    low, high = score_range(shown)

    values = np.log10(np.concatenate([each.scores.ravel() for each in shown]))
    assert low < high
    assert ((values >= low) & (values <= high)).mean() > 0.95


def test_the_table_is_csv_and_text(tmp_path: Path) -> None:
    write_tables(tmp_path, [row("device-0"), row("device-1")])

    with (tmp_path / "devices.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [each["node_id"] for each in rows] == ["device-0", "device-1"]
    assert float(rows[0]["cloud_share"]) == 0.3
    assert "device-1" in (tmp_path / "devices.txt").read_text()


def test_a_folder_of_somebody_else_is_not_emptied(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")

    with pytest.raises(OutputError, match="holds something that no demo wrote"):
        run_demo(tmp_path, None)

    assert (tmp_path / "thesis.txt").exists()
