"""Tiny text tokenizers with the special tokens of Chameleon's and Janus-Pro's."""

import json
from pathlib import Path

import pytest

WORDS = ("a", "red", "heart", "blue")


def write_chameleon_text(path: Path, images: int) -> None:
    """Write a tokenizer whose image tokens are 4, 5, …, with a few words after them."""
    names = ["<s>", "<pad>", "</s>", "<unk>"]
    names += [f"IMGIMG{_letters(code)}Z" for code in range(images)]
    _write(path, [*names, *WORDS], [])


def write_janus_text(path: Path) -> None:
    """Write a tokenizer with Janus-Pro's special tokens at 7, 8 and 9."""
    names = ["<unk>", "<|User|>", ":", "<|Assistant|>", "x", "y", "z"]
    special = ["<｜begin▁of▁sentence｜>", "<｜▁pad▁｜>", "<begin_of_image>"]
    _write(path, [*names, *special, *WORDS], special)


def _write(path: Path, names: list[str], special: list[str]) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = {name: index for index, name in enumerate(names)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens(special)
    made.save(str(path))
    assert json.loads(path.read_text())["model"]["vocab"] == words


def _letters(code: int) -> str:
    return str(code).translate(str.maketrans("0123456789", "ABCDEFGHIJ"))
