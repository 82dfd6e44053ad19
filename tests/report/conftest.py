"""Made-up cells of studies, small and complete, as they would stand in their files."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bayesify.report.results import Study, read_results

PROVENANCE = {
    "command": "python run.py",
    "commit": "abc1234",
    "hardware": "NVIDIA H200",
    "torch": "2.13.0",
    "bayesify": "0.1.0",
    "started": "2026-11-15T13:00:00Z",
    "wall_seconds": 90.0,
}
PRUNING = {
    "not_pruned": {"accuracy": 0.9831, "nll": 0.0512, "ece": 0.0123, "brier": 0.025},
    "prunings": [
        {
            "by": "snr",
            "threshold": 0.83,
            "removed": 0.971,
            "sparsity": {"first": 0.98, "second": 0.95, "last": 0.4},
            "principled": {"accuracy": 0.9805, "nll": 0.06, "ece": 0.011, "brier": 0.03},
            "random": {"accuracy": 0.1009, "nll": 2.3, "ece": 0.2, "brier": 0.9},
            "shape_after": "784-120-60-10",
            "file_ratio": 0.05,
        }
    ],
    "error_by_samples": {"num_samples": [1, 10], "mean": [0.03, 0.02], "std": [0.004, 0.001]},
    "reliability": {
        "confidence": [None, 0.5, 0.95],
        "accuracy": [None, 0.4, 1.0],
        "count": [0, 10, 90],
        "ece": 0.02,
    },
}
REGRESSION = {
    "bands": {
        "x": [0.0, 0.5, 1.0],
        "mean": [0.0, 0.4, 1.1],
        "std": [0.2, 0.1, 0.3],
        "epistemic_std": [0.1, 0.05, 0.2],
        "truth": [0.0, 0.5, 1.0],
    },
    "train": {"x": [0.1, 0.9], "y": [0.2, 0.8]},
    "coverage": {"0.5": 0.52, "0.95": 0.961},
    "rmse": 0.07124,
    "nll": -1.2,
}
CONFIDENCE = {
    "scores": {"accuracy": 0.9231, "nll": 0.2512, "brier": 0.112, "ece": 0.0123},
    "num_samples": 100,
    "sets": {
        "level": [0.5, 0.9, 1.0],
        "accuracy": [0.93, 0.96, 0.99],
        "size": [0.98, 0.9, 0.8],
    },
    "kl": 123456.0,
    "kl_estimate_std": 12.0,
    "mean_std": 0.00512,
}
UNCERTAINTY = {
    "scores": {
        "accuracy": 0.9231,
        "nll": 0.2512,
        "brier": 0.112,
        "ece": 0.0123,
        "marginal_calibration_error": 0.0101,
    },
    "num_samples": 5,
    "ood": {
        "svhn": {
            "entropy": {"auroc": 0.95, "aupr": 0.96, "fpr95": 0.2},
            "max_probability": {"auroc": 0.94, "aupr": 0.93, "fpr95": 0.25},
            "mutual_information": {"auroc": 0.91, "aupr": 0.9, "fpr95": 0.3},
        }
    },
    "corrupted": {
        "fog": [
            {"severity": 1, "accuracy": 0.9, "nll": 0.3, "ece": 0.02},
            {"severity": 5, "accuracy": 0.6, "nll": 1.0, "ece": 0.1},
        ],
        "snow": [
            {"severity": 1, "accuracy": 0.8, "nll": 0.5, "ece": 0.04},
            {"severity": 5, "accuracy": 0.5, "nll": 2.0, "ece": 0.2},
        ],
    },
    "pruned": [
        {
            "keep": share,
            "scores": {
                "accuracy": accuracy,
                "nll": 1.5,
                "brier": 0.4,
                "ece": 0.05,
                "marginal_calibration_error": 0.02,
            },
        }
        for share, accuracy in ((0.05, 0.3), (0.1, 0.6))
    ],
    "kl": 123456.0,
    "mean_std": 0.00512,
    "weights": {"all": 1000, "live": 100, "random": 50},
    "files": {
        "dense_bytes": 8000,
        "float32_bytes": 800,
        "bfloat16_bytes": 500,
        "float32_ratio": 0.1,
        "bfloat16_ratio": 0.0625,
        "bfloat16_scores": {"accuracy": 0.92, "nll": 0.2502},
    },
    "flops": {
        "inference": 100.0,
        "dense_inference": 1000.0,
        "training": 360.0,
        "dense_training": 3000.0,
    },
}
SPEED = {
    "rows": [
        {
            "table": "3.1",
            "layer": "additive",
            "mode": "eager",
            "median_us": 101.6,
            "ratio": 5.64,
            "paper_us": 313,
            "paper_ratio": 8.28,
        },
        {"table": "3.2", "layer": "dense", "mode": "compiled", "median_us": 15.07},
    ]
}
MEASURED = {
    "pruning": PRUNING,
    "regression": REGRESSION,
    "confidence": CONFIDENCE,
    "uncertainty": UNCERTAINTY,
    "speed": SPEED,
    "gap": {"gap": 0.25},
}
PAPER = {
    "source": "Table 4.3",
    "sparsity": [0.5736, 0.5396, 0.239],
    "accuracy": {"not_pruned": 0.9844, "principled": 0.9844, "random": 0.2573},
}


def made_up(kind: str = "pruning", **changes: Any) -> dict[str, Any]:
    """Return the content of a cell's file; `changes` replace top-level keys."""
    history = [
        {"epoch": 1, "energy": 500.0, "sparsity": 0.1, "sparsity/first": 0.2},
        {"epoch": 2, "energy": 100.0, "sparsity": 0.6, "sparsity/first": 0.7},
    ]
    content = {
        "study": f"vmlp/{kind}",
        "title": f"A study of {kind}",
        "kind": kind,
        "cell": "frequentist-additive-elbo",
        "labels": {"start": "frequentist", "layer": "additive", "protocol": "elbo"},
        "seed": 0,
        "is_quick": False,
        "provenance": PROVENANCE,
        "recipe": {"fit": {"epochs": 2, "learning_rate": 0.001}, "seed": changes.get("seed", 0)},
        "paper": None,
        "history": history,
        "measured": MEASURED.get(kind, {}),
    }
    return copy.deepcopy({**content, **changes})


class CellFolder:
    """A folder of results that cells are written to one by one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.num = 0

    def write(self, kind: str = "pruning", **changes: Any) -> Path:
        content = made_up(kind, **changes)
        path = self.path / content["study"] / f"{self.num:03d}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content), encoding="utf-8")
        self.num += 1
        return path

    def study(self) -> Study:
        (study,) = read_results(self.path).studies
        return study


@pytest.fixture
def folder(tmp_path: Path) -> CellFolder:
    path = tmp_path / "results"
    path.mkdir()
    return CellFolder(path)


@pytest.fixture
def cell() -> Callable[..., dict[str, Any]]:
    return made_up


@pytest.fixture
def paper() -> dict[str, Any]:
    return copy.deepcopy(PAPER)
