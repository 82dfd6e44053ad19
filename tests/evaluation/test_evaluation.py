import io
import json
import math
from dataclasses import FrozenInstanceError, replace

import pytest
from rich.console import Console

from bayesify.evaluation import Evaluation

EVALUATION = Evaluation(
    task="classification",
    scores={"accuracy": 0.9731, "nll": 12345.678, "confidence_set_accuracy": math.nan},
    directions={"accuracy": True, "nll": False},
    ood={
        "svhn": {"auroc": 0.91, "aupr": 0.9, "fpr95": math.inf},
        "[noise]": {"auroc": 1.0, "aupr": 1.0, "fpr95": 0.0},
    },
    num_examples=10_000,
    num_samples=30,
    made_by="30 weight samples",
    seconds=3.25,
)


def test_evaluation_reads_as_a_mapping():
    assert EVALUATION["accuracy"] == 0.9731
    assert list(EVALUATION) == ["accuracy", "nll", "confidence_set_accuracy"]
    assert len(EVALUATION) == 3
    assert "nll" in EVALUATION
    assert dict(EVALUATION)["nll"] == 12345.678
    assert EVALUATION.get("brier") is None


def test_missing_metric_names_those_there_are():
    with pytest.raises(KeyError, match=r"no metric 'brier' .* it has accuracy, nll"):
        EVALUATION["brier"]


def test_evaluation_is_frozen():
    with pytest.raises(FrozenInstanceError):
        EVALUATION.seconds = 0.0


def test_to_dict_is_strict_json():
    text = json.dumps(EVALUATION.to_dict(), allow_nan=False)
    assert json.loads(text) == {
        "task": "classification",
        "metrics": {"accuracy": 0.9731, "nll": 12345.678, "confidence_set_accuracy": None},
        "ood": {
            "svhn": {"auroc": 0.91, "aupr": 0.9, "fpr95": None},
            "[noise]": {"auroc": 1.0, "aupr": 1.0, "fpr95": 0.0},
        },
        "num_examples": 10_000,
        "num_samples": 30,
        "made_by": "30 weight samples",
        "seconds": 3.25,
    }


def test_text_is_an_aligned_table():
    assert str(EVALUATION) == (
        "classification, 10000 examples, 30 weight samples (3.2 s)\n"
        "\n"
        "metric                       value  better\n"
        "-----------------------  ---------  ------\n"
        "accuracy                    0.9731  higher\n"
        "nll                      1.235e+04   lower\n"
        "confidence_set_accuracy        nan\n"
        "\n"
        "ood detection    svhn  [noise]\n"
        "-------------  ------  -------\n"
        "auroc          0.9100   1.0000\n"
        "aupr           0.9000   1.0000\n"
        "fpr95             inf   0.0000"
    )


def test_rich_prints_the_same_cells():
    stream = io.StringIO()
    Console(file=stream, width=100).print(EVALUATION)
    text = stream.getvalue()
    for cell in ("10000 examples", "accuracy", "0.9731", "higher", "[noise]", "fpr95", "0.9100"):
        assert cell in text


def test_tables_without_ood_or_metrics_are_printed():
    assert "ood" not in str(replace(EVALUATION, ood={}))
    assert str(replace(EVALUATION, scores={}, ood={})).endswith("------")
