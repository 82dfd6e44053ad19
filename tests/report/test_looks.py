"""No two cells of a panel look alike, and a cell looks the same in every figure."""

import pytest

from bayesify.report.looks import Looks
from bayesify.report.panels import COLOURS, STYLES


def looks_of(folder):
    study = folder.study()
    looks = Looks(study)
    return {
        group.name: (
            looks.panel(group),
            looks.name(group),
            looks.colour(group),
            looks.style(group),
        )
        for group in study.groups
    }


def test_panels_are_for_the_last_label_colours_for_layers_and_styles_for_starts(folder):
    for start in ("bayesian", "frequentist"):
        for layer in ("additive", "dense"):
            for kl in ("elbo", "weak"):
                labels = {"start": start, "layer": layer, "kl": kl}
                folder.write(cell="-".join(labels.values()), labels=labels)
    found = looks_of(folder)
    assert found["bayesian-additive-elbo"] == ("kl: elbo", "bayesian, additive", 0, 0)
    assert found["bayesian-dense-elbo"] == ("kl: elbo", "bayesian, dense", 1, 0)
    assert found["frequentist-dense-elbo"] == ("kl: elbo", "frequentist, dense", 1, 1)
    assert found["frequentist-dense-weak"] == ("kl: weak", "frequentist, dense", 1, 1)
    assert len(set(found.values())) == 8


def test_one_cell_is_called_by_all_its_labels(folder):
    folder.write(cell="x")
    assert looks_of(folder) == {"x": ("", "frequentist, additive", 0, 0)}


@pytest.mark.parametrize("labels", [{}, {"layer": "dense"}])
def test_cells_that_labels_do_not_tell_apart_have_colours_and_names(folder, labels):
    for name in ("one", "two"):
        folder.write(cell=name, labels=labels)
    found = looks_of(folder)
    assert [look[1:] for look in found.values()] == [("one", 0, 0), ("two", 1, 0)]


def test_a_number_is_called_by_its_label_too(folder):
    for m in ("1", "17", "closed"):
        folder.write(cell=m, labels={"m": m})
    assert [name for _, name, _, _ in looks_of(folder).values()] == ["m: 1", "m: 17", "closed"]


def test_colours_can_be_given_to_another_label(folder):
    for network in ("deep", "wide"):
        for m in ("1", "100"):
            folder.write(cell=f"{network}-{m}", labels={"network": network, "m": m})
    study = folder.study()
    looks = Looks(study, "m")
    found = {
        group.name: (looks.panel(group), looks.name(group), looks.colour(group))
        for group in study.groups
    }
    assert found["deep-1"] == ("network: deep", "m: 1", 0)
    assert found["wide-100"] == ("network: wide", "m: 100", 1)


def test_protocols_have_figures_of_their_own_and_share_looks(folder):
    for protocol in ("elbo", "tempered"):
        labels = {"layer": "dense", "protocol": protocol}
        folder.write(cell=f"dense-{protocol}", labels=labels)
    assert set(looks_of(folder).values()) == {("", "dense", 0, 0)}


def test_a_cell_without_the_label_of_panels_has_a_panel_too(folder):
    folder.write(cell="plain", labels={"layer": "plain"})
    folder.write(cell="dense", labels={"layer": "dense", "kl": "weak"})
    found = looks_of(folder)
    assert (found["plain"][0], found["dense"][0]) == ("kl: \N{EN DASH}", "kl: weak")


def test_styles_go_on_where_colours_come_round(folder):
    num = len(COLOURS) + 2
    for index in range(num):
        folder.write(cell=str(index), labels={"layer": f"{index:02d}"})
    drawn = {
        (colour % len(COLOURS), style % len(STYLES))
        for _, _, colour, style in looks_of(folder).values()
    }
    assert len(drawn) == num
