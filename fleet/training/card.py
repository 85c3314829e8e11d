"""The measured part of a family's model card: its tables, curves, split and sheet of drawings."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageDraw

from fleet.errors import FleetError
from fleet.models.caption import CaptionVocabulary, split_words
from fleet.models.checkpoint import load_checkpoint, load_device, load_tokenizer, load_transformer
from fleet.models.image_tokenizer import to_pixels
from fleet.training.cloud import VALIDATION_PICTURES, validation_loss
from fleet.training.examples import load_examples
from fleet.training.pictures import SPLITS, Pictures, load_pictures
from fleet.training.released import TRAINING_FOLDER
from fleet.training.sampling import SamplingRule, draw_images

BEGIN, END = "<!-- written by `python -m fleet.training card` -->", "<!-- end -->"
# The last four are of the validation split; their words are all known from other captions.
_COLUMNS = 12
CAPTIONS = (
    "google: heavy black heart",
    "twitter: grinning face",
    "fluent: slice of pizza",
    "google: dog face",
    "twitter: rocket",
    "fluent: red apple",
    "google: japan flag",
    "fluent: sun with face",
    "google: banana",
    "twitter: umbrella",
    "fluent: octopus",
    "google: birthday cake",
    "twitter: soccer ball",
    "google: deciduous tree",
    "fluent: guitar",
    "google: crescent moon",
    "twitter: sunflower",
    "google: penguin",
    "fluent: hamburger",
    "twitter: bicycle",
    "google: smiling cat face with open mouth",
    "twitter: cloud with lightning",
    "fluent: cross mark",
    "twitter: woman in tuxedo",
)
GUIDED = 1.5  # where the release itself draws without guidance
Row = dict[str, float]
Box = tuple[float, float, float, float]
Stage = tuple[str, tuple[tuple[str, str, str], ...]]
# File, then the curves drawn: title, key, color.
CURVES: tuple[Stage, ...] = (
    ("tokenizer", (("validation PSNR, dB", "psnr_db", "#1f6fb4"),)),
    ("sketch.cloud", (("training CE", "loss", "#b0b8c0"), ("known CE", "train", "#c43c39"))),
    ("cloud", (("training CE", "loss", "#b0b8c0"), ("validation CE", "validation", "#c43c39"))),
    ("sketch.device", (("training CE", "loss", "#b0b8c0"), ("known CE", "train", "#c43c39"))),
    ("device", (("training KL", "kl", "#b0b8c0"), ("validation KL", "validation_kl", "#c43c39"))),
    ("adapter", (("KL off", "kl_off", "#b0b8c0"), ("KL on", "kl_on", "#c43c39"))),
)
_PANEL = (520, 260)
_MARGIN = 36


def write_card(work: Path, family: Path, seed: int) -> Path:
    """Write `card/` next to the exported family and the tables of its MODEL_CARD.md."""
    folder = family / "card"
    folder.mkdir(exist_ok=True)
    pictures = load_pictures(work)
    split = json.dumps(emoji_of_splits(pictures), ensure_ascii=False, indent=1)
    (folder / "split.json").write_text(split + "\n", encoding="utf-8")
    draw_curves(work).save(folder / "curves.png", optimize=True)
    sampling = _json(family / "device" / "manifest.json")["sampling"]
    rule = SamplingRule(sampling["guidance"], sampling["temperature"], sampling["top_k"])
    draw_card_sheet(work, rule, seed).save(folder / "sheet.png", optimize=True)
    page = family / "MODEL_CARD.md"
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise FleetError(f"{page} has no place for the tables: put {BEGIN} and {END} in it")
    parts = (
        _release(family),
        _data(work, pictures),
        _sizes(work, family),
        _training(work),
        _quality(work),
    )
    tables = "\n\n".join(parts)
    page.write_text(f"{before}{BEGIN}\n\n{tables}\n\n{END}{after}", encoding="utf-8")
    return page


def emoji_of_splits(pictures: Pictures) -> dict[str, list[str]]:
    """Return the names of the emoji held out, by split; skin tones go with their emoji."""
    return {
        split: sorted({pictures.captions[row].partition(": ")[2] for row in pictures.rows(split)})
        for split in SPLITS[1:]
    }


def draw_card_sheet(work: Path, rule: SamplingRule, seed: int) -> Image.Image:
    """Draw the captions, twelve a block.

    A block's rows are: real; then by the rule the cloud without guidance, with it, the device.
    """
    examples = load_examples(work)
    rows = [examples.pictures.captions.index(caption) for caption in CAPTIONS]
    captions = torch.from_numpy(examples.captions[rows])
    cloud = load_transformer(work / "cloud.pt")
    device = load_device(work / "device.pt").transformer
    lines = [torch.from_numpy(examples.tokens[rows, 0].astype("int64"))]
    plain, guided = replace(rule, guidance=1.0), replace(rule, guidance=max(rule.guidance, GUIDED))
    for model, used in ((cloud, plain), (cloud, guided), (device, rule)):
        generator = torch.Generator().manual_seed(seed)
        lines.append(draw_images(model, captions, used, generator))
    tokenizer = load_tokenizer(work / "tokenizer.pt")
    blocks = zip(*(line.split(_COLUMNS) for line in lines), strict=True)
    with torch.no_grad():
        pictures = [to_pixels(tokenizer.decode(ids)) for block in blocks for ids in block]
    drawn = [torch.cat(list(row), dim=1) for row in pictures]
    return Image.fromarray(torch.cat(drawn, dim=0).numpy())


def draw_curves(work: Path) -> Image.Image:
    """Plot the curves of the stages that were run in `work` over minutes, a panel each."""
    width, height = _PANEL
    stages = _stages(work)
    image = Image.new("RGB", (2 * width, (len(stages) + 1) // 2 * height), "white")
    pen = ImageDraw.Draw(image)
    for index, (name, lines) in enumerate(stages):
        left, top = width * (index % 2), height * (index // 2)
        rows = _rows(work, name)
        values = [row[key] for row in rows for _, key, _ in lines if key in row]
        low, high = min(values), max(values)
        box = (left + _MARGIN, top + _MARGIN, left + width - _MARGIN, top + height - _MARGIN)
        pen.rectangle(box, outline="#808080")
        pen.text((left + 2, box[1]), f"{high:.2f}", "black")
        pen.text((left + 2, box[3] - 11), f"{low:.2f}", "black")
        pen.text((box[0], box[3] + 4), "0", "black")
        pen.text((box[2] - 34, box[3] + 4), f"{rows[-1]['s'] / 60:.1f} min", "black")
        pen.text((box[0], top + 8), name, "black")
        for place, (title, key, color) in enumerate(lines):
            pen.text((box[0] + 90 + 150 * place, top + 8), title, color)
            points = [(row["s"] / rows[-1]["s"], row[key]) for row in rows if key in row]
            pen.line([_place(box, x, (y - low) / (high - low or 1)) for x, y in points], color, 2)
    return image


def _place(box: Box, x: float, y: float) -> tuple[float, float]:
    return box[0] + x * (box[2] - box[0]), box[3] - y * (box[3] - box[1])


def _stages(work: Path) -> list[Stage]:
    """Return the stages with a curve; one whose model was unpacked from a release has none."""
    stages = [stage for stage in CURVES if (work / f"{stage[0]}.jsonl").exists()]
    if not stages:
        raise FleetError(f"no curves in {work}: run a training step first")
    return stages


def _rows(work: Path, name: str) -> list[Row]:
    path = work / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _json(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def _release(family: Path) -> str:
    manifest = _json(family / "device" / "manifest.json")
    sampling, score = manifest["sampling"], manifest["score"]
    rows = [
        f"| family | {manifest['family']} |",
        f"| device version | `{manifest['device_version']}` |",
        f"| cloud version | `{manifest['cloud_version']}` |",
        f"| sampling | {', '.join(f'{key} {value:g}' for key, value in sampling.items())} |",
        f"| score, threshold | `{score}` <= {manifest['thresholds'][score]:.4f} |",
        f"| prefix | {manifest['prefix_tokens']} tokens |",
        f"| share of cloud calls aimed at | {manifest['budget']:.0%} |",
    ]
    return _table("| release | |", rows)


def _table(head: str, rows: list[str]) -> str:
    columns = head.count("|") - 1
    return "\n".join([head, "| --- " + "| ---: " * (columns - 1) + "|", *rows])


def _data(work: Path, pictures: Pictures) -> str:
    rows, known = [], CaptionVocabulary.load(work / "vocabulary.json").words
    for split in SPLITS:
        captions = [pictures.captions[row] for row in pictures.rows(split)]
        styles = [sum(c.startswith(f"{s}: ") for c in captions) for s in ("google", "twitter")]
        counts = [len(captions), *styles, len(captions) - sum(styles)]
        names = {caption.partition(": ")[2] for caption in captions}
        counts += [len(names), sum(set(split_words(name)) <= set(known) for name in names)]
        rows.append(f"| {split} | " + " | ".join(f"{count:,}" for count in counts) + " |")
    return _table("| split | pictures | google | twitter | fluent | names | of known words |", rows)


def _sizes(work: Path, family: Path) -> str:
    rows = []
    for name, keys in (
        ("tokenizer", ("model",)),
        ("cloud", ("model",)),
        ("device", ("model", "head")),
        ("adapter", ("projection", "feature")),
    ):
        state = load_checkpoint(work / f"{name}.pt")
        for key in keys:
            weights = {k: v for k, v in state[key].items() if isinstance(v, torch.Tensor)}
            rows.append(f"| {name} {key} | {sum(v.numel() for v in weights.values()):,} |")
            sketch = sum(v.numel() for k, v in weights.items() if k.startswith("sketch."))
            rows += [f"| of it the sketch | {sketch:,} |"] * (sketch > 0)
    files = [
        path
        for part in ("device", "cloud", TRAINING_FOLDER)
        for path in sorted((family / part).iterdir())
    ]
    sizes = [f"| `{p.relative_to(family).as_posix()}` | {p.stat().st_size:,} |" for p in files]
    return _table("| part | numbers |", rows) + "\n\n" + _table("| file | bytes |", sizes)


def _training(work: Path) -> str:
    rows = []
    for name, _ in _stages(work):
        curve = _rows(work, name)
        last = {k: v for row in curve[-3:] for k, v in row.items() if k not in ("s", "step")}
        figures = ", ".join(f"{key} {value:g}" for key, value in last.items())
        rows.append(f"| {name} | {curve[-1]['step']} | {curve[-1]['s'] / 60:.1f} | {figures} |")
    table = _table("| stage | steps | minutes | last figures |", rows)
    return f"{table}\n\n{_cloud(work)}" if (work / "cloud.jsonl").exists() else table


def _cloud(work: Path) -> str:
    rows = _rows(work, "cloud")
    checks = [row for row in rows if "validation" in row]
    best = min(checks, key=lambda row: row["validation"])
    losses = [row["loss"] for row in rows if "loss" in row][-20:]
    return (
        f"Cloud: best validation CE {best['validation']:g} at step {best['step']}, last "
        f"{checks[-1]['validation']:g} at step {checks[-1]['step']}; mean training CE of the "
        f"last {len(losses)} logged batches {sum(losses) / len(losses):.2f}. "
        f"CE on {VALIDATION_PICTURES} training pictures as they are: "
        f"{_known_loss(work, 'cloud.pt'):.3f}; with another picture's caption: "
        f"{_known_loss(work, 'cloud.pt', astray=True):.3f}."
    )


def _known_loss(work: Path, checkpoint: str, *, astray: bool = False) -> float:
    model = load_transformer(work / checkpoint)
    return validation_loss(model, load_examples(work), "train", astray=astray)


def _quality(work: Path) -> str:
    metrics, calibration = _json(work / "metrics.json"), _json(work / "calibration.json")
    overall = metrics.pop("overall")
    whole = _table("| figure | value |", [f"| {k} | {v:.4f} |" for k, v in overall.items()])
    keys = ("spearman_tv", "spearman_harm", "tv_left", "mismatches_caught", "harm_caught")
    rows = [
        f"| {score} | " + " | ".join(f"{row[key]:.3f}" for key in keys) + " |"
        for score, row in metrics.items()
    ]
    scores = _table("| score | " + " | ".join(keys) + " |", rows)
    ((guidance, found),) = calibration["thresholds"].items()
    budget, prefix = calibration["call_budget"], calibration["prefix_share"]
    rows = [
        f"| {score} | {threshold:.4f} | {prefix + (1 - prefix) * share:.3f} |"
        for (score, threshold), share in zip(
            found.items(), calibration["measured_share"].values(), strict=True
        )
    ]
    head = f"| score | threshold at guidance {guidance} | calls, {budget:.2f} wanted |"
    return "\n\n".join((whole, scores, _table(head, rows)))
