"""Janus-Pro's token model equals transformers', prompts, guidance and output layers included."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from fleet.errors import InvalidInputError
from fleet.models.formats.janus import JanusVocabulary, load_janus
from fleet.models.formats.vq import load_vq
from fleet.models.prompts import PromptCaptions
from fleet.models.span_cache import Span
from fleet.models.spans import SpanEngine
from fleet.models.transformer import guide
from tests.unit.models.tiny_text import write_janus_text

HEADS, WIDTH, GRID, LENGTH, CODES = 4, 16, 4, 12, 20
VOCABULARY = JanusVocabulary(begin=7, padding=8, begin_image=9)
PROMPT = VOCABULARY.prompt([1, 2, 10, 11, 12, 3, 2])
IMAGE = np.random.RandomState(3).randint(0, CODES, GRID * GRID)
GUIDANCE = 5.0
_NATIVE = {
    "model.language_model.": "language_model.model.",
    "model.generation_embeddings.": "gen_embed.",
    "model.generation_aligner.fc1.": "gen_aligner.layers.0.",
    "model.generation_aligner.hidden_layers.0.": "gen_aligner.layers.2.",
    "model.generation_head.proj_out.": "gen_head.output_mlp_projector.",
    "model.generation_head.vision_head.": "gen_head.vision_head.",
    "model.vqmodel.": "gen_vision_model.",
    "lm_head.": "language_model.lm_head.",
}


@pytest.fixture(scope="module")
def theirs() -> Any:
    """Return transformers' model with random weights."""
    configuration = pytest.importorskip("transformers.models.janus.configuration_janus")
    modeling = pytest.importorskip("transformers.models.janus.modeling_janus")
    torch.manual_seed(5)
    dim = HEADS * WIDTH
    config = configuration.JanusConfig(
        text_config={
            "model_type": "llama",
            "vocab_size": 20,
            "hidden_size": dim,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": HEADS,
            "num_key_value_heads": HEADS,
            "rms_norm_eps": 1e-6,
            "max_position_embeddings": 64,
        },
        vision_config={
            "hidden_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": 32,
            "patch_size": 16,
            "projection_dim": dim,
            "num_image_tokens": GRID * GRID,
        },
        vq_config={
            "embed_dim": 8,
            "num_embeddings": CODES,
            "base_channels": 32,
            "channel_multiplier": [1, 1],
            "latent_channels": 32,
            "num_res_blocks": 1,
            "projection_dim": dim,
            "image_token_embed_dim": dim,
        },
        attn_implementation="eager",
    )
    model = modeling.JanusForConditionalGeneration(config).eval().requires_grad_(False)
    for weight in model.parameters():
        weight.copy_(torch.randn_like(weight) * 0.15 + (1.0 if weight.ndim == 1 else 0.0))
    return model


def write(theirs: Any, folder: Path, *, native: bool) -> Path:
    """Write the weights in transformers' layout or in that of the release."""
    folder.mkdir(exist_ok=True)
    weights = {}
    for name, value in theirs.state_dict().items():
        for old, new in _NATIVE.items() if native else ():
            name = name.replace(old, new, 1) if name.startswith(old) else name
        weights[name] = value.contiguous().clone()
    save_file(weights, folder / "model.safetensors")
    return folder


def expected(theirs: Any) -> Tensor:
    """Return the guided logits [16, 20] of a picture, as transformers' own loop makes them."""
    without = VOCABULARY.without(PROMPT)
    with torch.no_grad():
        text = theirs.get_input_embeddings()(torch.tensor([PROMPT, without]))
        codes = torch.from_numpy(IMAGE[:-1]).expand(2, -1)
        image = theirs.prepare_embeddings_for_image_generation(codes)
        embeddings = torch.cat([text, image], dim=1)
        hidden = theirs.model.language_model(inputs_embeds=embeddings).last_hidden_state
        logits = theirs.model.generation_head(hidden[:, len(PROMPT) - 1 :])
    return guide(logits[0], logits[1], GUIDANCE)


@pytest.mark.parametrize("native", [False, True])
def test_janus_from_both_layouts_equals_transformers(
    theirs: Any, tmp_path: Path, native: bool
) -> None:
    path = write(theirs, tmp_path, native=native)

    model = load_janus(path, prompt_length=LENGTH, grid=GRID, heads=HEADS, dtype=torch.float32)

    engine = SpanEngine(model)
    prompts = [PROMPT, VOCABULARY.without(PROMPT)]
    with torch.inference_mode():
        prompt = model.prompt(*VOCABULARY.pad(prompts, LENGTH))
    cache = engine.new_cache(2)
    for row in range(2):
        cache.begin(row, prompt, row)
    parts = [engine.logits(prompt.start)[:, None]]
    for first, last in ((0, 1), (1, 9), (9, 15)):
        spans = [Span(row, first, IMAGE[first:last]) for row in range(2)]
        parts.append(engine.logits(engine.run(cache, spans)).view(2, last - first, -1))
    cond, uncond = torch.cat(parts, dim=1)
    torch.testing.assert_close(
        guide(cond, uncond, GUIDANCE), expected(theirs), atol=5e-5, rtol=1e-5
    )


@pytest.mark.parametrize("native", [False, True])
def test_the_tokenizer_lies_in_the_same_files(theirs: Any, tmp_path: Path, native: bool) -> None:
    path = write(theirs, tmp_path, native=native)

    tokenizer = load_vq(path, unit_codes=True)

    assert (tokenizer.config.codebook_size, tokenizer.config.code_width) == (CODES, 8)


def test_a_size_that_nobody_released_needs_its_heads(theirs: Any, tmp_path: Path) -> None:
    path = write(theirs, tmp_path, native=True)

    with pytest.raises(InvalidInputError, match="2 layers of width 64, which is no released Janus"):
        load_janus(path, prompt_length=LENGTH, grid=GRID)


def test_another_model_is_refused(tmp_path: Path) -> None:
    save_file({"output.weight": torch.zeros(4, 4)}, tmp_path / "model.safetensors")

    with pytest.raises(InvalidInputError, match=r"is no Janus model: it has no codes.weight"):
        load_janus(tmp_path / "model.safetensors", prompt_length=LENGTH)


def test_a_prompt_is_a_turn_of_the_user(tmp_path: Path) -> None:
    write_janus_text(tmp_path / "tokenizer.json")
    vocabulary = JanusVocabulary.read(tmp_path / "tokenizer.json")
    captions = PromptCaptions(tmp_path / "tokenizer.json", vocabulary, LENGTH)

    prompt = captions.encode(" a red heart")

    assert vocabulary == VOCABULARY
    assert (prompt[0], prompt[-1]) == (7, 9)
    ids, valid = captions.pair(prompt)
    assert ids[1].tolist()[-len(prompt) :] == [7, *[8] * (len(prompt) - 2), 9]
    assert valid.sum(dim=1).tolist() == [len(prompt)] * 2
    for wrong, reason in (
        ("  ", "no words"),
        ("a <begin_of_image>", "special token"),
        ("a " * 20, "added for 12"),
    ):
        with pytest.raises(InvalidInputError, match=reason):
            captions.encode(wrong)
