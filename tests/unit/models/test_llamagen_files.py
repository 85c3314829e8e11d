"""LlamaGen's files: every container gives the same model, and what is wrong is said."""

import argparse
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from fleet.errors import InvalidInputError
from fleet.models.formats.files import read_weights
from fleet.models.formats.llamagen import SIZES, grid_of, llamagen_config, load_llamagen
from tests.unit.models.llamagen_files import GRID, HEADS, caption_weights, class_weights

Weights = dict[str, Tensor]


def fully_sharded(weights: Weights) -> Any:
    """Return tensors with attributes, as FSDP leaves them: torch rebuilds those in another way."""
    kept = OrderedDict(weights)
    for value in kept.values():
        value.is_flat = False  # type: ignore[attr-defined]
    return kept


def training_run(weights: Weights) -> Any:
    args = argparse.Namespace(gpt_model="GPT-B", lr=1e-4)
    return {"model": weights, "optimizer": {"state": {}}, "steps": 7, "args": args}


CONTAINERS: dict[str, Callable[[Weights], Any]] = {
    "model": lambda weights: {"model": weights},
    "DeepSpeed": lambda weights: {"module": weights, "lr_scheduler": None},
    "state_dict": lambda weights: {"state_dict": weights},
    "bare": lambda weights: weights,
    "FSDP": fully_sharded,
    "a training run's": training_run,
    "of DDP": lambda weights: {"model": {f"module.{n}": w for n, w in weights.items()}},
    "compiled": lambda weights: {
        "model": {f"module._orig_mod.{name}": value for name, value in weights.items()}
    },
    "with buffers": lambda weights: {
        "model": weights
        | {
            "freqs_cis": torch.ones(17, 8, 2),
            "causal_mask": torch.ones(3, 3),
            "layers.0.attention.kv_cache.k_cache": torch.ones(1),
        }
    },
}


@pytest.mark.parametrize("container", CONTAINERS)
def test_llamagen_loads_from_every_container(tmp_path: Path, container: str) -> None:
    weights = class_weights()
    torch.save(CONTAINERS[container](weights), tmp_path / "c2i_tiny_256.pt")

    model = load_llamagen(tmp_path / "c2i_tiny_256.pt", GRID, heads=HEADS)

    loaded = model.state_dict()
    assert loaded.keys() == weights.keys()
    assert all(torch.equal(loaded[name], weights[name]) for name in weights)


def test_llamagen_loads_what_torch_wrote_before_its_archives(tmp_path: Path) -> None:
    path = tmp_path / "old.pt"
    torch.save({"model": class_weights()}, path, _use_new_zipfile_serialization=False)

    assert load_llamagen(path, GRID, heads=HEADS).config.n_class == 10


def test_llamagen_loads_from_safetensors(tmp_path: Path) -> None:
    save_file(caption_weights(), tmp_path / "model.safetensors")

    model = load_llamagen(tmp_path, GRID, heads=HEADS)

    assert (model.config.caption_length, model.config.caption_dim) == (120, 24)


def test_llamagen_loads_from_lanterns_layout(tmp_path: Path) -> None:
    weights = caption_weights()
    save_file(_as_lantern(weights), tmp_path / "model.safetensors")

    loaded = load_llamagen(tmp_path, GRID, heads=HEADS).state_dict()

    assert loaded.keys() == weights.keys()
    assert all(torch.equal(loaded[name], weights[name]) for name in weights)


def test_llamagen_stays_mapped_from_its_file(tmp_path: Path) -> None:
    torch.save({"model": class_weights()}, tmp_path / "mapped.pt")

    model = load_llamagen(tmp_path / "mapped.pt", GRID, heads=HEADS)

    maps = Path("/proc/self/maps").read_text()
    (line,) = [line for line in maps.splitlines() if line.endswith("mapped.pt")]
    low, high = (int(part, 16) for part in line.split()[0].split("-"))
    assert all(low <= weight.data_ptr() < high for weight in model.parameters())


def test_half_precision_leaves_the_rotation_alone(tmp_path: Path) -> None:
    torch.save({"model": class_weights()}, tmp_path / "half.pt")

    model = load_llamagen(tmp_path / "half.pt", GRID, heads=HEADS, dtype=torch.bfloat16)

    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}
    assert model.rotation.dtype == torch.float32


# ── What is refused, and what the sentence says ───────────────────────────────────────────


def without(name: str) -> Weights:
    return {key: value for key, value in class_weights().items() if key != name}


@pytest.mark.parametrize(
    ("weights", "reason"),
    [
        (without("norm.weight"), r"1 missing \(norm.weight\)"),
        (class_weights() | {"layers.0.bias": torch.ones(1)}, r"1 foreign \(layers.0.bias\)"),
        (
            class_weights() | {"output.weight": torch.ones(98, 64)},
            r"1 of another shape \(output.weight is 98x64, not 97x64\)",
        ),
        (without("tok_embeddings.weight"), "no LlamaGen model: it has no matrix tok_embeddings"),
        ({"decoder.conv_in.weight": torch.ones(1)}, "no LlamaGen model"),
        (class_weights() | {"steps": 3}, "no plain set of weights but steps"),
        ({}, "no plain set of weights"),
    ],
)
def test_llamagen_weights_that_do_not_fit_are_named(
    tmp_path: Path, weights: Any, reason: str
) -> None:
    torch.save({"model": weights}, tmp_path / "wrong.pt")

    with pytest.raises(InvalidInputError, match=reason):
        load_llamagen(tmp_path / "wrong.pt", GRID, heads=HEADS)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d", "Git LFS pointer"),
        (b"\n<!doctype html><html>", "web page"),
        (b"nothing that torch knows", "cannot be read as weights"),
    ],
)
def test_a_file_that_is_no_weights_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "wrong.pt").write_bytes(content)

    with pytest.raises(InvalidInputError, match=reason):
        read_weights(tmp_path / "wrong.pt")


@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
@pytest.mark.parametrize("kept", [0.3, 0.99])
def test_a_truncated_file_is_refused(tmp_path: Path, suffix: str, kept: float) -> None:
    path = tmp_path / f"short.{suffix}"
    torch.save(class_weights(), path) if suffix == "pt" else save_file(class_weights(), path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * kept)])

    with pytest.raises(InvalidInputError, match=r"cut short at [\d,]+ bytes: fetch it again"):
        read_weights(path)


def test_no_code_of_a_checkpoint_is_run(tmp_path: Path) -> None:
    torch.save({"model": class_weights(), "args": Trap()}, tmp_path / "trap.pt")

    with pytest.raises(InvalidInputError, match="cannot be read as weights"):
        read_weights(tmp_path / "trap.pt")


class Trap:
    """Would end the process, were it unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (SystemExit, (3,))


# ── What the shapes do not say ────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "downsampling", "grid"),
    [
        ("t2i_XL_stage1_256.pt", 16, 16),
        ("c2i_B_384.pt", 16, 24),
        ("t2i_XL_stage2_512.pt", 16, 32),
        ("c2i_L_256.pt", 8, 32),
    ],
)
def test_the_grid_comes_from_the_name(name: str, downsampling: int, grid: int) -> None:
    assert grid_of(Path(name), downsampling, None) == grid
    assert grid_of(Path(name), downsampling, grid) == grid


@pytest.mark.parametrize("name", ["model.pt", "t2i_XL_1256.pt", "from_256_to_512.pt"])
def test_the_grid_is_never_guessed(name: str) -> None:
    with pytest.raises(InvalidInputError, match="give the grid"):
        grid_of(Path(name), 16, None)

    assert grid_of(Path(name), 16, 24) == 24


def test_a_grid_that_contradicts_the_name_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="means a grid of 32, not 16"):
        grid_of(Path("t2i_XL_stage2_512.pt"), 16, 16)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: size.name)
def test_heads_come_from_the_table(size: Any) -> None:
    with torch.device("meta"):
        weights = {f"layers.{i}.norm": torch.empty(1) for i in range(size.layers)} | {
            "tok_embeddings.weight": torch.empty(16384, size.dim),
            "layers.0.feed_forward.w1.weight": torch.empty(4 * size.dim, size.dim),
            "cls_embedding.embedding_table.weight": torch.empty(1001, size.dim),
        }

    config = llamagen_config(Path("c2i_256.pt"), weights, 16)

    assert config.n_head == size.heads
    assert config.head_dim == {"3B": 100, "7B": 128}.get(size.name, 64)


def test_a_size_that_nobody_released_needs_its_heads(tmp_path: Path) -> None:
    torch.save(class_weights(), tmp_path / "tiny.pt")

    with pytest.raises(InvalidInputError, match="2 layers of width 64, which is no released"):
        load_llamagen(tmp_path / "tiny.pt", GRID)


def _as_lantern(weights: Weights) -> Weights:
    names = {
        "tok_embeddings": "model.embed_tokens",
        "cls_embedding": "model.cls_embedding",
        "output": "lm_head",
        "layers": "model.layers",
        "attention.wo": "self_attn.o_proj",
        "feed_forward.w1": "mlp.gate_proj",
        "feed_forward.w2": "mlp.down_proj",
        "feed_forward.w3": "mlp.up_proj",
        "attention_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
    }
    renamed = {}
    for name, value in weights.items():
        if "wqkv" in name:
            layer = name.split(".")[1]
            for part, rows in zip("qkv", value.chunk(3), strict=True):
                key = f"model.layers.{layer}.self_attn.{part}_proj.weight"
                renamed[key] = rows.contiguous()
            continue
        for ours, theirs in names.items():
            name = name.replace(ours, theirs)
        renamed["model.norm.weight" if name == "norm.weight" else name] = value
    return renamed
