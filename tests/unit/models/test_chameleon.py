"""Chameleon's token model equals transformers', whose ban on image tokens is stepped around."""

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from fleet.errors import InvalidInputError
from fleet.models.formats.chameleon import Vocabulary, load_chameleon
from fleet.models.span_cache import Span
from fleet.models.spans import SpanEngine
from fleet.models.transformer import Transformer

HEADS, WIDTH, GRID, LENGTH = 4, 16, 4, 12
VOCABULARY = Vocabulary(range(4, 24), end_of_turn=40, begin_image=25)
PROMPTS = [VOCABULARY.prompt([30, 31, 32, 47, 26]), VOCABULARY.no_prompt, VOCABULARY.prompt([28])]
IMAGE = np.random.RandomState(3).randint(0, 20, (3, GRID * GRID))


@pytest.fixture(scope="module")
def theirs() -> Any:
    """Return transformers' model with random weights, norms included."""
    configuration = pytest.importorskip("transformers.models.chameleon.configuration_chameleon")
    modeling = pytest.importorskip("transformers.models.chameleon.modeling_chameleon")
    torch.manual_seed(5)
    names = {f"IMGIMG{name(code)}Z": 4 + code for code in range(20)}
    config = configuration.ChameleonConfig(
        vocab_size=50,
        hidden_size=HEADS * WIDTH,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        rms_norm_eps=1e-5,
        vocabulary_map=names | {"<image>": 41},
        vq_config={
            "base_channels": 32,
            "channel_multiplier": [1],
            "latent_channels": 8,
            "embed_dim": 8,
            "num_embeddings": 20,
            "num_res_blocks": 1,
        },
        attn_implementation="eager",
    )
    model = modeling.ChameleonForConditionalGeneration(config).eval().requires_grad_(False)
    for weight in model.parameters():
        weight.copy_(torch.randn_like(weight) * 0.15 + (1.0 if weight.ndim == 1 else 0.0))
    for layer in model.model.layers:
        for norm in (layer.self_attn.q_norm, layer.self_attn.k_norm):
            # The released 7B has the same for every head.
            norm.weight.copy_(1 + 0.3 * torch.randn(1, WIDTH).expand(HEADS, -1))
            norm.bias.copy_(0.3 * torch.randn(1, WIDTH).expand(HEADS, -1))
    return model


def name(code: int) -> str:
    return str(code).translate(str.maketrans("0123456789", "ABCDEFGHIJ"))


def expected(theirs: Any, row: int) -> Tensor:
    """Return the logits [16, 20] of a picture's codes after a prompt, no padding anywhere."""
    ids = torch.tensor([PROMPTS[row] + [4 + code for code in IMAGE[row, :-1].tolist()]])
    with torch.no_grad():
        logits = theirs.lm_head(theirs.model(input_ids=ids).last_hidden_state)
    found: Tensor = logits[0, len(PROMPTS[row]) - 1 :, 4:24]
    return found


def decoded(model: Transformer, cuts: Sequence[int]) -> Tensor:
    """Return the same logits [3, 16, 20] from the engine, in spans that end at `cuts`."""
    engine = SpanEngine(model)
    with torch.inference_mode():
        prompt = model.prompt(*VOCABULARY.pad(PROMPTS, LENGTH))
    cache = engine.new_cache(len(PROMPTS))
    for row in range(len(PROMPTS)):
        cache.begin(row, prompt, row)
    parts = [engine.logits(prompt.start)[:, None]]
    for first, last in pairwise([0, *cuts]):
        spans = [Span(row, first, IMAGE[row, first:last]) for row in range(len(PROMPTS))]
        parts.append(engine.logits(engine.run(cache, spans)).view(len(PROMPTS), last - first, -1))
    return torch.cat(parts, dim=1)


def save_native(theirs: Any, path: Path) -> None:
    """Write the weights in the layout that Chameleon was released in."""
    names = {
        "self_attn.o_proj": "attention.wo",
        "mlp.gate_proj": "feed_forward.w1",
        "mlp.down_proj": "feed_forward.w2",
        "mlp.up_proj": "feed_forward.w3",
        "post_attention_layernorm": "ffn_norm",
        "input_layernorm": "attention_norm",
        "self_attn.q_norm": "attention.q_normalization",
        "self_attn.k_norm": "attention.k_normalization",
        "self_attn.q_proj": "attention.wq",
        "self_attn.k_proj": "attention.wk",
        "self_attn.v_proj": "attention.wv",
        "model.embed_tokens": "tok_embeddings",
        "model.layers": "layers",
        "model.norm": "norm",
        "lm_head": "output",
    }
    native = {"rope.freqs": torch.ones(WIDTH // 2)}
    for key, value in theirs.state_dict().items():
        if "vqmodel" in key:
            continue
        for old, new in names.items():
            key = key.replace(old, new)
        if key.endswith(("wq.weight", "wk.weight")):
            value = value.view(HEADS, 2, WIDTH // 2, -1).transpose(1, 2).reshape(value.shape)
        elif "normalization" in key:
            value = value[0].view(2, WIDTH // 2).t().reshape(-1)
        native[key] = value.clone()
    torch.save(native, path)


def test_chameleon_from_both_layouts_equals_transformers(theirs: Any, tmp_path: Path) -> None:
    weights = {key: value.contiguous() for key, value in theirs.state_dict().items()}
    save_file(weights, tmp_path / "model.safetensors")
    save_native(theirs, tmp_path / "consolidated.pth")
    wanted = torch.stack([expected(theirs, row) for row in range(len(PROMPTS))])

    for path in (tmp_path / "model.safetensors", tmp_path / "consolidated.pth"):
        model = load_chameleon(
            path, VOCABULARY, prompt_length=LENGTH, grid=GRID, dtype=torch.float32
        )
        for cuts in ([15], [1, 2, 9, 15]):
            torch.testing.assert_close(decoded(model, cuts), wanted, atol=2e-5, rtol=1e-5)


def test_a_prompts_padding_changes_nothing(theirs: Any, tmp_path: Path) -> None:
    save_native(theirs, tmp_path / "consolidated.pth")
    model = load_chameleon(
        tmp_path / "consolidated.pth",
        VOCABULARY,
        prompt_length=LENGTH,
        grid=GRID,
        dtype=torch.float32,
    )

    tight, wide = (model.prompt(*VOCABULARY.pad(PROMPTS[:1], size)).start for size in (8, 12))

    torch.testing.assert_close(tight, wide)


def test_only_image_tokens_can_be_drawn_from_chameleon(theirs: Any, tmp_path: Path) -> None:
    save_native(theirs, tmp_path / "consolidated.pth")

    model = load_chameleon(
        tmp_path / "consolidated.pth", VOCABULARY, prompt_length=LENGTH, grid=GRID
    )

    assert model.output.weight.shape == (20, HEADS * WIDTH)
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}
    table = model.state_dict()["cls_embedding.text_embeddings.weight"]
    assert torch.equal(model.tok_embeddings.weight, table[4:24])


def test_the_released_prompts() -> None:
    vocabulary = Vocabulary()

    assert vocabulary.prompt([100, 101]) == [0, 100, 101, 8710, 8197]
    assert vocabulary.no_prompt == [0, 8197]
    assert (len(vocabulary.images), vocabulary.images[0], vocabulary.images[-1]) == (8192, 4, 8195)
    ids, valid = vocabulary.pad([vocabulary.no_prompt, vocabulary.prompt([9])], 5)
    assert ids.tolist() == [[1, 1, 1, 0, 8197], [1, 0, 9, 8710, 8197]]
    assert valid.sum(dim=1).tolist() == [2, 4]


def test_image_tokens_come_from_the_text_tokenizer(tmp_path: Path) -> None:
    path = tmp_path / "text_tokenizer.json"
    words = {f"IMGIMG{name(code)}Z": 4 + code for code in range(300)} | {"hello": 900}
    path.write_text(json.dumps({"model": {"vocab": words}}))

    assert list(Vocabulary.read(path).images) == list(range(4, 304))

    words["IMGIMGAZ"], words["IMGIMGBZ"] = words["IMGIMGBZ"], words["IMGIMGAZ"]
    path.write_text(json.dumps({"model": {"vocab": words}}))
    with pytest.raises(InvalidInputError, match="in the order of codes"):
        Vocabulary.read(path)


def test_what_is_no_chameleon_is_refused(tmp_path: Path) -> None:
    weights = {
        "tok_embeddings.weight": torch.ones(50, 64),
        "layers.0.feed_forward.w1.weight": torch.ones(96, 64),
    }
    torch.save(weights, tmp_path / "llama.pth")

    with pytest.raises(InvalidInputError, match="does not normalise its queries"):
        load_chameleon(tmp_path / "llama.pth", VOCABULARY, prompt_length=LENGTH)
    with pytest.raises(InvalidInputError, match="has 50 tokens, but the image's go up to 8195"):
        load_chameleon(tmp_path / "llama.pth", Vocabulary(), prompt_length=LENGTH)
