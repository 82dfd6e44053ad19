"""Networks are held against each other by M, Ms by network, and seeds show their spread."""

import math

import pytest

from bayesify.report.confidence_illustrations import set_line, spread_line
from bayesify.report.illustrations import study_illustrations
from bayesify.report.looks import Looks


def write(folder, cell, *, seeds=1, **labels):
    for seed in range(seeds):
        measured = cell("confidence")["measured"]
        measured["sets"]["size"] = [0.98, 0.9 + 0.02 * seed, 0.8]
        folder.write(
            "confidence",
            cell="-".join(labels.values()) or "x",
            labels=labels,
            seed=seed,
            history=[],
            measured=measured,
        )


def captions(folder):
    return [each.caption.split(":")[0] for each in study_illustrations(folder.study())]


SETS = "Accuracy and size of the confidence set"


def test_networks_and_ms_have_figures_of_their_own(folder, cell):
    for network in ("dense", "residual"):
        for m in ("1", "100"):
            write(folder, cell, network=network, m=m)
    by_network, by_m = study_illustrations(folder.study())
    assert captions(folder) == [SETS, f"{SETS} by M"]
    assert by_network.is_wide
    assert by_network.alternative.endswith(
        "m: 1, dense at 100 %: 99.00 % right on 80.00 %; m: 1, residual at 100 %: 99.00 % right "
        "on 80.00 %; m: 100, dense at 100 %: 99.00 % right on 80.00 %; m: 100, residual at 100 %: "
        "99.00 % right on 80.00 %."
    )
    assert "network: dense, m: 1 at 100 %: 99.00 % right" in by_m.alternative
    assert "standard deviation" not in by_m.caption


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([{}], [SETS]),
        ([{"network": "dense"}, {"network": "residual"}], [SETS]),
        ([{"m": "1"}, {"m": "100"}], [f"{SETS} by M"]),
        ([{"network": "dense", "m": "1"}, {"network": "dense", "m": "100"}], [f"{SETS} by M"]),
    ],
)
def test_what_does_not_differ_has_no_figure(folder, cell, labels, expected):
    for each in labels:
        write(folder, cell, **each)
    assert captions(folder) == expected


def test_the_spread_between_seeds_is_drawn_where_there_are_several(folder, cell):
    write(folder, cell, m="1", seeds=3)
    write(folder, cell, m="100")
    assert captions(folder)[-1] == "Spread of the size of the confidence set by M"
    *_, spread = study_illustrations(folder.study())
    # 0, 0.02 and 0 at the three levels.
    assert spread.alternative.endswith("in points: m: 1: 0.67.")


def test_lines_are_means_with_the_std_between_seeds(folder, cell):
    write(folder, cell, m="1", seeds=3)
    study = folder.study()
    looks = Looks(study)
    line = set_line(looks, study.groups[0], "size")
    assert (line.x, line.mean) == ([0.5, 0.9, 1.0], pytest.approx([0.98, 0.92, 0.8]))
    assert line.std == pytest.approx([0.0, 0.02, 0.0], abs=1e-12)
    assert spread_line(looks, study.groups[0]).mean == line.std


def test_an_empty_set_is_a_gap_and_a_lone_seed_has_no_band(folder, cell):
    measured = cell("confidence")["measured"]
    measured["sets"]["accuracy"][2] = None
    folder.write("confidence", labels={"m": "1"}, measured=measured)
    study = folder.study()
    line = set_line(Looks(study), study.groups[0], "accuracy")
    assert line.mean[:2] == [0.93, 0.96]
    assert math.isnan(line.mean[2])
    assert line.std is None
    assert study_illustrations(study)[-1].alternative.endswith("1 at 100 %: no prediction.")


def test_without_levels_nothing_is_drawn(folder, cell):
    measured = cell("confidence")["measured"]
    measured["sets"] = {"level": [], "accuracy": [], "size": []}
    folder.write("confidence", labels={"m": "1"}, measured=measured, history=[])
    assert captions(folder) == []
