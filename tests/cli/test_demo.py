"""`bayesify demo`: quick, complete, and with the numbers it promises."""

import re

import torch


def test_demo_trains_compares_and_draws(invoke, tmp_path):
    out = tmp_path / "pictures" / "demo.png"
    threads = torch.get_num_threads()
    result = invoke("demo", "--quick", "--out", out)
    assert result.exit_code == 0, result.output
    assert out.read_bytes().startswith(b"\x89PNG")
    assert out.stat().st_size < 400_000
    for name in ("plain", "Bayesian"):
        (line,) = re.findall(rf"│ {name} +│(.*)│", result.stdout)
        accuracy, nll, brier, ece, auroc = map(float, line.split("│"))
        # Three epochs are enough to be right most of the time, and to doubt what was never seen.
        assert accuracy > 0.85
        assert 0 < brier < 0.3
        assert 0 < nll < 0.6
        assert 0 <= ece < 0.3
        assert auroc > 0.7
    assert "290 test digits 0-7" in result.stdout
    assert "354 never-seen 8s and 9s" in result.stdout
    assert "epochs=3" in result.stdout
    assert torch.get_num_threads() == threads
