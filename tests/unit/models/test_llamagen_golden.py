"""LlamaGen's golden logits: computed in float64 by an independent implementation."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fleet.models.conditions import Condition
from fleet.models.formats.llamagen import load_llamagen
from fleet.models.transformer import Transformer, guide
from tests.unit.models.llamagen_files import (
    CAPTIONS,
    CLASSES,
    GRID,
    HEADS,
    caption_features,
    caption_weights,
    class_weights,
    golden,
)

TOLERANCE = 2e-5
WITHHELD = torch.ones(2, dtype=torch.bool)
TOKENS = torch.tensor(CAPTIONS["tokens"])


@pytest.fixture
def by_class(tmp_path: Path) -> Transformer:
    torch.save({"model": class_weights()}, tmp_path / "classes.pt")
    return load_llamagen(tmp_path / "classes.pt", GRID, heads=HEADS)


@pytest.fixture
def by_caption(tmp_path: Path) -> Transformer:
    torch.save({"model": caption_weights()}, tmp_path / "captions.pt")
    return load_llamagen(tmp_path / "captions.pt", GRID, heads=HEADS)


def whole(model: Transformer, prefix: Tensor, valid: Tensor) -> Tensor:
    """Return the logits [2, 16, V] of the golden tokens in one forward, prefix and all."""
    logits: Tensor = model.output(model.hidden_prefix(prefix, valid, TOKENS[:, :-1]))
    return logits


def decoded(model: Transformer, condition: Condition) -> Tensor:
    """Return the same logits from the collapsed condition, token by token."""
    states = [condition.start[:, None]]
    past = empty(model)
    for token in TOKENS[:, :-1].split(1, dim=1):
        hidden, rows = model.span(token, past, condition)
        past = torch.cat([past, rows], dim=4)
        states.append(hidden)
    logits: Tensor = model.output(torch.cat(states, dim=1))
    return logits


def empty(model: Transformer) -> Tensor:
    config = model.config
    return torch.zeros(config.n_layer, 2, 2, config.n_head, 0, config.head_dim)


def error(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).abs().max())


def test_llamagen_class_logits_are_golden(by_class: Transformer) -> None:
    labels = torch.tensor(CLASSES["labels"])  # the second is no class
    valid = torch.ones(2, 1, dtype=torch.bool)

    logits = whole(by_class, by_class.classes(labels), valid)

    assert error(logits, golden(CLASSES, "logits")) < TOLERANCE
    assert error(decoded(by_class, by_class.condition_classes(labels)), logits) < TOLERANCE


@pytest.mark.parametrize(("withheld", "name"), [(None, "cond"), (WITHHELD, "uncond")])
def test_llamagen_caption_logits_are_golden(
    by_caption: Transformer, withheld: Tensor | None, name: str
) -> None:
    features, valid = caption_features()

    logits = whole(by_caption, by_caption.captions(features, withheld), valid)
    collapsed = decoded(by_caption, by_caption.condition_features(features, valid, withheld))

    assert error(logits, golden(CAPTIONS, f"{name}_logits")) < TOLERANCE
    assert error(collapsed, golden(CAPTIONS, f"{name}_logits")) < TOLERANCE


def test_llamagen_guided_logits_are_golden(by_caption: Transformer) -> None:
    features, valid = caption_features()
    expected = guide(
        golden(CAPTIONS, "cond_logits").double(), golden(CAPTIONS, "uncond_logits").double(), 7.5
    )

    branches = [
        decoded(by_caption, by_caption.condition_features(features, valid, withheld))
        for withheld in (None, WITHHELD)
    ]

    # Guidance of 7.5 adds the errors of both branches up to fourteenfold.
    assert error(guide(branches[0], branches[1], 7.5), expected.float()) < 14 * TOLERANCE


@pytest.mark.parametrize(("guidance", "name"), [(7.5, "greedy_cfg7_5"), (1.0, "greedy_cfg1")])
def test_llamagen_greedy_sequences_are_golden(
    by_caption: Transformer, guidance: float, name: str
) -> None:
    features, valid = caption_features()
    conditions = [
        by_caption.condition_features(features, valid, withheld) for withheld in (None, WITHHELD)
    ]
    pasts, states = [empty(by_caption)] * 2, [condition.start for condition in conditions]
    drawn: list[Tensor] = []

    for _ in range(GRID * GRID):
        logits = [by_caption.output(state) for state in states]
        drawn.append(guide(logits[0], logits[1], guidance).argmax(dim=-1))
        for branch, condition in enumerate(conditions):
            hidden, rows = by_caption.span(drawn[-1][:, None], pasts[branch], condition)
            pasts[branch] = torch.cat([pasts[branch], rows], dim=4)
            states[branch] = hidden[:, 0]

    assert torch.stack(drawn, dim=1).tolist() == CAPTIONS[name]


# ── What must not be golden: the mistakes that a loader makes ─────────────────────────────


def identity_rotation(model: Transformer) -> None:
    length = model.config.caption_length
    model.rotation[:length, :, 0] = 1


def turned_halves(model: Transformer) -> None:
    """Make the model turn (x[j], x[j + half]) instead of neighbours."""
    half = model.config.head_dim // 2
    order = torch.arange(2 * half).view(2, half).t().flatten()
    for block in model.blocks:
        q, k, v = block.attention.wqkv.weight.chunk(3)
        shape = (model.config.n_head, 2 * half, -1)
        q, k = (part.view(shape)[:, order].flatten(0, 1) for part in (q, k))
        block.attention.wqkv.weight.copy_(torch.cat([q, k, v]))


@pytest.mark.parametrize("mistake", [identity_rotation, turned_halves])
def test_another_rotation_is_not_golden_for_llamagen(
    by_caption: Transformer, mistake: Callable[[Transformer], None]
) -> None:
    mistake(by_caption)
    features, valid = caption_features()

    logits = whole(by_caption, by_caption.captions(features), valid)

    assert error(logits, golden(CAPTIONS, "cond_logits")) > 0.1


def test_an_unmasked_withheld_caption_is_not_golden_for_llamagen(by_caption: Transformer) -> None:
    features, valid = caption_features()

    logits = whole(by_caption, by_caption.captions(features, WITHHELD), torch.ones_like(valid))

    assert error(logits, golden(CAPTIONS, "uncond_logits")) > 0.1


def test_right_padding_is_not_golden_for_llamagen(by_caption: Transformer) -> None:
    features, valid = caption_features()
    moved = [
        torch.stack([row.roll(int(count), dims=0) for row, count in zip(each, counts, strict=True)])
        for each, counts in ((features, CAPTIONS["valid_lens"]), (valid, CAPTIONS["valid_lens"]))
    ]

    logits = whole(by_caption, by_caption.captions(moved[0]), moved[1])

    assert error(logits, golden(CAPTIONS, "cond_logits")) > 0.1


def test_another_grid_loads_and_is_not_golden_for_llamagen(tmp_path: Path) -> None:
    torch.save({"model": class_weights()}, tmp_path / "classes.pt")

    model = load_llamagen(tmp_path / "classes.pt", 6, heads=HEADS)

    prefix = model.classes(torch.tensor(CLASSES["labels"]))
    logits = whole(model, prefix, torch.ones(2, 1, dtype=torch.bool))
    assert error(logits, golden(CLASSES, "logits")) > 0.1
    assert replace(model.config, grid=GRID) != model.config
