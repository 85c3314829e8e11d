"""Captions as prompts of text tokens, which an image's tokens follow in one row."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from fleet.errors import InvalidInputError


class PromptStyle(Protocol):
    """How a family of models frames a caption."""

    def text(self, caption: str) -> str:
        """Return the text that is tokenised."""
        ...

    def prompt(self, text: Sequence[int]) -> list[int]:
        """Return a prompt's tokens for text ids that carry no special tokens."""
        ...

    def without(self, prompt: Sequence[int]) -> list[int]:
        """Return the tokens of a prompt's unconditional branch."""
        ...

    def is_text(self, token: int) -> bool:
        """Whether a caption may hold a token."""
        ...

    def pad(self, prompts: Sequence[Sequence[int]], length: int) -> tuple[Tensor, Tensor]:
        """Return ids [B, length], padded on the left, and what is no padding [B, length]."""
        ...


class PromptCaptions:
    """Captions of a served model: a caption's prompt, and the pair that guidance needs."""

    def __init__(self, tokenizer: Path, style: PromptStyle, length: int) -> None:
        """Read a text tokenizer's JSON file; prompts have at most `length` tokens.

        Raises:
            InvalidInputError: It is no such file, or the tokenizers package is not installed.
        """
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise InvalidInputError(
                "prompts need the tokenizers package: pip install 'ciar-fleet[text]'"
            ) from error
        try:
            self._tokenizer: Any = Tokenizer.from_file(str(tokenizer))
        except Exception as error:  # the package raises bare exceptions
            raise InvalidInputError(f"{tokenizer} is no text tokenizer: {error}") from error
        self._style, self._length = style, length

    def encode(self, caption: str) -> tuple[int, ...]:
        """Return the tokens of a caption's prompt.

        Raises:
            InvalidInputError: It is empty, too long, or holds what is no text.
        """
        if not caption.strip():
            raise InvalidInputError("the caption has no words")
        if not all(map(self._style.is_text, self._ids(caption))):
            raise InvalidInputError("the caption holds a special token of the model")
        prompt = self._style.prompt(self._ids(self._style.text(caption.strip())))
        if len(prompt) > self._length:
            raise InvalidInputError(
                f"the caption's prompt has {len(prompt)} tokens, this model was added for"
                f" {self._length}"
            )
        return tuple(prompt)

    def pair(self, prompt: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return a prompt and its unconditional branch, padded [2, C], and what is valid."""
        return self._style.pad([prompt, self._style.without(prompt)], self._length)

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def pad_prompts(
    prompts: Sequence[Sequence[int]], length: int, padding: int
) -> tuple[Tensor, Tensor]:
    """Pad prompts on the left; return ids [B, length] and what is no padding [B, length].

    Raises:
        InvalidInputError: A prompt is longer.
    """
    longest = max(map(len, prompts))
    if longest > length:
        raise InvalidInputError(f"a prompt of {longest} tokens does not fit in {length}")
    rows = [[padding] * (length - len(p)) + list(p) for p in prompts]
    valid = [[False] * (length - len(p)) + [True] * len(p) for p in prompts]
    return torch.tensor(rows), torch.tensor(valid)
