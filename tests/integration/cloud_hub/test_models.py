"""Models that people bring: added, described, served, and refused when they are wrong."""

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result

from cloud_hub import app
from cloud_hub.cli import main
from cloud_hub.settings import EngineSettings, HubSettings
from fleet.decoding.noise import gumbel
from fleet.decoding.sampling import draw, sharpen
from fleet.errors import BundleError, InvalidInputError
from fleet.ids import NodeId
from fleet.models.caption_features import FeatureFile, caption_hash, left_pad, save_features
from fleet.models.checkpoint import save_checkpoint
from fleet.models.formats.llamagen import load_llamagen
from fleet.models.image_tokenizer import ImageTokenizer, ImageTokenizerConfig
from fleet.models.transformer import Transformer, guide
from fleet.protocol import topics
from fleet.protocol.arrays import unpack_tokens
from fleet.protocol.messages import GenerationOpened, Refused, Sampling
from fleet.transport.memory import MemoryBroker
from tests.integration.cloud_hub.hub import joined, serving
from tests.unit.cloud_hub.records import open_message
from tests.unit.models.llamagen_files import GRID, caption_weights, class_weights
from tests.unit.models.tiny_t5 import write_t5

NODE = NodeId("n1")
TINY = ["--heads", "4", "--dtype", "float32"]
PICTURE = GRID * GRID
CAPTION = "a red heart"


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with tiny files named as the released ones are; pictures of 256 pixels."""
    monkeypatch.setenv("CLOUD_HUB_DATA_DIR", str(tmp_path / "data"))
    torch.save({"model": class_weights()}, tmp_path / "c2i_B_256.pt")
    torch.save({"model": caption_weights()}, tmp_path / "t2i_XL_stage1_256.pt")
    tokenizer = ImageTokenizer(
        ImageTokenizerConfig(
            32, (1,) * 7, latent_channels=8, codebook_size=97, norm_groups=32, attention=True
        )
    )
    save_checkpoint(tmp_path / "vq.pt", {"model": tokenizer.state_dict()})
    (tmp_path / "page.pt").write_text("<html>not found</html>")
    (tmp_path / "start.pt").write_bytes((tmp_path / "c2i_B_256.pt").read_bytes()[:5000])
    features = torch.randn(3, 24, generator=torch.Generator().manual_seed(1))
    save_features(tmp_path / "captions.safetensors", {caption_hash(CAPTION): features})
    return tmp_path


def add(work: Path, weights: str, *more: str) -> Result:
    arguments = ["models", "add", "llamagen", str(work / weights)]
    return CliRunner().invoke(main, [*arguments, "--tokenizer", str(work / "vq.pt"), *more])


def served(work: Path, name: str) -> app.Hub:
    settings = HubSettings(
        data_dir=work / "data",
        model=work / "data" / "models" / name,
        engine=EngineSettings(cache_mib=8, threads=1),
    )
    return app.open_hub(settings)


async def opened(hub: app.Hub, **changes: Any) -> Any:
    broker = MemoryBroker()
    with closing(hub):
        async with serving(broker, hub) as _, joined(broker) as device:
            message = open_message(family=hub.identity.family, **changes)
            return await device.ask(topics.open_request(NODE), message)


def test_adding_a_model_says_what_it_is(work: Path) -> None:
    result = add(work, "c2i_B_256.pt", *TINY)

    assert result.exit_code == 0, result.output
    said = dict(line.split(maxsplit=1) for line in result.output.splitlines() if line[0] != " ")
    parameters = sum(value.numel() for value in class_weights().values())
    assert said["parameters"] == f"{parameters:,} in 2 layers of 64"
    assert said["weights"].endswith("bytes of float32")
    assert said["grid"] == "4 x 4 tokens: pictures of 256 x 256 pixels"
    assert said["tokenizer"] == "97 codes of 8, 64 pixels a token"
    assert said["condition"].startswith("10 classes")
    assert said["serve"].startswith("it with CLOUD_HUB_MODEL=")
    # 2 rows of 32 cells: keys and values of 2 layers in float32.
    assert f"{2 * 32 * 2 * 2 * 64 * 4 / 2**20:.1f} MiB of KV cache" in result.output


def drawn(model: Transformer, pair: Any, sampling: Sampling, seed: int) -> list[int]:
    """Return the picture that the model draws by itself, without an engine."""
    config, tokens = model.config, torch.zeros(2, 0, dtype=torch.long)
    past = torch.zeros(config.n_layer, 2, 2, config.n_head, 0, config.head_dim)
    state, noise = pair.start, gumbel(seed, np.arange(PICTURE), config.vocab_size)
    for position in range(PICTURE):
        logits = model.output(state)
        guided = guide(logits[:1], logits[1:], sampling.guidance).numpy()
        token = int(draw(sharpen(guided, sampling), noise[position : position + 1])[0])
        tokens = torch.cat([tokens, torch.full((2, 1), token)], dim=1)
        hidden, rows = model.span(tokens[:, -1:], past, pair)
        past, state = torch.cat([past, rows], dim=4), hidden[:, 0]
    return tokens[0].tolist()


SAMPLING = Sampling(temperature=1.0, top_k=0, guidance=4.0)


async def test_an_added_class_model_is_served(work: Path) -> None:
    assert add(work, "c2i_B_256.pt", *TINY).exit_code == 0

    answer = await opened(
        served(work, "llamagen-c2i-256"),
        caption="class 3",
        prefix_tokens=PICTURE,
        seed=5,
        sampling=SAMPLING,
    )

    assert isinstance(answer, GenerationOpened), answer
    model = load_llamagen(work / "c2i_B_256.pt", GRID, heads=4)
    pair = model.condition_classes(torch.tensor([3, 10]))
    assert unpack_tokens(answer.tokens).tolist() == drawn(model, pair, SAMPLING, 5)


def test_an_added_model_names_its_own_precision(work: Path) -> None:
    assert add(work, "c2i_B_256.pt", *TINY).exit_code == 0
    folder = work / "data" / "models" / "llamagen-c2i-256"

    with pytest.raises(InvalidInputError, match=r"engine\.precision .* names its own, dtype"):
        app.open_hub(
            HubSettings(
                data_dir=work / "data",
                model=folder,
                engine=EngineSettings(precision="bf16"),
            )
        )


async def test_an_added_caption_model_is_served_from_a_feature_file(work: Path) -> None:
    path = work / "captions.safetensors"
    assert add(work, "t2i_XL_stage1_256.pt", *TINY, "--captions", str(path)).exit_code == 0

    answer = await opened(
        served(work, "llamagen-t2i-256"),
        caption=CAPTION,
        prefix_tokens=PICTURE,
        seed=5,
        sampling=SAMPLING,
    )

    assert isinstance(answer, GenerationOpened), answer
    model = load_llamagen(work / "t2i_XL_stage1_256.pt", GRID, heads=4)
    features, valid = left_pad(FeatureFile(path).encode(CAPTION), 120)
    pair = model.condition_features(
        features.expand(2, -1, -1), valid.expand(2, -1), torch.tensor([False, True])
    )
    assert unpack_tokens(answer.tokens).tolist() == drawn(model, pair, SAMPLING, 5)


async def test_an_added_caption_model_is_served_with_a_t5_in_half_precision(work: Path) -> None:
    write_t5(work / "t5")
    result = add(work, "t2i_XL_stage1_256.pt", "--heads", "4", "--text", str(work / "t5"))
    assert result.exit_code == 0, result.output

    answer = await opened(served(work, "llamagen-t2i-256"), caption="a blue heart", prefix_tokens=3)

    assert isinstance(answer, GenerationOpened), answer
    kept = work / "data" / "models" / "llamagen-t2i-256" / "captions"
    assert [path.stem for path in kept.iterdir()] == [caption_hash("a blue heart")]


async def test_a_caption_without_features_is_refused(work: Path) -> None:
    path = work / "captions.safetensors"
    assert add(work, "t2i_XL_stage1_256.pt", *TINY, "--captions", str(path)).exit_code == 0

    answer = await opened(served(work, "llamagen-t2i-256"), caption="a dog", prefix_tokens=1)

    assert isinstance(answer, Refused)
    assert "features of 1 captions, but not of this one" in answer.detail


@pytest.mark.parametrize(
    ("weights", "more", "reason"),
    [
        ("missing_256.pt", [], "there are no weights at"),
        ("c2i_B_256.pt", ["--heads", "4", "--grid", "16"], "means a grid of 4, not 16"),
        ("c2i_B_256.pt", [], "no released LlamaGen size"),
        ("page.pt", [], "is a web page, not weights"),
        ("start.pt", [], "is cut short at 5,000 bytes"),
        ("t2i_7B_512x.pt", ["--grid", "65"], "65 is not in the range"),
        ("vq.pt", ["--grid", "4"], "no LlamaGen model: it has no matrix tok_embeddings.weight"),
        ("t2i_XL_stage1_256.pt", TINY, "name a folder with a T5 or a file of features"),
        ("t2i_XL_stage1_256.pt", [*TINY, "--text", "/nowhere"], "there is no T5 in /nowhere"),
    ],
)
def test_what_cannot_be_served_is_refused(
    work: Path, weights: str, more: list[str], reason: str
) -> None:
    result = add(work, weights, *more)

    assert result.exit_code == 2
    assert reason in result.output
    assert not (work / "data" / "models").exists()


def test_a_truncated_model_is_refused(work: Path) -> None:
    whole = (work / "c2i_B_256.pt").read_bytes()
    (work / "c2i_B_256.pt").write_bytes(whole[: len(whole) // 2])

    result = add(work, "c2i_B_256.pt", *TINY)

    assert result.exit_code == 2
    assert f"is cut short at {len(whole) // 2:,} bytes: fetch it again" in result.output


def test_a_tokenizer_of_too_many_tokens_is_refused(work: Path) -> None:
    fine = ImageTokenizerConfig(
        32, (1, 1), latent_channels=8, codebook_size=97, norm_groups=32, attention=True
    )
    save_checkpoint(work / "vq.pt", {"model": ImageTokenizer(fine).state_dict()})

    result = add(work, "c2i_B_256.pt", *TINY)

    assert result.exit_code == 2
    assert "of 2 pixels a token, pictures would have 128 x 128 tokens" in result.output


def test_a_tokenizer_of_another_model_is_refused(work: Path) -> None:
    torch.save(
        {
            "model": class_weights()
            | {name: torch.zeros(98, 64) for name in ("tok_embeddings.weight", "output.weight")}
        },
        work / "c2i_B_256.pt",
    )

    result = add(work, "c2i_B_256.pt", *TINY)

    assert result.exit_code == 2
    assert "draws from 98 codes, but vq.pt has 97" in result.output


@pytest.mark.parametrize("change", ["touched", "gone"])
def test_a_file_that_changed_since_is_not_served(work: Path, change: str) -> None:
    assert add(work, "c2i_B_256.pt", *TINY).exit_code == 0
    path = work / "c2i_B_256.pt"
    path.unlink() if change == "gone" else torch.save({"model": caption_weights()}, path)

    with pytest.raises(BundleError, match="add the model again"):
        served(work, "llamagen-c2i-256")


def test_captions_become_a_file_of_features(work: Path) -> None:
    write_t5(work / "t5")
    (work / "captions.txt").write_text("a red heart\n\na blue heart\n")
    output = work / "more.safetensors"
    arguments = [str(work / "captions.txt"), "--text", str(work / "t5"), "--output", str(output)]

    result = CliRunner().invoke(main, ["models", "captions", *arguments])

    assert result.exit_code == 0, result.output
    assert result.stdout == f"{output} holds 2 captions\n"
    assert FeatureFile(output).encode("A blue heart").shape == (4, 24)
