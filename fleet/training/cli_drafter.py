"""The verbs that make a device model for a cloud model in files of somebody else's."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fleet.errors import InvalidInputError
from fleet.prediction import SCORE_NAMES, ScoreName
from fleet.process import command_errors
from fleet.training import options

if TYPE_CHECKING:
    from fleet.training.drafter_bundle import Precision

Command = Callable[..., Any]

model = click.option(
    "--model",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    required=True,
    help="Folder of the cloud model, as `cloud_hub models add` wrote it.",
)
device = click.option("--device", default="cpu", show_default=True, help="Of torch, as in cuda.")

score = click.option(
    "--score",
    type=click.Choice(SCORE_NAMES),
    default="entropy",
    show_default=True,
    help="That decides what a device keeps.",
)


def _sampling(command: Command) -> Command:
    """Add how tokens are drawn: as LlamaGen's release does."""
    top_k = click.option("--top-k", default=1000, show_default=True, help="Codes kept; 0: all.")
    temperature = click.option(
        "--temperature", default=1.0, show_default=True, help="Divides the logits."
    )
    guidance = click.option(
        "--guidance", default=7.5, show_default=True, help="Weight of the caption."
    )
    return guidance(temperature(top_k(command)))


@click.group()
def drafter() -> None:
    """Make a device model for a large cloud model, in four steps (docs/llamagen.md)."""


@drafter.command()
@options.work
@model
@device
@click.option(
    "--captions",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    required=True,
    help="Text file, one caption a line; for classes their numbers.",
)
@click.option("--batch", default=32, show_default=True, help="Pictures drawn at a time.")
@_sampling
@options.seed
@command_errors
def draw(
    work: Path, model: Path, device: str, captions: Path, batch: int, seed: int, **rule: Any
) -> None:
    """Draw a picture of each caption with the cloud model; goes on where it was stopped."""
    from fleet.models.linked import load_linked
    from fleet.training.budget import progress_bar
    from fleet.training.drawings import draw_pictures
    from fleet.training.sampling import SamplingRule

    wanted, cloud = _lines(captions), load_linked(model, device)
    with progress_bar("draw") as bar:
        count = draw_pictures(
            work, cloud, wanted, SamplingRule(**rule), batch=batch, seed=seed, bar=bar
        )
    click.echo(f"{work} holds {count} drawings")


@drafter.command()
@options.work
@model
@device
@options.minutes(600)
@options.seed
@click.option("--rate", default=3e-4, show_default=True, help="Peak learning rate.")
@click.option("--batch", default=16, show_default=True, help="Pictures a step.")
@click.option("--positions", default=64, show_default=True, help="Of each picture, a step.")
@command_errors
def train(work: Path, model: Path, device: str, minutes: float, seed: int, **course: Any) -> None:
    """Train the drafter on the drawings; goes on where it was stopped."""
    from fleet.models.linked import load_linked
    from fleet.training.budget import progress_bar
    from fleet.training.drafter import Course, look, train_drafter
    from fleet.training.drawings import Drawings

    cloud = load_linked(model, device)
    with progress_bar("drafter") as bar:
        run = train_drafter(work, cloud, minutes, Course(**course), seed, bar)
    figures = look(run, Drawings.load(work))
    for name, text in (("given", "after the cloud's states"), ("own", "after its own alone")):
        click.echo(
            f"{text}: KL {figures[f'{name}_kl']:.3f} nats, TV {figures[f'{name}_tv']:.3f},"
            f" coverage {figures[f'{name}_coverage']:.2f}"
        )


@drafter.command()
@options.work
@model
@device
@options.minutes(60)
@options.seed
@score
@_sampling
@click.option("--batch", default=16, show_default=True, help="Pictures a step.")
@command_errors
def adapt(  # noqa: PLR0913 - options
    work: Path,
    model: Path,
    device: str,
    minutes: float,
    seed: int,
    score: ScoreName,
    batch: int,
    **rule: Any,
) -> None:
    """Train the interval feature: the cloud learns how far to trust what the drafter keeps."""
    from fleet.models.linked import linked_tokenizer, load_linked
    from fleet.training.adapter import CHECKPOINT, check_adapter, train_adapter
    from fleet.training.budget import progress_bar
    from fleet.training.device import RANK
    from fleet.training.drafter_adapter import DrafterPair, start_adapter
    from fleet.training.drafter_bundle import load_drafter
    from fleet.training.drawings import Drawings
    from fleet.training.sampling import SamplingRule

    cloud = load_linked(model, device)
    drafter = load_drafter(work, cloud, RANK).to(device)
    pair = DrafterPair(cloud, drafter, Drawings.load(work), linked_tokenizer(model))
    run, source = start_adapter(pair, score, SamplingRule(**rule), batch)
    with progress_bar("adapt") as bar:
        train_adapter(work, source, run, minutes, seed, bar)
    figures = check_adapter(run, source)
    click.echo(
        f"KL from the cloud on its own histories: {figures['kl_off']:.3f} nats without the feature,"
        f" {figures['kl_on']:.3f} with it"
    )
    if figures["kl_on"] >= figures["kl_off"]:
        click.echo(f"it does not help: train longer, or remove {work / CHECKPOINT} before export")


@drafter.command()
@options.work
@model
@click.option(
    "--key",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="Private key that signs the bundle; made, with its public half, if it is missing.",
)
@click.option(
    "--precision",
    type=click.Choice(["int8", "float32"]),
    default="int8",
    show_default=True,
    help="Of the device's matrices. Rounds train a float32 device only.",
)
@score
@click.option("--pictures", default=32, show_default=True, help="That thresholds are taken along.")
@_sampling
@command_errors
def export(
    work: Path,
    model: Path,
    key: Path,
    precision: "Precision",
    score: ScoreName,
    pictures: int,
    **rule: Any,
) -> None:
    """Write a signed device bundle into the cloud model's folder."""
    from fleet.models.linked import linked_tokenizer, load_linked
    from fleet.training.budget import progress_bar
    from fleet.training.device import RANK
    from fleet.training.drafter_adapter import load_adapter
    from fleet.training.drafter_bundle import (
        DrafterParts,
        DrafterRelease,
        export_drafter_bundle,
        load_drafter,
    )
    from fleet.training.drawings import Drawings
    from fleet.training.sampling import SamplingRule

    cloud = load_linked(model)
    sampling = SamplingRule(**rule)
    parts = DrafterParts(
        cloud,
        load_drafter(work, cloud, RANK),
        linked_tokenizer(model),
        load_adapter(work, cloud, sampling),
    )
    release = DrafterRelease(precision, score, sampling, pictures)
    with progress_bar("export") as bar:
        manifest = export_drafter_bundle(model, parts, Drawings.load(work), key, release, bar)
    size = sum(entry.size for entry in manifest.files)
    click.echo(f"device {manifest.device_version}, {size / 1e6:.1f} MB, in {model / 'device'}")
    click.echo(
        f"a device draws with EDGE_AGENT_BUNDLE={model / 'device'}"
        f" EDGE_AGENT_PUBLIC_KEY={model / 'signing.pub'} edge_agent run"
    )


def _lines(captions: Path) -> list[str]:
    try:
        lines = captions.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"{captions} cannot be read as text: {error}") from error
    wanted = [line.strip() for line in lines if line.strip()]
    if not wanted:
        raise InvalidInputError(f"{captions} holds no caption")
    return wanted
