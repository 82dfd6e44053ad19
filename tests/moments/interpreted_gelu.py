"""The GELU's kernels as Triton's interpreter runs them, in float32, against torch's operations."""

import torch

from bayesify.moments import fused_gelu
from bayesify.moments.coarse_gelu import FEW_UP_TO, coarse_gelu_moments
from bayesify.moments.fused_gelu import half_precision_gelu_moments

fused_gelu.DEVICES, fused_gelu.TYPES = ("cpu",), (torch.float32,)


def compare(m: torch.Tensor, v: torch.Tensor, rtol: float = 2e-5) -> None:
    """Compare moments and gradients; the interpreter's roots and exponentials are numpy's."""
    weights = [torch.randn(m.shape) for _ in range(2)]
    found = []
    for call in (half_precision_gelu_moments, coarse_gelu_moments):
        inputs = [each.detach().requires_grad_() for each in (m, v)]
        results = call(*inputs)
        assert call is not half_precision_gelu_moments or all(
            r.stride() == m.stride() for r in results
        )
        found.append([*results, *torch.autograd.grad(results, inputs, weights)])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=rtol, atol=2e-6)


def main() -> None:
    """Compare them over means and variances of all sizes, and in other layouts."""
    torch.manual_seed(0)
    m, v = torch.linspace(-9.0, 9.0, 101), torch.logspace(-9, 3, 13)
    m, v = (each.contiguous() for each in torch.broadcast_tensors(m, v[:, None]))
    compare(m, v)
    compare(m.t(), v.t())
    compare(m.t(), v.t().contiguous())
    # Two nodes are enough up to a variance, and no block with one above it takes them.
    small = torch.linspace(0.0, FEW_UP_TO, m.numel()).reshape(m.shape)
    compare(m, small, rtol=3e-4)
    few = half_precision_gelu_moments(m, small)[1]
    assert not torch.allclose(few, coarse_gelu_moments(m, small)[1], rtol=1e-5, atol=0.0)
    small.view(-1)[::200] = 2.0
    compare(m, small)
    has_bfloat16, fused_gelu.has_bfloat16 = fused_gelu.has_bfloat16, lambda _: False
    compare(m.t(), v.t().contiguous())
    fused_gelu.has_bfloat16 = has_bfloat16
    m = torch.tensor([-1e30, -500.0, 500.0, 1e30, float("nan")])
    mean, variance = half_precision_gelu_moments(m, torch.tensor([1.0, 1e-30, 1e6, 0.0, 1.0]))
    assert mean[:4].isfinite().all()
    assert variance[:4].isfinite().all()
    assert mean[4].isnan()
    m = torch.randn(5, requires_grad=True)
    (slope,) = torch.autograd.grad(
        half_precision_gelu_moments(m, m.square())[1].sum(), m, create_graph=True
    )
    twice = torch.autograd.grad(slope.sum(), m)
    (slope,) = torch.autograd.grad(
        coarse_gelu_moments(m, m.square())[1].sum(), m, create_graph=True
    )
    torch.testing.assert_close(twice, torch.autograd.grad(slope.sum(), m))
    print("all agree")


if __name__ == "__main__":
    main()
