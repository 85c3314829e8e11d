"""Captions become word ids, and bad ones are refused with a reason."""

from pathlib import Path

import pytest

from fleet.errors import InvalidInputError
from fleet.models.caption import CaptionVocabulary, pad_left, split_words


@pytest.fixture
def vocabulary() -> CaptionVocabulary:
    return CaptionVocabulary.from_captions(["google: red heart", "fluent: ninja, dark skin tone"])


def test_the_style_is_a_word_of_its_own() -> None:
    assert split_words("Google: Red Heart") == ["google", "red", "heart"]


def test_words_get_their_ids_in_order(vocabulary: CaptionVocabulary) -> None:
    ids = vocabulary.encode("fluent: red ninja")

    assert [vocabulary.words[index] for index in ids] == ["fluent", "red", "ninja"]


def test_unknown_words_are_named_with_near_matches(vocabulary: CaptionVocabulary) -> None:
    with pytest.raises(InvalidInputError, match=r"'hart' \(near: heart\); 'xyzzy'"):
        vocabulary.encode("google: hart xyzzy")


def test_a_caption_without_words_is_refused(vocabulary: CaptionVocabulary) -> None:
    with pytest.raises(InvalidInputError, match="no words"):
        vocabulary.encode(" : ")


def test_a_caption_of_seventeen_words_is_refused(vocabulary: CaptionVocabulary) -> None:
    with pytest.raises(InvalidInputError, match="17 words"):
        vocabulary.encode("red " * 17)


def test_a_vocabulary_survives_its_file(vocabulary: CaptionVocabulary, tmp_path: Path) -> None:
    vocabulary.save(tmp_path / "vocabulary.json")

    assert CaptionVocabulary.load(tmp_path / "vocabulary.json") == vocabulary


def test_words_end_at_the_last_caption_position() -> None:
    assert pad_left([5, 6], 4) == [0, 0, 5, 6]
