"""An error says which file is damaged, where, what was expected, and what stands there."""

import pytest

from bayesify.report.json_value import JsonValue, ResultError, scalars

CONTENT = {"a": {"b": [1, 2.5, None]}, "word": "x", "flag": True, "nothing": None, "whole": 3}


def value() -> JsonValue:
    return JsonValue("cell.json", CONTENT)


def test_values_are_read_as_what_they_are():
    assert value().field("a").field("b").numbers_or_none() == (1.0, 2.5, None)
    assert value().field("word").text() == "x"
    assert value().field("flag").flag() is True
    assert value().field("whole").whole() == 3
    assert value().optional("nothing") is None
    assert value().optional("absent") is None


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda v: v.field("a").field("c"), r"cell.json is damaged: a\.c is missing, found b"),
        (lambda v: v.field("a").field("b").numbers(), r"a\.b\[2\] must be a number, got None"),
        (lambda v: v.field("flag").number(), "flag must be a number, got True"),
        (lambda v: v.field("flag").whole(), "flag must be a whole number, got True"),
        (lambda v: v.field("whole").flag(), "whole must be true or false, got 3"),
        (lambda v: v.field("word").fields(), "word must be an object, got 'x'"),
        (lambda v: v.field("a").items(), "a must be a list"),
        (lambda v: v.field("whole").text(), "whole must be a string, got 3"),
        (lambda v: v.items(), "the file must be a list"),
    ],
)
def test_a_wrong_value_is_named_with_its_place(ask, message):
    with pytest.raises(ResultError, match=message):
        ask(value())


def test_a_long_value_is_shortened_in_the_error():
    with pytest.raises(ResultError) as caught:
        JsonValue("cell.json", {"list": list(range(10_000))}).field("list").number()
    assert len(str(caught.value)) < 200


def test_scalars_are_named_by_their_place():
    content = {"a": {"b": 1, "c": [1, 2]}, "rows": [{"x": 1}, {"x": None}], "empty": []}
    expected = {"a.b": 1, "a.c": [1, 2], "rows[0].x": 1, "rows[1].x": None, "empty": []}
    assert scalars(content) == expected
