import hashlib
import io
import shutil
import tarfile

import pytest
import torch

from bayesify.data import DataNotFoundError, imdb, load_dataset, loader
from bayesify.data.imdb import HALVES, LABELS, Resource, review_paths
from bayesify.recipes.recipe import make_recipe
from bayesify.recipes.run import build

NUM_PER_LABEL = 12
OPINION = {"neg": "awful", "pos": "lovely"}


@pytest.fixture
def root(tmp_path, monkeypatch):
    """Return a folder in the official layout with twelve reviews of each kind."""
    monkeypatch.setattr(imdb, "NUM_PER_LABEL", NUM_PER_LABEL)
    folder = tmp_path / "root"
    for half in HALVES:
        for label in LABELS:
            place = folder / "aclImdb" / half / label
            place.mkdir(parents=True)
            for number in range(NUM_PER_LABEL):
                text = f"{half} {label}{number}<br /><br />An {OPINION[label]} film."
                (place / f"{number}_{number % 10 + 1}.txt").write_text(text, encoding="utf-8")
    return folder


def load(root, **options):
    chosen = {"num_reviews": 4 * NUM_PER_LABEL, "length": 6, "min_count": 1, "download": False}
    return load_dataset("imdb", root, **{**chosen, **options})


def texts_of(data, part):
    words = data.vocabulary.words
    return [" ".join(words[number] for number in row if number) for row in part.inputs.tolist()]


def test_imdb_reads_the_official_layout(root):
    data = load(root)
    assert data.input_shape == (6,)
    assert data.classes == ("negative", "positive")
    assert data.train.targets.tolist() == data.test.targets.tolist() == [0] * 12 + [1] * 12
    # By number, not by name: the third review is number 2, not 10.
    assert texts_of(data, data.train)[2] == "train neg2 an awful film"
    assert texts_of(data, data.train)[-1] == "train pos11 an lovely film"


def test_imdb_knows_no_word_of_the_test_half_alone(root):
    data = load(root)
    assert "train" in data.vocabulary.words
    assert "test" not in data.vocabulary.words
    assert texts_of(data, data.test)[0] == "<unknown> neg0 an awful film"


def test_imdb_gives_batches_an_embedding_can_read(root):
    data = load(root)
    assert data.train.inputs.dtype == torch.uint8
    inputs, targets = next(iter(loader(data.train, 8)))
    assert inputs.dtype == targets.dtype == torch.int64
    assert inputs.max() < len(data.vocabulary)
    own = data.vocabulary.encode(["Train neg0: an awful film"])
    assert torch.equal(own[0], inputs[0])


def test_imdb_passes_its_options_to_the_vocabulary(root):
    assert load(root, min_count=24).vocabulary.words[2:] == ("an", "film", "train")
    data = load(root, max_words=2, length=3)
    assert len(data.vocabulary) == 4
    assert data.input_shape == (3,)


def test_imdb_draws_a_balanced_subset_that_follows_from_the_seed(root):
    whole, few, again, other = (
        load(root, **options)
        for options in (
            {},
            {"num_reviews": 24},
            {"num_reviews": 24},
            {"num_reviews": 24, "seed": 1},
        )
    )
    assert few.train.targets.tolist() == few.test.targets.tolist() == [0] * 6 + [1] * 6
    chosen = texts_of(few, few.train)
    assert len(set(chosen)) == 12
    assert set(chosen) < set(texts_of(whole, whole.train))
    assert texts_of(again, again.train) == chosen
    assert texts_of(other, other.train) != chosen


@pytest.mark.parametrize("num_reviews", [0, -4, 6, 52])
def test_imdb_refuses_numbers_it_cannot_balance(root, num_reviews):
    with pytest.raises(ValueError, match=rf"multiple of 4 .* from 4 to 48, got {num_reviews}"):
        load(root, num_reviews=num_reviews)


def test_imdb_without_files_says_what_to_put_where(tmp_path):
    with pytest.raises(DataNotFoundError) as caught:
        load_dataset("imdb", tmp_path, download=False)
    message = str(caught.value)
    assert f"put these files into {tmp_path}" in message
    assert "aclImdb_v1.tar.gz (md5 7c2ac02c03563afcf9b574c7e56c153a)" in message
    assert "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz" in message


def published(root, monkeypatch):
    """Publish the reviews of `root` as an archive that holds other things too."""
    archive = root.parent / "published.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        file.add(root / "aclImdb", "aclImdb")
        for name in ("aclImdb/README", "aclImdb/train/unsup/0_0.txt", "../evil_1.txt"):
            file.addfile(tarfile.TarInfo(name), io.BytesIO())
        for name in ("aclImdb/train/pos/../../../0_1.txt", "aclImdb/test/neg/urls_neg.txt"):
            file.addfile(tarfile.TarInfo(name), io.BytesIO())
    md5 = hashlib.md5(archive.read_bytes()).hexdigest()
    monkeypatch.setattr(imdb, "ARCHIVE", Resource("a.tar.gz", md5, (archive.as_uri(),)))


def test_imdb_unpacks_the_labelled_reviews_of_the_archive_and_nothing_else(root, monkeypatch):
    published(root, monkeypatch)
    fresh = root.parent / "fresh"
    data = load(fresh, download=True)
    assert torch.equal(data.train.inputs, load(root).train.inputs)
    files = [path for path in fresh.rglob("*") if path.is_file()]
    assert len(files) == 1 + 4 * NUM_PER_LABEL
    assert not list(root.parent.glob("*.txt"))


def test_imdb_completes_a_folder_that_was_unpacked_in_part(root, monkeypatch):
    published(root, monkeypatch)
    expected = load(root)
    shutil.rmtree(root / "aclImdb" / "train" / "pos")
    (root / "aclImdb" / "test" / "neg" / "3_4.txt").unlink()
    with pytest.raises(DataNotFoundError, match="put these files into"):
        load(root)
    data = load(root, download=True)
    assert torch.equal(data.train.inputs, expected.train.inputs)
    assert torch.equal(data.test.inputs, expected.test.inputs)


def test_imdb_refuses_a_folder_with_reviews_of_its_own(root):
    (root / "aclImdb" / "train" / "pos" / "99_9.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"train/pos must hold 12 reviews, got 13; remove"):
        load(root)


def test_review_paths_leave_other_files_out(root):
    (root / "aclImdb" / "train" / "pos" / "notes.txt").write_text("mine")
    assert len(review_paths(root, "train", "pos")) == NUM_PER_LABEL


def test_recipe_sizes_a_text_model_by_the_data(root):
    tables = {
        "model": {"name": "text_transformer"},
        "data": {
            "name": "imdb",
            "root": str(root),
            "num_reviews": 48,
            "length": 6,
            "min_count": 24,
        },
        "method": {"name": "mean_field", "where": "block.feed_forward"},
    }
    parts = build(make_recipe(tables))
    assert parts.recipe.model["vocabulary_size"] == 5
    assert parts.recipe.model["length"] == 6
    assert parts.recipe.model["num_classes"] == 2
    inputs, _ = next(iter(parts.train))
    assert parts.model(inputs).shape == (len(inputs), 2)


@pytest.mark.slow
def test_imdb_real_files_are_the_published_reviews(unpacked):
    data = load_dataset("imdb", unpacked("imdb"), num_reviews=5_000, download=False)
    assert data.train.targets.bincount().tolist() == [1250, 1250]
    assert data.test.targets.bincount().tolist() == [1250, 1250]
    assert 3_500 < len(data.vocabulary) < 4_500
    assert data.vocabulary.words[2:5] == ("the", "and", "a")
    assert {"don't", "terrible", "wonderful"} < set(data.vocabulary.words)
    assert "br" not in data.vocabulary.words
    # Most reviews are longer than 120 words, and no row may be empty.
    assert ((data.train.inputs > 0).sum(1) == 120).float().mean() > 0.7
    assert (data.test.inputs[:, 0] > 0).all()
