"""Options of a recipe: unknown names and wrong types are answered by a sentence."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from bayesify.recipes.options import check_options, options_of


def build(
    root: str | None = None,
    *,
    width: int = 3,
    rate: float = 0.1,
    sizes: Sequence[int] = (),
    kind: Literal["a", "b"] = "a",
    prior: float | Callable[[str], float] = 1.0,
    patience: int | None = None,
    is_on: bool = False,
    anything: Any = None,
) -> None:
    del root, width, rate, sizes, kind, prior, patience, is_on, anything


def test_options_of_leaves_out_the_root_of_the_data():
    assert list(options_of(build))[:2] == ["width", "rate"]
    assert options_of(build)["rate"] == 0.1


@pytest.mark.parametrize(
    "options",
    [
        {"width": 4, "rate": 1, "sizes": [1, 2], "kind": "b", "prior": 2, "patience": 3},
        {"rate": 0.5, "sizes": (), "is_on": True, "anything": object()},
        {"patience": None},
        {},
    ],
)
def test_check_options_accepts_what_the_function_takes(options):
    check_options("thing", build, options)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"widht": 4}, "unknown thing option 'widht'. Did you mean 'width'?"),
        ({"root": "x"}, "unknown thing option 'root'"),
        ({"width": 4.0}, "width of thing must be a whole number, got 4.0"),
        ({"width": True}, "width of thing must be a whole number, got True"),
        ({"rate": "fast"}, "rate of thing must be a number, got 'fast'"),
        ({"rate": False}, "rate of thing must be a number, got False"),
        ({"sizes": 3}, "sizes of thing must be a list, got 3"),
        ({"sizes": "12"}, "sizes of thing must be a list, got '12'"),
        ({"kind": "c"}, "kind of thing must be 'a' or 'b', got 'c'"),
        ({"prior": "wide"}, "prior of thing must be a number, got 'wide'"),
        ({"patience": 1.5}, "patience of thing must be a whole number, got 1.5"),
        ({"is_on": 1}, "is_on of thing must be true or false, got 1"),
    ],
)
def test_check_options_names_the_option_and_what_it_must_be(options, sentence):
    with pytest.raises(TypeError) as error:
        check_options("thing", build, options)
    assert sentence in str(error.value)


def test_check_options_offers_the_recipes_own_keys_as_corrections():
    with pytest.raises(TypeError, match="Did you mean 'batch_size'"):
        check_options("data set 'digits'", build, {"bach_size": 3}, also=("batch_size",))


def test_check_options_reads_the_signature_of_a_class():
    @dataclass
    class Choices:
        size: int = 1

    check_options("choices", Choices, {"size": 2})
    with pytest.raises(TypeError, match="size of choices must be a whole number"):
        check_options("choices", Choices, {"size": "2"})
