"""Image tokenizers as released: LlamaGen's golden pixels, and transformers' networks."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fleet.errors import InvalidInputError
from fleet.models.formats.vq import load_vq, vq_names
from fleet.models.image_tokenizer import ImageTokenizer, ImageTokenizerConfig
from tests.unit.models.llamagen_files import draw

FOLDER = Path(__file__).parents[2] / "golden"
GOLDEN = json.loads((FOLDER / "llamagen_vq.json").read_text())
RELEASED = {"VQ-16": (1, 1, 2, 2, 4), "VQ-8": (1, 2, 2, 4)}
SMALL = ImageTokenizerConfig(
    channels=32,
    channel_multipliers=(1, 1, 2),
    encoder_blocks=2,
    decoder_blocks=3,
    latent_channels=16,
    codebook_size=40,
    code_width=8,
    norm_groups=32,
    attention=True,
)


def listed(name: str) -> dict[str, dict[str, tuple[int, ...]]]:
    """Return names and shapes of a list of keys, by its headings; without one, under ""."""
    parts: dict[str, dict[str, tuple[int, ...]]] = {}
    heading = ""
    for line in (FOLDER / name).read_text().splitlines():
        if line.startswith("#"):
            heading = line[2:].split(":")[0]
        else:
            key, shape = line.split("\t")
            numbers = shape.strip("(), ").split(", ")
            parts.setdefault(heading, {})[key] = tuple(map(int, numbers))
    return parts


def golden_weights(name: str) -> dict[str, Tensor]:
    shapes = listed("llamagen_vq_keys.txt")[name] | {"quantize.embedding.weight": (512, 8)}
    return {key: _scaled(key, shape) for key, shape in shapes.items()}


def _scaled(name: str, shape: tuple[int, ...]) -> Tensor:
    if name == "quantize.codebook_used":
        return torch.zeros(shape)
    drawn = draw(name, shape)
    if name.endswith("bias"):
        return torch.from_numpy(0.02 * drawn).float()
    if "norm" in name:
        return torch.from_numpy(1 + 0.1 * drawn).float()
    if name == "quantize.embedding.weight":
        return torch.from_numpy(drawn).float()
    return torch.from_numpy(drawn / np.sqrt(np.prod(shape[1:]))).float()


@pytest.mark.parametrize("name", RELEASED)
def test_llamagen_tokenizers_draw_golden_pixels(tmp_path: Path, name: str) -> None:
    expected = GOLDEN[name]
    torch.save({"model": golden_weights(name)}, tmp_path / "vq.pt")

    tokenizer = load_vq(tmp_path / "vq.pt", unit_codes=True)

    codes = tokenizer.quantize.codes[torch.tensor(expected["idx"])]
    picture = tokenizer.decode_features(codes.transpose(1, 2).reshape(1, 8, 4, 4))
    corners = torch.cat([picture[0, :, 0, 0], picture[0, :, -1, -1]])
    assert list(picture.shape) == expected["shape"]
    assert float(picture.mean()) == pytest.approx(expected["mean"], abs=1e-6)
    assert float(picture.std()) == pytest.approx(expected["std"], abs=1e-6)
    assert (corners - torch.tensor(expected["px"])).abs().max() < 1e-4
    seen = np.tanh(np.random.RandomState(6).standard_normal(expected["shape"]))
    assert tokenizer.encode(torch.from_numpy(seen).float())[0].tolist() == expected["enc_ids"]


@pytest.mark.parametrize("name", RELEASED)
def test_llamagen_tokenizers_have_the_released_size(name: str) -> None:
    shapes = listed("llamagen_vq_keys.txt")[name]
    with torch.device("meta"):
        config = ImageTokenizerConfig(
            128, RELEASED[name], 2, 3, 256, 16384, 8, norm_groups=32, attention=True
        )
        weights = ImageTokenizer(config).state_dict()

    assert config.downsampling == int(name.removeprefix("VQ-"))
    assert {key: tuple(value.shape) for key, value in weights.items()} == {
        key: shape for key, shape in shapes.items() if key != "quantize.codebook_used"
    }


def test_chameleons_tokenizer_has_the_released_size() -> None:
    with torch.device("meta"):
        released = {
            name: torch.empty(shape)
            for name, shape in listed("chameleon_vqgan_keys.txt")[""].items()
        }
        config = ImageTokenizerConfig(
            128,
            (1, 1, 2, 2, 4),
            encoder_blocks=2,
            decoder_blocks=3,
            latent_channels=256,
            codebook_size=8192,
            code_width=256,
            norm_groups=32,
            attention=True,
            level_attention=False,
            unit_codes=False,
        )
        ours = ImageTokenizer(config).state_dict()

    renamed = {name: value.shape for name, value in vq_names(released).items()}

    assert renamed == {name: value.shape for name, value in ours.items()}


# ── The same networks in transformers ─────────────────────────────────────────────────────


def random_tokenizer(config: ImageTokenizerConfig) -> ImageTokenizer:
    torch.manual_seed(3)
    tokenizer = ImageTokenizer(config).eval().requires_grad_(False)
    for weight in tokenizer.parameters():
        weight.copy_(torch.randn_like(weight) * (0.1 if weight.ndim > 1 else 0.5))
    return tokenizer


def taming_names(tokenizer: ImageTokenizer, *, highest_first: bool) -> dict[str, Tensor]:
    """Return the weights as taming or transformers would name them."""
    last = len(tokenizer.config.channel_multipliers) - 1
    renamed = {}
    for name, value in tokenizer.state_dict().items():
        parts = name.split(".")
        if parts[1] == "mid":
            parts[2] = ("block_1", "attn_1", "block_2")[int(parts[2])]
        elif parts[1] == "conv_blocks":
            is_decoder = parts[0] == "decoder"
            level = int(parts[2])
            parts[1] = "up" if is_decoder else "down"
            parts[2] = str(last - level if is_decoder and highest_first else level)
            parts[3] = "block" if parts[3] == "res" else parts[3]
        renamed[".".join(parts)] = value.clone()
    return renamed


@pytest.mark.parametrize("highest_first", [True, False])
def test_other_names_load_as_the_same_tokenizer(tmp_path: Path, highest_first: bool) -> None:
    tokenizer = random_tokenizer(SMALL)
    weights = taming_names(tokenizer, highest_first=highest_first)
    extra = {"loss.discriminator.main.0.weight": torch.ones(1)}
    torch.save({"state_dict": weights | extra}, tmp_path / "vqgan.ckpt")

    loaded = load_vq(tmp_path / "vqgan.ckpt", unit_codes=True)

    assert loaded.config == SMALL
    expected = tokenizer.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in loaded.state_dict().items())


def janus(tokenizer: ImageTokenizer) -> Any:
    """Return transformers' Janus tokenizer with these weights."""
    modeling = pytest.importorskip("transformers.models.janus.modeling_janus")
    configuration = pytest.importorskip("transformers.models.janus.configuration_janus")
    ours = tokenizer.config
    config = configuration.JanusVQVAEConfig(
        embed_dim=ours.code_width,
        num_embeddings=ours.codebook_size,
        latent_channels=ours.latent_channels,
        double_latent=False,
        in_channels=3,
        base_channels=ours.channels,
        channel_multiplier=list(ours.channel_multipliers),
        num_res_blocks=ours.encoder_blocks,
        num_patches=4,
        out_channels=3,
    )
    theirs = modeling.JanusVQVAE(config).eval().requires_grad_(False)
    if not ours.level_attention:
        theirs.decoder.up[0].attn = torch.nn.ModuleList()
        theirs.encoder.down[-1].attn = torch.nn.ModuleList()
    theirs.load_state_dict(taming_names(tokenizer, highest_first=False))
    return theirs


def test_llamagens_decoder_equals_transformers_janus() -> None:
    tokenizer = random_tokenizer(SMALL)
    ids = torch.randint(0, 40, (2, 16), generator=torch.Generator().manual_seed(1))

    expected = janus(tokenizer).decode(ids)

    codes = tokenizer.quantize.codes[ids].transpose(1, 2).reshape(2, 8, 4, 4)
    torch.testing.assert_close(tokenizer.decode_features(codes), expected, atol=1e-5, rtol=1e-5)


def test_chameleons_decoder_equals_transformers_without_its_attention() -> None:
    config = ImageTokenizerConfig(
        **{**vars(SMALL), "level_attention": False, "unit_codes": False, "codebook_size": 41}
    )
    tokenizer = random_tokenizer(config)
    ids = torch.randint(0, 41, (2, 16), generator=torch.Generator().manual_seed(1))
    codes = tokenizer.quantize.codes[ids].transpose(1, 2).reshape(2, 8, 4, 4)
    theirs = janus(tokenizer)

    expected = theirs.decoder(theirs.post_quant_conv(codes))

    torch.testing.assert_close(tokenizer.decode_features(codes), expected, atol=1e-5, rtol=1e-5)


def test_chameleons_encoder_equals_transformers() -> None:
    modeling = pytest.importorskip("transformers.models.chameleon.modeling_chameleon")
    configuration = pytest.importorskip("transformers.models.chameleon.configuration_chameleon")
    config = ImageTokenizerConfig(**{**vars(SMALL), "level_attention": False, "unit_codes": False})
    tokenizer = random_tokenizer(config)
    theirs = modeling.ChameleonVQVAE(
        configuration.ChameleonVQVAEConfig(
            embed_dim=8,
            num_embeddings=40,
            latent_channels=16,
            resolution=16,
            base_channels=32,
            channel_multiplier=[1, 1, 2],
            num_res_blocks=2,
            attn_resolutions=[],
        )
    )
    theirs.eval().load_state_dict(taming_names(tokenizer, highest_first=True), strict=False)
    pictures = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(1)) * 2 - 1

    with torch.no_grad():
        expected = theirs.encode(pictures).image_tokens

    assert torch.equal(tokenizer.encode(pictures), expected.view(2, 16))


# ── What is refused ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("lost", "reason"),
    [
        ("decoder.conv_out.bias", r"1 missing \(decoder.conv_out.bias\)"),
        ("encoder.conv_in.weight", "holds no image tokenizer: it has no encoder.conv_in.weight"),
    ],
)
def test_a_tokenizer_that_lacks_a_weight_is_refused(tmp_path: Path, lost: str, reason: str) -> None:
    weights = random_tokenizer(SMALL).state_dict()
    del weights[lost]
    torch.save({"model": weights}, tmp_path / "vq.pt")

    with pytest.raises(InvalidInputError, match=reason):
        load_vq(tmp_path / "vq.pt", unit_codes=True)
