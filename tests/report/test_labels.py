"""Labels get one role each, whichever there are, and cells are sorted by them."""

import pytest

from bayesify.report.labels import Roles, natural, roles_of


def cells(**values):
    """Return the labels of every combination of values."""
    found = [{}]
    for name, texts in values.items():
        found = [{**labels, name: text} for labels in found for text in texts]
    return found


TWO = ("a", "b")


@pytest.mark.parametrize(
    ("values", "roles"),
    [
        ({}, Roles(None, None, ())),
        ({"layer": TWO}, Roles(None, "layer", ())),
        ({"start_std": TWO}, Roles(None, "start_std", ())),
        ({"layer": TWO, "kl": TWO}, Roles("kl", "layer", ())),
        ({"layer": TWO, "start_std": TWO}, Roles("start_std", "layer", ())),
        ({"start": TWO, "layer": TWO}, Roles(None, "layer", ("start",))),
        ({"start": TWO, "layer": TWO, "kl": TWO}, Roles("kl", "layer", ("start",))),
        ({"layer": TWO, "reviews": TWO, "kl": TWO}, Roles("kl", "layer", ("reviews",))),
        ({"width": TWO, "depth": TWO, "kl": TWO}, Roles("kl", "width", ("depth",))),
        ({"protocol": TWO, "layer": TWO}, Roles(None, "layer", ())),
        ({"start": ("a",), "layer": TWO, "kl": ("a",)}, Roles(None, "layer", ())),
    ],
)
def test_every_telling_label_has_one_role(values, roles):
    assert roles_of(cells(**values)) == roles


@pytest.mark.parametrize(
    ("values", "colour", "roles"),
    [
        ({"network": TWO, "m": TWO}, "m", Roles("network", "m", ())),
        ({"network": TWO, "m": TWO}, "network", Roles("m", "network", ())),
        ({"m": TWO, "network": TWO, "data": TWO}, "m", Roles("data", "m", ("network",))),
        ({"m": TWO}, "m", Roles(None, "m", ())),
        ({"m": ("a",), "network": TWO}, "m", Roles(None, "network", ())),
    ],
)
def test_colours_are_for_the_label_that_is_named(values, colour, roles):
    assert roles_of(cells(**values), colour) == roles


def test_a_label_that_some_cells_lack_tells_them_apart():
    assert roles_of([{"layer": "a"}, {"layer": "b", "kl": "x"}]) == Roles("kl", "layer", ())


def test_no_cells_have_no_roles():
    assert roles_of([]) == Roles(None, None, ())


def test_cells_are_sorted_by_protocol_panel_style_and_colour():
    every = cells(protocol=TWO, start=TWO, layer=TWO, kl=TWO)
    roles = roles_of(every)
    keys = [[each[name] for name in ("protocol", "kl", "start", "layer")] for each in every]
    in_order = sorted(every, key=roles.sort_key)
    assert [[each[name] for name in ("protocol", "kl", "start", "layer")] for each in in_order] == (
        sorted(keys)
    )


def test_numbers_come_by_size_and_before_words():
    texts = ["word", "50000", "-1", "1e3", "nan", "", "inf"]
    assert sorted(texts, key=natural) == ["-1", "1e3", "50000", "", "inf", "nan", "word"]
