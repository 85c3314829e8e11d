"""The verbs for models: versions that devices run, and models that people bring as files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cloud_hub.cli_query import config_option
from fleet.process import command_errors

if TYPE_CHECKING:
    from cloud_hub.models import Addition

Command = Callable[..., Any]
_PATH = click.Path(path_type=Path)


@click.group()
def models() -> None:
    """List model versions; add models that you have as files (docs/llamagen.md)."""


@models.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@config_option
@command_errors
def list_versions(as_json: bool, config: Path | None) -> None:
    """One line a version that rounds made or devices run, and how many devices run it."""
    from cloud_hub import versions as telling
    from cloud_hub.cli_rounds import open_database
    from cloud_hub.store import catalog

    with open_database(config) as database, database.read() as connection:
        found, running = catalog.versions(connection), catalog.running(connection)
    if as_json:
        click.echo(json.dumps(telling.fields(found, running), indent=2))
        return
    for line in telling.lines(found, running):
        click.echo(line)


@models.group()
def add() -> None:
    """Check a model's files, say what it is, and make it ready to serve; no file is copied."""


def _described(grid: int | None) -> Callable[[Command], Command]:
    """The options that all kinds of models have."""

    def add_options(command: Command) -> Command:
        for option in (
            click.argument("weights", type=_PATH),
            click.option(
                "--grid",
                type=click.IntRange(1, 64),
                default=grid,
                show_default=grid is not None,
                help="Tokens of one side.",
            ),
            click.option(
                "--dtype",
                type=click.Choice(["float32", "bfloat16"]),
                default="bfloat16",
                show_default=True,
                help="What it is computed in.",
            ),
            click.option("--name", help="Of the family. Default: from the model."),
            config_option,
        ):
            command = option(command)
        return command

    return add_options


_heads = click.option(
    "--heads", type=click.IntRange(1), help="Only of a size that was not released."
)
_prompt = click.option(
    "--prompt",
    type=click.IntRange(4, 2048),
    default=128,
    show_default=True,
    help="Most tokens of a prompt; a session has room for all.",
)


@add.command()
@_described(grid=None)
@_heads
@click.option("--tokenizer", type=_PATH, required=True, help="The image tokenizer.")
@click.option("--text", type=_PATH, help="Folder with the T5 for captions.")
@click.option("--captions", type=_PATH, help="File of caption features.")
@command_errors
def llamagen(config: Path | None, text: Path | None, captions: Path | None, **named: Any) -> None:
    """A LlamaGen token model: a released checkpoint, or a folder of LANTERN's layout."""
    from cloud_hub.models import Addition
    from fleet.models.linked_config import CaptionSource

    source = None
    if captions or text:
        source = CaptionSource(kind="file" if captions else "t5", path=captions or text or Path())
    _add(Addition(captions=source, **named), config)


@add.command()
@_described(grid=32)
@_prompt
@click.option("--tokenizer", type=_PATH, required=True, help="The image tokenizer: vqgan.ckpt.")
@click.option("--text", type=_PATH, required=True, help="The text tokenizer's JSON file.")
@command_errors
def chameleon(config: Path | None, text: Path, prompt: int, **named: Any) -> None:
    """Chameleon or Anole 7B: `consolidated.pth`, or a folder of transformers' layout."""
    from cloud_hub.models import Addition
    from fleet.models.linked_config import CaptionSource

    source = CaptionSource(kind="prompts", path=text)
    order = Addition(captions=source, kind="chameleon", prompt_length=prompt, heads=None, **named)
    _add(order, config)


@add.command()
@_described(grid=24)
@_heads
@_prompt
@click.option("--tokenizer", type=_PATH, help="The image tokenizer. Default: inside the weights.")
@click.option("--text", type=_PATH, help="The text tokenizer. Default: tokenizer.json beside them.")
@command_errors
def janus(
    config: Path | None,
    weights: Path,
    tokenizer: Path | None,
    text: Path | None,
    prompt: int,
    **named: Any,
) -> None:
    """Janus-Pro 1B or 7B: the folder of its release, or of transformers' layout."""
    from cloud_hub.models import Addition
    from fleet.models.linked_config import CaptionSource

    beside = weights if weights.is_dir() else weights.parent
    source = CaptionSource(kind="prompts", path=text or beside / "tokenizer.json")
    order = Addition(
        weights=weights,
        tokenizer=tokenizer or weights,
        captions=source,
        kind="janus",
        prompt_length=prompt,
        **named,
    )
    _add(order, config)


@models.command()
@click.argument("model", type=_PATH)
@click.argument("caption")
@click.option("--output", "-o", type=_PATH, required=True, help="PNG file.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0))
@click.option("--guidance", default=4.0, show_default=True, help="Weight of the caption.")
@click.option("--temperature", default=1.0, show_default=True, help="Divides the logits.")
@click.option("--top-k", default=1000, show_default=True, help="Codes kept; 0 keeps all.")
@click.option("--device", default="cpu", show_default=True, help="Of torch, as in cuda.")
@command_errors
def draw(model: Path, caption: str, output: Path, seed: int, device: str, **rule: Any) -> None:
    """Draw CAPTION with the added model in the folder MODEL alone, to look at it."""
    from PIL import Image
    from pydantic import ValidationError

    from cloud_hub.drawing import draw_picture
    from fleet.errors import InvalidInputError, OutputError
    from fleet.protocol.messages import Sampling

    try:
        sampling = Sampling(**rule)
    except ValidationError as error:
        first = error.errors()[0]
        raise InvalidInputError(f"{first['loc'][0]}: {first['msg']}") from error
    picture = draw_picture(model, caption, seed, sampling, device)
    try:
        Image.fromarray(picture).save(output, format="PNG")
    except OSError as error:
        raise OutputError(f"{output} cannot be written: {error.strerror}") from error
    click.echo(f"{output}: {picture.shape[1]} x {picture.shape[0]} pixels")


@models.command("captions")
@click.argument("captions", type=_PATH)
@click.option("--text", type=_PATH, required=True, help="Folder with a T5.")
@click.option("--length", default=120, show_default=True, help="Most tokens of a caption.")
@click.option("--output", type=_PATH, required=True, help="Added to, or made.")
@command_errors
def models_captions(captions: Path, text: Path, length: int, output: Path) -> None:
    """Write the features of captions, one a line, for hubs without a T5."""
    from cloud_hub.models import add_captions

    click.echo(f"{output} holds {add_captions(captions, text, output, length)} captions")


def _add(order: "Addition", config: Path | None) -> None:
    from cloud_hub.models import add_model
    from cloud_hub.settings import HubSettings
    from fleet.settings import load_settings

    added = add_model(order, load_settings(HubSettings, config).data_dir)
    for what, fact in added.facts:
        click.echo(f"{what:<12}{fact}")
    click.echo(f"serve it with CLOUD_HUB_MODEL={added.folder} cloud_hub serve")
