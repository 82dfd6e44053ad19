"""Words as numbers: a small tokenizer, and a vocabulary that encodes texts as rows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

PADDING = 0
UNKNOWN = 1
# No text can hold these two: angle brackets are not part of a word.
SPECIAL_WORDS = ("<padding>", "<unknown>")

# Letters and digits of any script; an apostrophe counts inside a word (don't), not around it.
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
_LINE_BREAK = re.compile(r"<br\s*/?>")
_CURLY_APOSTROPHE = "\u2019"


def split_words(text: str) -> list[str]:
    """Return the words of a text, in lower case, without punctuation and `<br />` tags."""
    lowered = text.lower().replace(_CURLY_APOSTROPHE, "'")
    return _WORD.findall(_LINE_BREAK.sub(" ", lowered))


@dataclass(frozen=True)
class Vocabulary:
    """The words a network knows, and the number of each.

    Args:
        words: Every entry in the order of its number: padding, the unknown word, then words.
        length: Number of words a text is cut or filled up to.
    """

    words: tuple[str, ...]
    length: int

    def __post_init__(self) -> None:
        if self.words[: len(SPECIAL_WORDS)] != SPECIAL_WORDS:
            raise ValueError(
                f"words must begin with {SPECIAL_WORDS}, got {self.words[: len(SPECIAL_WORDS)]}"
            )
        if len(set(self.words)) != len(self.words):
            twice = next(word for word, count in Counter(self.words).items() if count > 1)
            raise ValueError(f"words must differ from each other, got {twice!r} more than once")
        _check_positive("length", self.length)

    def __len__(self) -> int:
        """Return the number of entries, padding and the unknown word among them."""
        return len(self.words)

    def encode(self, texts: Sequence[str]) -> Tensor:
        """Return int64 rows of shape (texts, length): the first words of each text, as numbers.

        Args:
            texts: Any number of texts. A short one is filled up with 0 at its end; a word that
                is not known is 1.
        """
        if isinstance(texts, str):
            raise TypeError(f"texts must be a sequence of texts, got one text; pass [{texts!r}]")
        rows = np.full((len(texts), self.length), PADDING, dtype=np.int64)
        find = self._numbers.get
        for row, text in zip(rows, texts, strict=True):
            numbers = [find(word, UNKNOWN) for word in split_words(text)[: self.length]]
            row[: len(numbers)] = numbers
        return torch.from_numpy(rows)

    def __repr__(self) -> str:
        return f"Vocabulary({len(self)} entries, length={self.length})"

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words)}


def build_vocabulary(
    texts: Iterable[str], *, length: int, min_count: int = 1, max_words: int | None = None
) -> Vocabulary:
    """Return the vocabulary of training texts, the most frequent word first.

    Words of the same frequency come in alphabetical order, so that it depends on nothing but the
    texts.

    Args:
        texts: Training texts; a test text must not decide what the network knows.
        length: Number of words a text is cut or filled up to.
        min_count: How often a word must occur in all texts together.
        max_words: Largest number of words, padding and the unknown word not counted; None for as
            many as there are.
    """
    _check_positive("min_count", min_count)
    if max_words is not None:
        _check_positive("max_words", max_words)
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(split_words(text))
    frequent = sorted(
        (word for word, count in counts.items() if count >= min_count),
        key=lambda word: (-counts[word], word),
    )
    if not frequent:
        raise ValueError(
            f"texts must hold a word that occurs min_count={min_count} times, got {len(counts)} "
            "different words that all occur less often; lower min_count or give more texts"
        )
    return Vocabulary((*SPECIAL_WORDS, *frequent[:max_words]), length)


def store_small(numbers: Tensor, num_entries: int) -> Tensor:
    """Return word numbers below `num_entries` in the smallest integer type that holds them."""
    smallest = next(
        kind
        for kind in (torch.uint8, torch.int16, torch.int32, torch.int64)
        if num_entries - 1 <= torch.iinfo(kind).max
    )
    return numbers.to(smallest)


def as_word_numbers(stored: Tensor) -> Tensor:
    """Return stored word numbers as the int64 an embedding reads."""
    return stored.to(torch.int64)


def _check_positive(name: str, value: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} must be a positive integer, got {value!r}")
