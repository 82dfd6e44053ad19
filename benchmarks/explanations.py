"""Quality of explanations of trained networks: infidelity and largest sensitivity of saliency.

    bayesify reproduce vdp/mnist --seed 0        # and 1 to 4: it trains them, on a GPU in minutes
    python benchmarks/explanations.py            # one to three minutes a network on a core

`reproduce` measures explanations itself where captum is installed. This is for networks that were
trained where it is not: it asks for nothing but the model file of each run. By cell: the mean over
networks and its standard deviation, and the p-value of a one-way analysis of variance.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from pathlib import Path

from provenance import provenance

from bayesify.evaluation.explanation import explanation_quality
from bayesify.evaluation.significance import anova
from bayesify.recipes.trained import load_trained


def quality(folder: Path, number: int) -> dict[str, float]:
    trained = load_trained(folder)
    test = trained.load_data().test
    inputs, _ = test.__getitems__(list(range(min(number, len(test)))))
    found = explanation_quality(trained.model, inputs)
    return {
        "infidelity": float(found.infidelity.mean()),
        "sensitivity": float(found.sensitivity.mean()),
    }


def summary(rows: list[dict[str, float | str]]) -> dict[str, object]:
    result: dict[str, object] = {}
    for what in ("infidelity", "sensitivity"):
        groups: dict[str, list[float]] = defaultdict(list)
        for row in rows:
            groups[str(row["cell"])].append(float(row[what]))
        spread = {
            cell: {
                "mean": statistics.mean(values),
                "std": statistics.stdev(values) if len(values) > 1 else 0.0,
            }
            for cell, values in groups.items()
        }
        enough = len(groups) > 1 and all(len(values) > 1 for values in groups.values())
        p_value = anova(groups) if enough else None
        result[what] = {"cells": spread, "p_value": p_value}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=Path, default=Path("runs/full/vdp/mnist"))
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--out", type=Path, default=Path("results/vdp/explanations.json"))
    wanted = parser.parse_args()
    folders = sorted(
        each for each in wanted.runs.iterdir() if (each / "model.safetensors").exists()
    )
    rows: list[dict[str, float | str]] = []
    for folder in folders:
        cell, _, seed = folder.name.rpartition("-seed")
        rows.append({"cell": cell, "seed": seed, **quality(folder, wanted.images)})
        print(rows[-1], flush=True)
    report = {"provenance": provenance(__file__), "images": wanted.images, "rows": rows}
    report |= {"summary": summary(rows)}
    wanted.out.parent.mkdir(parents=True, exist_ok=True)
    wanted.out.write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report["summary"], indent=2))


if __name__ == "__main__":
    main()
