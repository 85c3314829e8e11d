"""Models that read prompts: added from their files, drawn alone, and served by the engine."""

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from PIL import Image

from cloud_hub import app
from cloud_hub.cli import main
from cloud_hub.drawing import draw_tokens
from cloud_hub.engine.torch_runner import TorchRunner
from cloud_hub.settings import EngineSettings, HubSettings
from fleet.ids import NodeId
from fleet.models.linked import decode_tokens, linked_tokenizer, load_linked
from fleet.protocol import topics
from fleet.protocol.arrays import unpack_tokens
from fleet.protocol.condition import condition_bytes
from fleet.protocol.messages import GenerationOpened, Refused, Sampling
from fleet.transport.memory import MemoryBroker
from tests.integration.cloud_hub.hub import joined, serving
from tests.unit.cloud_hub.records import open_message
from tests.unit.models.prompt_files import (
    DIM,
    GRID,
    HEADS,
    TOKENS,
    write_chameleon,
    write_janus,
)

NODE, CAPTION = NodeId("n1"), "a red heart"
SAMPLING = Sampling(temperature=1.0, top_k=0, guidance=3.0)
RULE = ["--guidance", "3", "--temperature", "1", "--top-k", "0", "--seed", "5"]
SMALL = ["--grid", str(GRID), "--dtype", "float32", "--prompt", "16", "--name", "tiny"]

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("tokenizers")
    monkeypatch.setenv("CLOUD_HUB_DATA_DIR", str(tmp_path / "data"))
    return tmp_path


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["models", *map(str, arguments)])


def add_chameleon(work: Path, *more: str) -> Result:
    text = str(work / "text_tokenizer.json")
    files = ["--tokenizer", str(work / "vqgan.ckpt"), "--text", text]
    return run("add", "chameleon", work / "consolidated.pth", *files, *SMALL, *more)


def add_janus(work: Path, *more: str) -> Result:
    return run("add", "janus", work / "janus", "--heads", str(HEADS), *SMALL, *more)


@pytest.mark.parametrize("kind", ["chameleon", "janus"])
async def test_a_model_of_prompts_is_added_drawn_and_served(work: Path, kind: str) -> None:
    write_chameleon(work)
    write_janus(work / "janus")
    added = add_chameleon(work) if kind == "chameleon" else add_janus(work)
    assert added.exit_code == 0, added.output
    folder, picture = work / "data" / "models" / "tiny", work / "picture.png"

    drawn = run("draw", folder, CAPTION, "-o", picture, *RULE)
    settings = HubSettings(
        data_dir=work / "data",
        model=folder,
        engine=EngineSettings(cache_mib=8, threads=1),
    )
    with closing(app.open_hub(settings)) as hub:
        broker = MemoryBroker()
        async with serving(broker, hub) as _, joined(broker) as device:
            order = {"caption": CAPTION, "seed": 5, "sampling": SAMPLING, "prefix_tokens": TOKENS}
            message = open_message(family="tiny", wants_condition=True, **order)
            answer = await device.ask(topics.open_request(NODE), message)
            special = open_message(family="tiny", caption="a <s>", request_id="r2")
            refused = await device.ask(topics.open_request(NODE), special)

    assert drawn.exit_code == 0, drawn.output
    assert isinstance(answer, GenerationOpened), answer
    model = load_linked(folder)
    words = tuple(model.captions.encode(CAPTION))
    wanted = draw_tokens(TorchRunner(model, 1), words, 5, SAMPLING)
    assert unpack_tokens(answer.tokens).tolist() == wanted.tolist()
    assert len(set(wanted.tolist())) > 2
    assert len(answer.condition) == condition_bytes(DIM)
    pixels = decode_tokens(linked_tokenizer(folder), wanted)
    np.testing.assert_array_equal(np.asarray(Image.open(picture)), pixels)
    if kind == "chameleon":
        assert isinstance(refused, Refused)
        assert "special token" in refused.detail


def test_adding_says_what_a_session_with_its_prompt_takes(work: Path) -> None:
    write_chameleon(work)

    result = add_chameleon(work)

    assert result.exit_code == 0, result.output
    assert "prompts of up to 16 of 8711 text tokens" in result.output
    # Two rows of 32 cells (16 of the prompt, 16 of the picture), 2 layers of 64, float32.
    assert f"{2 * 32 * 2 * 2 * 64 * 4 / 2**20:.1f} MiB of KV cache" in result.output


@pytest.mark.parametrize(
    ("kind", "broken", "reason"),
    [
        ("chameleon", "consolidated.pth", "cut short"),
        ("chameleon", "vqgan.ckpt", "cut short"),
        ("chameleon", "text_tokenizer.json", "is not a text tokenizer's JSON file"),
        ("janus", "janus/model.safetensors", "cut short"),
        ("janus", "janus/tokenizer.json", "is not Janus-Pro's text tokenizer"),
    ],
)
def test_a_file_that_is_cut_short_is_refused(
    work: Path, kind: str, broken: str, reason: str
) -> None:
    write_chameleon(work)
    write_janus(work / "janus")
    path = work / broken
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    result = add_chameleon(work) if kind == "chameleon" else add_janus(work)

    assert result.exit_code == 2, result.output
    assert reason in result.output
    assert not (work / "data" / "models").exists()


def test_a_model_under_another_verb_is_refused(work: Path) -> None:
    write_chameleon(work)
    write_janus(work / "janus")

    vq, heads = str(work / "vqgan.ckpt"), ["--heads", str(HEADS)]
    as_llamagen = run(
        "add", "llamagen", work / "consolidated.pth", "--tokenizer", vq, *SMALL[:4], *heads
    )
    as_janus = run(
        "add", "janus", work / "consolidated.pth", "--text", work / "janus/tokenizer.json", *SMALL
    )

    assert (as_llamagen.exit_code, as_janus.exit_code) == (2, 2)
    assert "is no LlamaGen model" in as_llamagen.output
    assert "no image tokenizer" in as_janus.output or "no Janus model" in as_janus.output
