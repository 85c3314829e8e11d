"""Economical codes stay near the nearest ones and cost fewer bits."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fleet.models.image_tokenizer import ImageTokenizer, ImageTokenizerConfig
from fleet.training import economy
from fleet.training.economy import CodeLaw, economical

CODES = 32
WIDTH = 4


@pytest.fixture
def codes() -> Tensor:
    return F.normalize(torch.randn(CODES, WIDTH, generator=torch.Generator().manual_seed(0)), dim=1)


@pytest.fixture
def law() -> CodeLaw:
    return CodeLaw(torch.full((CODES,), 1 / CODES))


def grid(points: Tensor) -> Tensor:
    """Return unit features [B, D, h, w] of points [B, h, w, D]."""
    return F.normalize(points, dim=-1).permute(0, 3, 1, 2)


def test_a_picture_of_codes_far_apart_keeps_them() -> None:
    codes, law = torch.eye(WIDTH), CodeLaw(torch.full((WIDTH,), 1 / WIDTH))
    ids = torch.randint(0, WIDTH, (2, 5, 5), generator=torch.Generator().manual_seed(1))

    assert torch.equal(economical(codes, grid(codes[ids]), law), ids)


def test_a_noisy_flat_region_gets_one_code(law: CodeLaw) -> None:
    generator = torch.Generator().manual_seed(2)
    middle = torch.tensor([1.0, 0.0, 0.0, 0.0])
    codes = F.normalize(middle + 0.03 * torch.randn(CODES, WIDTH, generator=generator), dim=1)
    features = grid(middle + 0.03 * torch.randn(1, 8, 8, WIDTH, generator=generator))
    nearest = (features.permute(0, 2, 3, 1) @ codes.T).argmax(dim=-1)

    chosen = economical(codes, features, law)

    assert len(nearest.unique()) > 10
    assert len(chosen.unique()) == 1


def test_no_code_costs_more_than_the_nearest(codes: Tensor, law: CodeLaw) -> None:
    generator = torch.Generator().manual_seed(3)
    features = grid(torch.randn(3, 6, 6, WIDTH, generator=generator).cumsum(dim=2))
    distance = 2 - 2 * features.permute(0, 2, 3, 1) @ codes.T
    nearest = distance.argmin(dim=-1)

    chosen = economical(codes, features, law)

    # Inside the border a cell has both neighbours; what they cost is known when it is chosen.
    left, upper = chosen[:, 1:, :-1], chosen[:, :-1, 1:]

    def cost(ids: Tensor) -> Tensor:
        copied = torch.stack([left == ids, upper == ids]).float().mean(dim=0)
        far = distance[:, 1:, 1:].gather(-1, ids[..., None])[..., 0]
        return far + economy.DISTANCE_PER_BIT * law.bits(ids, copied)

    assert (cost(chosen[:, 1:, 1:]) <= cost(nearest[:, 1:, 1:]) + 1e-5).all()
    assert not torch.equal(chosen, nearest)


def test_the_bits_of_a_law_are_those_of_its_mixture() -> None:
    law = CodeLaw(torch.tensor([0.5, 0.25, 0.25]))

    bits = law.bits(torch.tensor([0, 0, 1]), torch.tensor([0.0, 1.0, 0.5]))

    expected = [0.6 * 0.5, 0.4 + 0.6 * 0.5, 0.2 + 0.6 * 0.25]
    torch.testing.assert_close(2**-bits, torch.tensor(expected))


def test_figures_of_codes() -> None:
    tokenizer = ImageTokenizer(
        ImageTokenizerConfig(
            channels=8, channel_multipliers=(1, 2), latent_channels=8, codebook_size=4
        )
    ).eval()
    ids = torch.tensor([[0, 0, 1, 2]])  # rows 0 0 and 1 2

    figures = economy.code_figures(tokenizer, tokenizer.decode(ids).detach(), ids)

    assert figures.entropy == pytest.approx(1.5)
    assert (figures.as_left, figures.in_use, figures.psnr_db) == (0.5, 3, float("inf"))
