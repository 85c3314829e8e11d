"""A tiny random T5 in a folder, as transformers saves it."""

from pathlib import Path
from typing import Any

import pytest
import torch

WIDTH = 24


def write_t5(folder: Path) -> Any:
    """Write encoder and tokenizer; return transformers' own encoder."""
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    words = {"<pad>": 0, "</s>": 1, "<unk>": 2, "a": 3, "red": 4, "heart": 5, "blue": 6}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(folder)
    torch.manual_seed(2)
    config = transformers.T5Config(
        vocab_size=len(words),
        d_model=WIDTH,
        d_kv=6,
        d_ff=32,
        num_layers=2,
        num_heads=4,
        feed_forward_proj="gated-gelu",
    )
    model = transformers.T5EncoderModel(config).eval()
    model.save_pretrained(folder)
    return model
