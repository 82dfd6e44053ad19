"""What is written as TOML is read back as it was."""

import math
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayesify.recipes.toml import to_toml

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
plain = (
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | texts
    | st.lists(st.integers(-9, 9) | texts, max_size=3)
)
tables = st.recursive(
    st.dictionaries(texts, plain, max_size=4),
    lambda inner: st.dictionaries(texts, plain | inner, max_size=3),
    max_leaves=12,
)


@given(tables)
def test_to_toml_is_read_back_equal(table):
    assert tomllib.loads(to_toml(table)) == table


def test_to_toml_keeps_a_float_a_float():
    back = tomllib.loads(to_toml({"a": 1.0, "b": 1e300, "c": 1, "d": 1e-5}))
    assert {key: type(value) for key, value in back.items()} == {
        "a": float,
        "b": float,
        "c": int,
        "d": float,
    }


def test_to_toml_writes_numbers_that_are_not_finite():
    back = tomllib.loads(to_toml({"a": math.inf, "b": -math.inf, "c": math.nan}))
    assert back["a"] == math.inf
    assert back["b"] == -math.inf
    assert math.isnan(back["c"])


def test_to_toml_leaves_none_out_and_puts_tables_last():
    text = to_toml({"table": {"key": 1}, "nothing": None, "seed": 0})
    assert text == "seed = 0\n\n[table]\nkey = 1\n"


def test_to_toml_refuses_what_toml_cannot_hold():
    with pytest.raises(TypeError, match=r"fit\.beta must be text.*got function"):
        to_toml({"fit": {"beta": lambda progress: progress}})
