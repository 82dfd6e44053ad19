"""When attention is one operation, and its kernels against the open form."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import bayesify as bf
from bayesify.conversion.scope import forward_by
from bayesify.moments import Moments, fused_attention
from bayesify.moments.fused_attention import can_fuse


def of(dtype=torch.bfloat16, shape=(2, 3, 5, 64), certain=False, device="cpu"):
    mean = torch.zeros(shape, dtype=dtype, device=device)
    return Moments(mean, None if certain else 1.0)


@pytest.fixture
def _as_on_a_gpu(monkeypatch):
    monkeypatch.setattr(fused_attention, "DEVICES", ("cpu",))
    monkeypatch.setattr(fused_attention, "HAS_TRITON", True)


@pytest.mark.usefixtures("_as_on_a_gpu")
def test_only_bfloat16_with_variances_in_four_dimensions_is_fused():
    usual = of()
    assert can_fuse(usual, usual, usual)
    assert can_fuse(usual, of(shape=(2, 3, 7, 64)), of(shape=(2, 3, 7, 64)))
    for other in (
        of(torch.float32),
        of(torch.float16),
        of(certain=True),
        of(shape=(2, 3, 5, 48)),
        of(shape=(3, 5, 64)),
        of(shape=(2, 1, 5, 64)),
        of(shape=(2, 3, 0, 64)),
        of(device="meta"),
    ):
        assert not can_fuse(usual, other, other)
        assert not can_fuse(other, usual, usual)
    assert not can_fuse(usual, of(shape=(2, 3, 7, 64)), of(shape=(2, 3, 6, 64)))


@pytest.mark.usefixtures("_as_on_a_gpu")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what torch.func.jvp loads
def test_other_derivatives_than_those_of_a_backward_pass_are_left_to_the_open_form():
    seen = []

    def call(mean):
        seen.append(can_fuse(*[Moments(mean, torch.ones_like(mean))] * 3))
        return mean.sum()

    mean = torch.zeros(2, 3, 5, 64, dtype=torch.bfloat16)
    call(mean.requires_grad_())
    torch.func.grad(call)(mean)
    torch.func.jvp(call, (mean,), (mean,))
    with torch.autograd.forward_ad.dual_level():
        call(torch.autograd.forward_ad.make_dual(mean.detach(), mean.detach()))
    assert seen == [True, False, False, False]


def test_nothing_is_fused_on_a_cpu():
    given = of()
    assert not can_fuse(given, given, given)


@pytest.mark.usefixtures("_as_on_a_gpu")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of how dynamo calls a Function
def test_a_compiled_transformer_is_one_graph_with_an_operation_for_each_attention():
    torch._dynamo.reset()
    found = []

    def backend(graph, inputs):
        named = "attention_moments"
        found.extend(node for node in graph.graph.nodes if named in str(node.target))
        raise NotImplementedError("no kernels here")

    plain = bf.build_model("vit_tiny", num_classes=3, image_size=32, patch_size=16, depth=2)
    model = bf.convert(plain, bf.MomentPropagation())
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    with (
        forward_by(model, "moments"),
        torch.autocast("cpu", torch.bfloat16),
        pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="no kernels here"),
    ):
        compiled(torch.randn(2, 3, 32, 32))
    assert len(found) == 2
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("heads", "targets", "across"),
    [(768, 197, 208), (5, 4096, 4096), (2, 20_000, 20_000), (1, 9_000, 400_000), (3, 1, 16)],
)
def test_parts_hold_every_target_of_every_head_once_and_have_room(heads, targets, across):
    parts = fused_attention._parts(heads, targets, across, 2)
    seen = torch.zeros(heads, targets, dtype=torch.int64)
    for part in parts:
        seen[part.first_head : part.first_head + part.heads, part.first : part.last] += 1
        rows = part.heads * (part.last - part.first)
        assert rows <= parts[0].heads * parts[0].last
        is_small = rows * fused_attention.NUM_MATRICES * across * 2 <= fused_attention.MATRIX_BYTES
        assert is_small or rows <= fused_attention.LEAST_ROWS
        assert rows * across < 2**31
    assert (seen == 1).all()
    # No part is much smaller than the others: the rest of 20,000 would be 3,616 of 8,192.
    assert min(part.last - part.first for part in parts) > 0.9 * (parts[0].last - parts[0].first)


@pytest.mark.skipif(find_spec("triton") is None, reason="needs triton, which comes with a GPU")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("what", ["attention", "gelu", "pooled_attention"])
def test_interpreted_kernels_agree_with_the_open_form(what):
    script = Path(__file__).with_name(f"interpreted_{what}.py")
    # Triton asks for numpy's warnings and its own settings, which are none of ours.
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "all agree" in done.stdout
