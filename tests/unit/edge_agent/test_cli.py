"""The command line: help is quick, what cannot work is a sentence and an exit code."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from PIL import Image

from edge_agent.cli import main
from edge_agent.image_file import check_writable, default_name, write_png
from edge_agent.screen import half_blocks
from fleet.errors import InvalidInputError, OutputError

ROOT = Path(__file__).parents[3]


def invoke(tmp_path: Path, *arguments: str) -> Result:
    config = tmp_path / "agent.toml"
    config.write_text(f'state_dir = "{tmp_path / "state"}"\nbundle = "{tmp_path / "bundle"}"\n')
    return CliRunner().invoke(main, [*arguments, "--config", str(config)])


@pytest.mark.parametrize("verb", ["run", "generate", "pictures", "status", "doctor", "settings"])
def test_every_verb_has_help(verb: str) -> None:
    result = CliRunner().invoke(main, [verb, "--help"])

    assert 0 == result.exit_code
    assert "--config" in result.output


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys, edge_agent.cli;"
        "print([m for m in ('numpy','pydantic','structlog','rich','onnxruntime','uvicorn','torch')"
        " if m in sys.modules])"
    )

    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert "[]" == found.stdout.strip()


def test_settings_are_shown_as_json(tmp_path: Path) -> None:
    result = invoke(tmp_path, "settings")

    assert str(tmp_path / "state") == json.loads(result.output)["state_dir"]


def test_a_misspelt_setting_is_named(tmp_path: Path) -> None:
    config = tmp_path / "wrong.toml"
    config.write_text("[generation]\nwindows = 3\n")

    result = CliRunner().invoke(main, ["settings", "--config", str(config)])

    assert 2 == result.exit_code
    assert "windows" in result.stderr


def test_status_without_an_agent_says_how_to_start_one(tmp_path: Path) -> None:
    result = invoke(tmp_path, "status")

    assert 3 == result.exit_code
    assert "edge_agent run" in result.stderr


@pytest.mark.parametrize(
    ("output", "code", "sentence"),
    [
        ("missing/heart.png", 9, "there is no folder"),
        (".", 2, ".png"),
        ("heart.jpg", 2, ".png"),
    ],
)
def test_an_unusable_output_is_refused_before_anything_else(
    tmp_path: Path, output: str, code: int, sentence: str
) -> None:
    result = invoke(tmp_path, "generate", "google: red heart", "-o", str(tmp_path / output))

    assert code == result.exit_code
    assert sentence in result.stderr
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("verb", [["run"], ["generate", "google: red heart", "-o", "x.png"]])
def test_a_missing_bundle_is_a_sentence(
    tmp_path: Path, verb: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    result = invoke(tmp_path, *verb)

    assert 4 == result.exit_code
    assert str(tmp_path / "bundle") in result.stderr


def test_the_default_name_tells_the_caption() -> None:
    assert Path("google-red-heart.png") == default_name("google: red heart")
    assert Path("picture.png") == default_name("…")


def test_a_picture_is_written_scaled_and_leaves_nothing_else(tmp_path: Path) -> None:
    import numpy as np

    image = np.zeros((4, 4, 3), np.uint8)
    image[0, 0] = 255

    write_png(tmp_path / "a.png", image, 2, "pixels")
    write_png(tmp_path / "b.png", image, 1)

    with Image.open(tmp_path / "a.png") as large, Image.open(tmp_path / "b.png") as small:
        assert ((8, 8), (4, 4)) == (large.size, small.size)
        assert (255, 255, 255) == large.getpixel((1, 1))
    assert ["a.png", "b.png"] == sorted(path.name for path in tmp_path.iterdir())


def test_a_folder_in_place_of_the_picture_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.png").mkdir()

    with pytest.raises(OutputError, match="is a folder"):
        check_writable(tmp_path / "x.png")
    with pytest.raises(InvalidInputError):
        check_writable(tmp_path / "x")


def test_a_preview_is_text_of_two_pixels_a_character() -> None:
    image = np.zeros((64, 64, 3), np.uint8)
    image[0] = (255, 0, 0)

    text = half_blocks(image, 24)

    lines = text.plain.splitlines()
    assert {32} == {len(line) for line in lines}
    assert 16 == len(lines)
    assert "#ff0000 on #000000" == text.spans[0].style
