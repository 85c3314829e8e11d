"""The command that makes the reference family: one verb a stage, each of them resumable."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fleet.prediction import SCORE_NAMES, ScoreName
from fleet.training import options
from fleet.training.cli_drafter import drafter

if TYPE_CHECKING:
    from fleet.training.losses import RobustForm
    from fleet.training.sketch import Which


@click.group()
@click.option("--threads", type=int, default=2, show_default=True, help="Threads of torch.")
def main(threads: int) -> None:
    """Train the small image models that ciar-fleet ships."""
    import torch

    logging.basicConfig(level=logging.INFO)
    for noisy in ("onnx_ir", "onnxscript", "torch.onnx"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    torch.set_num_threads(threads)


@main.command()
@options.work
@click.option(
    "--packages",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the npm archives; missing ones are fetched. Default: WORK/npm.",
)
def data(work: Path, packages: Path | None) -> None:
    """Build the captioned pictures and the caption vocabulary."""
    from fleet.training.pictures import SPLITS, build_pictures

    work.mkdir(parents=True, exist_ok=True)
    pictures = build_pictures(work, packages or work / "npm")
    for split in SPLITS:
        click.echo(f"{split}: {len(pictures.rows(split))} pictures")


@main.command()
@options.work
@options.minutes(13)
@options.seed
def tokenizer(work: Path, minutes: float, seed: int) -> None:
    """Train the image tokenizer."""
    from fleet.training.budget import progress_bar
    from fleet.training.pictures import load_pictures
    from fleet.training.tokenizer import train_tokenizer

    with progress_bar("tokenizer") as bar:
        train_tokenizer(work, load_pictures(work), minutes, seed, bar)


@main.command()
@options.work
def encode(work: Path) -> None:
    """Encode all pictures, and shifted or shrunken variants of them, as tokens."""
    from fleet.models.checkpoint import load_tokenizer
    from fleet.training.budget import progress_bar
    from fleet.training.examples import encode_pictures

    with progress_bar("encode") as bar:
        found = encode_pictures(work, load_tokenizer(work / "tokenizer.pt"), bar)
    for codes, figures in found.items():
        click.echo(f"{codes} codes: {figures}")


@main.command()
@options.work
@click.option(
    "--family",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    help="Folder of the released family. Default: the package's own.",
)
def unpack(work: Path, family: Path | None) -> None:
    """Take all models and the calibration from a release, so that any stage can go on."""
    from fleet.models.bundle import reference_path
    from fleet.training.released import unpack_release

    unpack_release(family or reference_path(), work)


@main.command()
@options.work
@click.argument("model", type=click.Choice(["cloud", "device"]))
@options.minutes(12)
@options.seed
def sketch(work: Path, model: "Which", minutes: float, seed: int) -> None:
    """Train what a caption alone says of each place of the image, before the MODEL itself."""
    from fleet.training.budget import progress_bar
    from fleet.training.examples import load_examples
    from fleet.training.sketch import train_sketch

    with progress_bar("sketch") as bar:
        train_sketch(work, load_examples(work), model, minutes, seed, bar)


@main.command()
@options.work
@options.minutes(90)
@options.seed
@click.option(
    "--varied",
    default=0.4,
    show_default=True,
    help="Share of the time in which pictures are shifted and shrunken too.",
)
@options.disturbed
@click.option("--peak", default=1.0, show_default=True, help="Scales the learning rates.")
@click.option(
    "--compiled", is_flag=True, help="Compile the model: a fifth faster, needs a C++ compiler."
)
@click.option(
    "--half", is_flag=True, help="Compute in bfloat16 where the processor is made for it."
)
def cloud(work: Path, minutes: float, seed: int, **how: Any) -> None:
    """Train the cloud model."""
    from fleet.training.budget import progress_bar
    from fleet.training.cloud import Pace, train_cloud
    from fleet.training.examples import load_examples

    with progress_bar("cloud") as bar:
        train_cloud(work, load_examples(work), minutes, seed, bar, Pace(**how))


@main.command()
@options.work
@options.minutes(18)
@options.seed
@options.recipe
@options.disturbed
@click.option("--rank", default=32, show_default=True, help="Of the radius; 0: a full matrix.")
def device(work: Path, minutes: float, seed: int, robust: "RobustForm", **recipe: Any) -> None:
    """Train the device model and its interval head from the cloud model."""
    from fleet.models.checkpoint import load_transformer
    from fleet.training.budget import progress_bar
    from fleet.training.device import Recipe, train_device
    from fleet.training.examples import load_examples
    from fleet.training.losses import Robust

    teacher = load_transformer(work / "cloud.pt")
    with progress_bar("device") as bar:
        how = Recipe(robust=Robust(robust), **recipe)
        train_device(work, load_examples(work), teacher, minutes, seed, bar, how)


@main.command()
@options.work
@options.seed
@click.option("--steps", default=300, show_default=True, help="Of each arm.")
@click.option("--arm", "arms", multiple=True, help="Only this one; may be repeated.")
def arms(work: Path, seed: int, steps: int, arms: tuple[str, ...]) -> None:
    """Compare what the losses of each arm make of fresh radii on the trained device."""
    from fleet.training.arms import ARMS, compare_arms
    from fleet.training.budget import progress_bar
    from fleet.training.examples import load_examples

    with progress_bar("arms") as bar:
        found = compare_arms(work, load_examples(work), arms or tuple(ARMS), steps, seed, bar)
    shown = [key for key in next(iter(found.values()))[0] if key != "step"]
    click.echo("| arm | step | " + " | ".join(shown) + " |\n|" + " --- |" * (len(shown) + 2))
    for name, rows in found.items():
        for row in (rows[0], rows[len(rows) // 2], rows[-1]):
            figures = " | ".join(f"{row[key]:.3f}" for key in shown)
            click.echo(f"| {name} | {row['step']:g} | {figures} |")


@main.command()
@options.work
@options.minutes(6)
@options.seed
@options.sampling
@click.option("--score", type=click.Choice(SCORE_NAMES), default="spread", show_default=True)
def adapter(work: Path, minutes: float, seed: int, score: ScoreName, **sampling: Any) -> None:
    """Train the interval feature on drifted histories; run calibrate first."""
    from fleet.training.adapter import train_adapter
    from fleet.training.budget import progress_bar
    from fleet.training.sampling import SamplingRule
    from fleet.training.stages import start_adapter

    run, source = start_adapter(work, score, SamplingRule(**sampling))
    with progress_bar("adapter") as bar:
        train_adapter(work, source, run, minutes, seed, bar)


@main.command()
@options.work
@options.seed
@options.sampling
def calibrate(work: Path, seed: int, **sampling: Any) -> None:
    """Choose the thresholds for the call budget, and measure the pair on validation pictures."""
    from fleet.training.budget import progress_bar
    from fleet.training.sampling import SamplingRule
    from fleet.training.stages import run_calibration

    with progress_bar("calibrate") as bar:
        run_calibration(work, SamplingRule(**sampling), seed, bar)


@main.command()
@options.work
@click.option("--model", type=click.Choice(["cloud", "device"]), default="cloud")
@click.option("--split", type=click.Choice(["train", "validation"]), default="validation")
@click.option("--count", type=int, default=12, show_default=True, help="Pictures in a row.")
@click.option("--top-k", type=int, default=0, help="Codes kept; 0 keeps all.")
@options.seed
def sheet(work: Path, model: str, split: str, count: int, top_k: int, seed: int) -> None:
    """Draw MODEL-sheet.png: real pictures above drawings at guidance 1, 1.5, 2 and 3."""
    from fleet.training.sheets import draw_sheet

    click.echo(draw_sheet(work, model, split, count, top_k, seed))


@main.command()
@options.work
@click.option(
    "--family",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    help="Folder of the exported family and its MODEL_CARD.md. Default: the package's own.",
)
@options.seed
def card(work: Path, family: Path | None, seed: int) -> None:
    """Write the tables of MODEL_CARD.md, and its curves, split and sheet of drawings."""
    from fleet.models.bundle import reference_path
    from fleet.training.card import write_card

    click.echo(write_card(work, family or reference_path(), seed))


@main.command()
@options.work
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder that receives device/, cloud/ and signing.pub. Default: the package's own.",
)
@click.option(
    "--key",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="Private key that signs the bundle; made, with its public half, if it is missing.",
)
@click.option("--family", default="emoji-64", show_default=True, help="Name of the family.")
@click.option("--guidance", default=1.0, show_default=True, help="One that was calibrated.")
@click.option("--score", type=click.Choice(SCORE_NAMES), default="spread", show_default=True)
@click.option("--dynamic", is_flag=True, help="The threshold tracks the budget in each picture.")
@click.option("--max-run", default=0, help="Tokens in a row that may go unverified; 0: any number.")
@click.option("--row-starts", is_flag=True, help="The first token of each row is verified.")
def export(work: Path, output: Path | None, key: Path, **chosen: Any) -> None:
    """Export the trained family as graphs and half-precision weights, and sign it.

    Temperature and top-k are those of the calibration.
    """
    from fleet.models.bundle import reference_path
    from fleet.models.signing import generate_key
    from fleet.training.export_bundle import Release, export_family

    if not key.exists():
        generate_key(key, key.with_suffix(".pub"))
    manifest = export_family(work, output or reference_path(), key, Release(**chosen))
    click.echo(f"device {manifest.device_version}, cloud {manifest.cloud_version}")


main.add_command(drafter)
