"""Plain drawing of whole images from one model, for sheets and for training on them."""

from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from fleet.models.branches import Branches
from fleet.models.conditions import Condition, Prompt
from fleet.models.image_tokenizer import ImageTokenizer, to_pixels
from fleet.models.transformer import Transformer


@dataclass(frozen=True)
class SamplingRule:
    """How logits become a token: guidance, temperature and the number of codes kept."""

    guidance: float = 1.0
    temperature: float = 1.0
    top_k: int = 0  # 0 keeps all


def draw_images(
    model: Transformer,
    captions: Tensor,  # [B, C]
    rule: SamplingRule,
    generator: torch.Generator,
) -> Tensor:
    """Draw token ids [B, T]."""
    drawing = Branches.of_words(model.eval(), captions.numpy(), rule.guidance)
    return _draw(drawing, rule, generator)


def draw_conditions(
    model: Transformer,
    condition: Condition | Prompt,
    rule: SamplingRule,
    generator: torch.Generator,
) -> Tensor:
    """Do what `draw_images` does for conditions: B rows, and with guidance B without caption."""
    return _draw(Branches(model.eval(), condition, rule.guidance), rule, generator)


def _draw(drawing: Branches, rule: SamplingRule, generator: torch.Generator) -> Tensor:
    length = drawing.transformer.config.n_token
    tokens = torch.zeros(drawing.count, length, dtype=torch.long)
    for position in range(length):
        logits = torch.from_numpy(drawing.logits()).to(generator.device)
        tokens[:, position] = sample(logits, rule, generator).cpu()
        if position + 1 < length:
            drawing.push(tokens[:, position].numpy())
    return tokens


def sample(logits: Tensor, rule: SamplingRule, generator: torch.Generator) -> Tensor:
    """Draw one token [B] from logits [B, V]."""
    logits = logits / max(rule.temperature, 1e-5)
    if rule.top_k > 0:
        least = logits.topk(min(rule.top_k, logits.shape[-1])).values[:, -1:]
        logits = logits.masked_fill(logits < least, float("-inf"))
    return torch.multinomial(logits.softmax(dim=-1), 1, generator=generator)[:, 0]


def write_sheet(path: Path, tokenizer: ImageTokenizer, rows: list[Tensor], zoom: int = 2) -> None:
    """Write the pictures of token ids, one row of the sheet a tensor [B, T], as a PNG."""
    with torch.no_grad():
        pictures = [to_pixels(tokenizer.decode(ids)) for ids in rows]
    lines = [torch.cat(list(line), dim=1) for line in pictures]
    sheet = Image.fromarray(torch.cat(lines, dim=0).numpy())
    sheet.resize((sheet.width * zoom, sheet.height * zoom), Image.Resampling.NEAREST).save(path)
