import pickle

import pytest
import torch

from bayesify.data import Vocabulary, build_vocabulary
from bayesify.data.text import SPECIAL_WORDS, as_word_numbers, split_words, store_small

TEXTS = ["A good film, a GOOD cast.", "A bad film."]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("It's GREAT -- isn't it?!", ["it's", "great", "isn't", "it"]),
        ("one<br /><br />two<BR>three", ["one", "two", "three"]),
        ("'quoted' rock 'n' roll", ["quoted", "rock", "n", "roll"]),
        ("don\u2019t", ["don't"]),
        ("snake_case and 10/10 caf\u00e9", ["snake", "case", "and", "10", "10", "caf\u00e9"]),
        ("the browser < br", ["the", "browser", "br"]),
        ("... !", []),
        ("", []),
    ],
)
def test_split_words_keeps_words_and_nothing_else(text, words):
    assert split_words(text) == words


def test_build_vocabulary_orders_by_frequency_then_alphabet():
    vocabulary = build_vocabulary(TEXTS, length=5)
    assert vocabulary.words == (*SPECIAL_WORDS, "a", "film", "good", "bad", "cast")
    assert len(vocabulary) == 7
    assert build_vocabulary(reversed(TEXTS), length=5) == vocabulary


def test_build_vocabulary_drops_rare_words_and_stops_at_the_largest_number():
    assert build_vocabulary(TEXTS, length=5, min_count=2).words[2:] == ("a", "film", "good")
    assert build_vocabulary(TEXTS, length=5, max_words=2).words[2:] == ("a", "film")
    both = build_vocabulary(TEXTS, length=5, min_count=3, max_words=2)
    assert both.words[2:] == ("a",)


def test_encode_fills_short_texts_and_cuts_long_ones():
    vocabulary = build_vocabulary(TEXTS, length=4)
    rows = vocabulary.encode(["bad film", "A good film, a good cast", "", "bad ADVICE"])
    assert rows.tolist() == [[5, 3, 0, 0], [2, 4, 3, 2], [0, 0, 0, 0], [5, 1, 0, 0]]
    assert rows.dtype == torch.int64


def test_encode_never_gives_padding_or_the_unknown_word_by_name():
    vocabulary = build_vocabulary(["padding unknown"], length=2)
    assert vocabulary.encode([" ".join(SPECIAL_WORDS)]).tolist() == [[2, 3]]


def test_encode_no_texts_gives_no_rows():
    assert build_vocabulary(TEXTS, length=4).encode([]).shape == (0, 4)


def test_encode_refuses_a_single_text():
    with pytest.raises(TypeError, match=r"texts must be a sequence .* pass \['good film'\]"):
        build_vocabulary(TEXTS, length=4).encode("good film")


def test_vocabulary_can_be_pickled_and_does_not_print_its_words():
    vocabulary = build_vocabulary(TEXTS, length=4)
    vocabulary.encode(TEXTS)
    assert pickle.loads(pickle.dumps(vocabulary)) == vocabulary
    assert repr(vocabulary) == "Vocabulary(7 entries, length=4)"


@pytest.mark.parametrize(
    ("words", "length", "message"),
    [
        (("good", "bad"), 4, "words must begin with"),
        ((*SPECIAL_WORDS, "good", "good"), 4, "got 'good' more than once"),
        (SPECIAL_WORDS, 0, "length must be a positive integer, got 0"),
    ],
)
def test_vocabulary_refuses_wrong_arguments(words, length, message):
    with pytest.raises(ValueError, match=message):
        Vocabulary(words, length)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_count": 0}, "min_count must be a positive integer, got 0"),
        ({"max_words": 2.5}, "max_words must be a positive integer, got 2.5"),
        ({"length": -1}, "length must be a positive integer, got -1"),
        ({"min_count": 9}, "min_count=9 times, got 5 different words that all occur less often"),
    ],
)
def test_build_vocabulary_refuses_wrong_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        build_vocabulary(TEXTS, **{"length": 4, **options})


@pytest.mark.parametrize(
    ("num_entries", "kind"),
    [
        (256, torch.uint8),
        (257, torch.int16),
        (32_768, torch.int16),
        (32_769, torch.int32),
    ],
)
def test_store_small_takes_the_smallest_type_that_holds_every_number(num_entries, kind):
    numbers = torch.tensor([[0, num_entries - 1]])
    stored = store_small(numbers, num_entries)
    assert stored.dtype == kind
    assert torch.equal(as_word_numbers(stored), numbers)
