"""A study of segmentation on the page: its numbers, its classes, its maps."""

from pathlib import Path
from typing import Any

import pytest

from bayesify.recipes.run_folder import write_json
from bayesify.report.json_value import ResultError
from bayesify.report.results import read_results
from bayesify.report.segmentation_maps import entropy_figure, segmentation_illustrations
from bayesify.report.segmentation_tables import runs_of
from bayesify.report.study_tables import study_tables


def result(cell: str, seed: int, iou: float) -> dict[str, Any]:
    measured = {
        "scores": {"mean_iou": iou, "accuracy": 0.9, "nll": 0.3, "brier": 0.15, "ece": 0.02},
        "class_iou": {"sky": 0.8, "pole": None},
        "num_samples": 5,
        "wrong": {"share": 0.1, "auroc_by_entropy": 0.87, "auroc_by_mutual_information": None},
        "maps": [
            {
                "image": 4,
                "targets": [[0, 1, -100], [1, 1, 0]],
                "classes": [[0, 0, 1], [1, 0, 0]],
                "entropy": [[0.0, 0.5, 0.6], [0.1, 0.7, 0.0]],
            }
        ],
        "kl": 0.0,
        "mean_std": None,
        "weights": {"all": 10, "random": 1},
    }
    about = {"study": "some/scenes", "title": "Scenes", "kind": "segmentation", "cell": cell}
    about |= {"labels": {"network": cell}, "seed": seed, "is_quick": False, "paper": None}
    rest = {"provenance": {}, "recipe": {}, "changes": {}, "measure": {}, "history": []}
    return {**about, **rest, "measured": measured}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for cell, seed, iou in (("plain", 0, 0.6), ("plain", 1, 0.7), ("partial_1", 0, 0.65)):
        path = tmp_path / "some" / "scenes" / f"{cell}-seed{seed}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, result(cell, seed, iou))
    return tmp_path


def test_tables_hold_scores_over_seeds_and_every_class(folder: Path) -> None:
    (study,) = read_results(folder).studies
    scores, classes = study_tables(study)
    words = repr(scores)
    assert "mean IoU, %" in words
    assert "65.00" in words  # (0.6 + 0.7) / 2
    assert "87.00" in words
    assert [column.title for column in classes.columns][-2:] == ["sky", "pole"]


def test_maps_know_the_wrong_pixels_and_leave_out_those_without_a_label(folder: Path) -> None:
    (study,) = read_results(folder).studies
    (first, *_) = (run for group in study.groups for run in runs_of(group))
    (found,) = first.maps
    assert found.is_wrong == ((False, True, False), (False, True, False))
    assert found.entropy[1] == (0.1, 0.7, 0.0)
    figure = entropy_figure({"one": found, "other": found})
    assert len(figure.axes) == 5  # two by two, and a bar


def test_an_image_is_drawn_once_with_all_networks(folder: Path) -> None:
    (study,) = read_results(folder).studies
    (drawn,) = segmentation_illustrations(study.groups, "")
    assert drawn.caption.startswith("Test image 4.")
    assert drawn.alternative.count("33.3 % wrong") == 2


def test_damaged_maps_are_named(tmp_path: Path) -> None:
    damaged = result("plain", 0, 0.5)
    damaged["measured"]["maps"][0]["entropy"] = "none"
    write_json(tmp_path / "cell.json", damaged)
    with pytest.raises(ResultError, match=r"maps\[0\].entropy must be a list"):
        read_results(tmp_path)
