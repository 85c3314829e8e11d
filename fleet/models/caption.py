"""Captions as word ids: the vocabulary both models and every command share."""

import difflib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

from fleet.errors import InvalidInputError

PAD = "<pad>"
UNKNOWN = "<unk>"
PAD_ID = 0
UNKNOWN_ID = 1
MAX_WORDS = 16

# Letters, digits and inner apostrophes or dots; everything else only separates words.
_WORD = re.compile(r"[^\W_]+(?:['’.&][^\W_]+)*")


def split_words(caption: str) -> list[str]:
    """Split a caption into lower-case words; punctuation such as the style's colon separates."""
    return _WORD.findall(caption.lower())


class Captions(Protocol):
    """What turns captions into the numbers by which a cloud model knows them."""

    def encode(self, caption: str) -> Sequence[int]:
        """Return a caption's numbers.

        Raises:
            InvalidInputError: The model cannot read it.
        """
        ...


@dataclass(frozen=True)
class ClassCaptions:
    """The captions of a class-conditional model: numbers of classes."""

    classes: int

    def encode(self, caption: str) -> list[int]:
        """Return the class that a caption such as "207" or "class 207" names.

        Raises:
            InvalidInputError: It names none.
        """
        number = caption.strip().lower().removeprefix("class").strip()
        if not (number.isascii() and number.isdigit() and int(number) < self.classes):
            raise InvalidInputError(
                f"this model draws classes: the caption is a number from 0 to {self.classes - 1}"
            )
        return [int(number)]


@dataclass(frozen=True)
class CaptionVocabulary:
    """Words by id; id 0 is padding and id 1 stands for any unknown word."""

    words: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.words[:2] != (PAD, UNKNOWN):
            raise InvalidInputError(f"a caption vocabulary starts with {PAD} and {UNKNOWN}")
        if len(set(self.words)) != len(self.words):
            raise InvalidInputError("a caption vocabulary holds each word once")

    @classmethod
    def from_captions(cls, captions: Iterable[str]) -> "CaptionVocabulary":
        """Collect the words of the captions, in alphabetical order."""
        words = {word for caption in captions for word in split_words(caption)}
        return cls((PAD, UNKNOWN, *sorted(words)))

    @classmethod
    def load(cls, path: Path) -> "CaptionVocabulary":
        """Read a vocabulary from its JSON file."""
        return cls(tuple(json.loads(path.read_text(encoding="utf-8"))["words"]))

    def save(self, path: Path) -> None:
        """Write the vocabulary as JSON."""
        text = json.dumps({"words": list(self.words)}, ensure_ascii=False, indent=0)
        path.write_text(text + "\n", encoding="utf-8")

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {word: index for index, word in enumerate(self.words)}

    def encode(self, caption: str) -> list[int]:
        """Return one id a word.

        Raises:
            InvalidInputError: the caption is empty, has more than 16 words, or has unknown words
                (the message names them and the nearest known ones).
        """
        words = split_words(caption)
        _check_length(caption, words)
        unknown = [word for word in words if word not in self._ids]
        if unknown:
            raise InvalidInputError(self._explain(unknown))
        return [self._ids[word] for word in words]

    def encode_leniently(self, caption: str) -> list[int]:
        """Return one id a word, the unknown id for words the vocabulary lacks."""
        words = split_words(caption)
        _check_length(caption, words)
        return [self._ids.get(word, UNKNOWN_ID) for word in words]

    def _explain(self, unknown: Sequence[str]) -> str:
        hints = []
        for word in unknown:
            near = difflib.get_close_matches(word, self.words[2:], n=3)
            hints.append(f"{word!r} (near: {', '.join(near)})" if near else repr(word))
        return f"unknown words in the caption: {'; '.join(hints)}"


def pad_left(ids: Sequence[int], length: int = MAX_WORDS) -> list[int]:
    """Move the ids to the end of `length` positions, as the caption prefix of LlamaGen does."""
    if len(ids) > length:
        raise InvalidInputError(f"{len(ids)} caption words do not fit in {length} positions")
    return [PAD_ID] * (length - len(ids)) + list(ids)


def _check_length(caption: str, words: Sequence[str]) -> None:
    if not words:
        raise InvalidInputError(f"the caption {caption!r} has no words")
    if len(words) > MAX_WORDS:
        raise InvalidInputError(f"the caption has {len(words)} words, {MAX_WORDS} is the limit")
