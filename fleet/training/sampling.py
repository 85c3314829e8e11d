"""Plain drawing of whole images from a model, for sheets and calibration."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from fleet.models.conditions import Condition
from fleet.models.image_tokenizer import ImageTokenizer, to_pixels
from fleet.models.transformer import Transformer, guide

Watcher = Callable[[int, Tensor, Tensor], None]


@dataclass(frozen=True)
class SamplingRule:
    """How logits become a token: guidance, temperature and the number of codes kept."""

    guidance: float = 1.0
    temperature: float = 1.0
    top_k: int = 0  # 0 keeps all


def joint_condition(model: Transformer, captions: Tensor) -> Condition:
    """Return the condition of captions [B, C] followed by the one without them, 2B rows."""
    withheld = torch.arange(2 * len(captions)) >= len(captions)
    return model.condition(captions.repeat(2, 1), withheld)


def draw_images(
    model: Transformer,
    captions: Tensor,  # [B, C]
    rule: SamplingRule,
    generator: torch.Generator,
    watch: Watcher | None = None,
) -> Tensor:
    """Draw token ids [B, T]; `watch` sees position, hidden states [B, D] and logits [B, V]."""
    guided = rule.guidance > 1
    condition = joint_condition(model, captions) if guided else model.condition(captions)
    return draw_conditions(model, condition, rule, generator, watch)


@torch.no_grad()
def draw_conditions(
    model: Transformer,
    condition: Condition,
    rule: SamplingRule,
    generator: torch.Generator,
    watch: Watcher | None = None,
) -> Tensor:
    """Do what `draw_images` does for conditions: B rows, and with guidance B without caption."""
    model.eval()
    config, guided = model.config, rule.guidance > 1
    rows, where = len(condition.start), condition.start.device
    batch = rows // 2 if guided else rows
    shape = (config.n_layer, 2, rows, config.n_head, config.n_token, config.head_dim)
    past = torch.zeros(shape, dtype=condition.start.dtype, device=where)
    tokens = torch.zeros(batch, config.n_token, dtype=torch.long, device=where)
    hidden = condition.start
    for position in range(config.n_token):
        logits = model.output(hidden).float()
        if guided:
            logits = guide(logits[:batch], logits[batch:], rule.guidance)
        if watch is not None:
            watch(position, hidden[:batch], logits)
        tokens[:, position] = sample(logits, rule, generator)
        if position + 1 < config.n_token:
            last = tokens[:, position : position + 1].repeat(rows // batch, 1)
            spanned, new = model.span(last, past[:, :, :, :, :position], condition)
            past[:, :, :, :, position : position + 1] = new
            hidden = spanned[:, 0]
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
