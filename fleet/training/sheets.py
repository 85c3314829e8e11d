"""Sheets of drawings to look at: one row a guidance, one column a caption."""

from pathlib import Path

import torch

from fleet.models.checkpoint import load_tokenizer, load_transformer
from fleet.training.examples import load_examples
from fleet.training.sampling import SamplingRule, draw_images, write_sheet

GUIDANCES = (1.0, 1.5, 2.0, 3.0)


def draw_sheet(work: Path, model: str, split: str, count: int, top_k: int, seed: int) -> Path:
    """Write the sheet of one model on captions of a split, and return its path."""
    transformer = load_transformer(work / f"{model}.pt")
    batch = load_examples(work).take(split, count)
    rows = [batch.tokens]
    for guidance in GUIDANCES:
        rule = SamplingRule(guidance, top_k=top_k)
        generator = torch.Generator().manual_seed(seed)
        rows.append(draw_images(transformer, batch.captions, rule, generator))
    path = work / f"{model}-sheet-{split}.png"
    write_sheet(path, load_tokenizer(work / "tokenizer.pt"), rows)
    return path
