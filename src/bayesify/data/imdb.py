"""Film reviews from IMDB, for or against, in the layout of their official release.

Reference: Maas et al. (2011), "Learning word vectors for sentiment analysis".
"""

from __future__ import annotations

import re
import tarfile
from pathlib import Path

import torch

from bayesify.data.archive import extract
from bayesify.data.catalogue import data_root, datasets
from bayesify.data.dataset import DataSet, TensorData
from bayesify.data.download import Resource, fetch
from bayesify.data.text import Vocabulary, as_word_numbers, build_vocabulary, store_small

FOLDER = "aclImdb"
HALVES = ("train", "test")
LABELS = ("neg", "pos")
CLASSES = ("negative", "positive")
NUM_PER_LABEL = 12_500
"""Number of reviews of each label in each half of the release."""

ARCHIVE = Resource(
    "aclImdb_v1.tar.gz",
    "7c2ac02c03563afcf9b574c7e56c153a",
    ("https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",),
)

_REVIEW = re.compile(r"([0-9]+)_[0-9]+\.txt")
_MEMBER = re.compile(rf"{FOLDER}/({'|'.join(HALVES)})/({'|'.join(LABELS)})/{_REVIEW.pattern}")


@datasets.register("imdb")
def imdb(
    root: str | Path | None = None,
    *,
    num_reviews: int = 4 * NUM_PER_LABEL,
    length: int = 120,
    min_count: int = 12,
    max_words: int | None = None,
    seed: int = 0,
    download: bool = True,
) -> DataSet:
    """Load up to 25,000 training and 25,000 test reviews as rows of word numbers.

    Both halves hold as many negative (0) as positive (1) reviews, and are the official ones: no
    film is in both. The vocabulary is that of the training reviews taken.

    Args:
        root: Folder of the data files; they lie in `aclImdb` below it.
        num_reviews: Number of reviews, a multiple of 4: half to train, half to test.
        length: Number of words of a review that are read, from its beginning.
        min_count: How often a word must occur in the training reviews to be known.
        max_words: Largest number of known words; None for as many as there are.
        seed: Fixes which reviews are taken, where not all are.
        download: Whether files that are missing may be fetched.
    """
    if num_reviews % 4 or not 4 <= num_reviews <= 4 * NUM_PER_LABEL:
        raise ValueError(
            "num_reviews must be a multiple of 4 (two halves of two labels) from 4 to "
            f"{4 * NUM_PER_LABEL}, got {num_reviews}"
        )
    folder = data_root(root)
    _provide(folder, download=download)
    num_per_label = num_reviews // 4
    generator = torch.Generator().manual_seed(seed)
    train, test = (
        [text for label in LABELS for text in _draw(folder, half, label, num_per_label, generator)]
        for half in HALVES
    )
    vocabulary = build_vocabulary(train, length=length, min_count=min_count, max_words=max_words)
    return DataSet(
        name="imdb",
        train=_part(train, vocabulary),
        test=_part(test, vocabulary),
        task="classification",
        num_classes=len(CLASSES),
        classes=CLASSES,
        vocabulary=vocabulary,
    )


def review_paths(folder: Path, half: str, label: str) -> list[Path]:
    """Return the files of a half's reviews of one label, in the order of their numbers.

    Args:
        folder: The data root.
        half: "train" or "test".
        label: "neg" or "pos".
    """
    place = folder / FOLDER / half / label
    if not place.is_dir():
        return []
    numbered = [(_REVIEW.fullmatch(path.name), path) for path in place.iterdir()]
    return [path for _, path in sorted((int(match[1]), path) for match, path in numbered if match)]


def _draw(
    folder: Path, half: str, label: str, num_reviews: int, generator: torch.Generator
) -> list[str]:
    paths = review_paths(folder, half, label)
    chosen = torch.randperm(len(paths), generator=generator)[:num_reviews].sort().values
    return [paths[position].read_text(encoding="utf-8") for position in chosen.tolist()]


def _part(texts: list[str], vocabulary: Vocabulary) -> TensorData:
    """Return the rows of texts of which the first half is negative, the second positive."""
    rows = store_small(vocabulary.encode(texts), len(vocabulary))
    targets = torch.arange(len(CLASSES)).repeat_interleave(len(texts) // len(CLASSES))
    return TensorData(rows, targets, as_word_numbers)


def _provide(folder: Path, *, download: bool) -> None:
    """Make sure every review is on disk, from the archive on disk or on the network."""
    if min(_counts(folder).values()) < NUM_PER_LABEL:
        (path,) = fetch((ARCHIVE,), folder, download=download)
        with tarfile.open(path) as file:
            members = [name for name in file.getnames() if _MEMBER.fullmatch(name)]
        extract(path, members, folder)
    for place, count in _counts(folder).items():
        if count != NUM_PER_LABEL:
            raise ValueError(
                f"{place} must hold {NUM_PER_LABEL} reviews, got {count}; remove "
                f"{folder / FOLDER} and load again"
            )


def _counts(folder: Path) -> dict[Path, int]:
    """Return the number of reviews in each of the four folders."""
    return {
        folder / FOLDER / half / label: len(review_paths(folder, half, label))
        for half in HALVES
        for label in LABELS
    }
