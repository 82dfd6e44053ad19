"""When attention is one operation, and its kernels against the open form."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from bayesify.moments import Moments
from bayesify.moments.fused_attention import can_fuse


def of(dtype, *shape, certain=False, device="cpu"):
    mean = torch.zeros(shape, dtype=dtype, device=device)
    return Moments(mean, None if certain else 1.0)


class OnGpu(Moments):
    """Moments that say they lie on a GPU."""

    @property
    def device(self):
        return torch.device("cuda")


@pytest.mark.skipif(find_spec("triton") is None, reason="needs triton, which comes with a GPU")
def test_only_bfloat16_with_variances_of_four_dimensions_on_a_gpu_is_fused():
    def gpu(dtype=torch.bfloat16, shape=(2, 3, 5, 64), certain=False):
        given = of(dtype, *shape, certain=certain)
        return OnGpu(given.expected, given.variance_or_none)

    usual = gpu()
    assert can_fuse(usual, usual, usual)
    assert can_fuse(usual, gpu(shape=(2, 3, 7, 64)), gpu(shape=(2, 3, 7, 64)))
    for other in (
        gpu(torch.float32),
        gpu(torch.float16),
        gpu(certain=True),
        gpu(shape=(2, 3, 5, 48)),
        gpu(shape=(3, 5, 64)),
        gpu(shape=(2, 1, 5, 64)),
        gpu(shape=(2, 3, 0, 64)),
        of(torch.bfloat16, 2, 3, 5, 64, device="meta"),
    ):
        assert not can_fuse(usual, other, other)
        assert not can_fuse(other, usual, usual)


def test_nothing_is_fused_on_a_cpu():
    given = of(torch.bfloat16, 2, 3, 5, 64)
    assert not can_fuse(given, given, given)


@pytest.mark.skipif(find_spec("triton") is None, reason="needs triton, which comes with a GPU")
@pytest.mark.timeout(300)
def test_interpreted_kernels_agree_with_the_open_form():
    script = Path(__file__).with_name("interpreted_attention.py")
    # Triton asks for numpy's warnings and its own settings, which are none of ours.
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "all agree" in done.stdout
