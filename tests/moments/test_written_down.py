"""What compiled code is to write down once."""

import pytest
import torch
import torch.nn.functional as F
from functorch.compile import make_boxed_func

import bayesify as bf
from bayesify.conversion.scope import forward_by
from bayesify.moments.written_down import scales_written_down, written_down


def graph_of(function, *inputs):
    found = []

    def backend(graph, inputs):
        found.extend(str(node.target) for node in graph.graph.nodes)
        return make_boxed_func(graph)

    torch._dynamo.reset()
    with scales_written_down():
        results = torch.compile(function, backend=aot(backend), fullgraph=True)(*inputs)
    torch._dynamo.reset()
    return found, results


def aot(backend):
    from torch._dynamo.backends.common import aot_autograd

    return aot_autograd(fw_compiler=backend)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_view_is_in_the_graph_and_nowhere_else():
    rho = torch.randn(5, 1, requires_grad=True)
    found, result = graph_of(lambda rho: written_down(F.softplus(rho)) * 2.0, rho)
    assert "aten.as_strided.default" in found
    torch.testing.assert_close(result, F.softplus(rho) * 2.0)
    result.sum().backward()
    torch.testing.assert_close(rho.grad, 2.0 * rho.detach().sigmoid())
    assert written_down(rho) is rho
    with scales_written_down():
        assert written_down(rho) is rho
        exported = torch.export.export(_Twice(), (rho.detach(),), strict=False)
    assert "as_strided" not in exported.graph_module.code


class _Twice(torch.nn.Module):
    def forward(self, rho):
        return written_down(F.softplus(rho)) * 2.0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("scale", "count"), [("out", 2), ("weight", 1)])
def test_scales_of_units_and_biases_are_written_down(scale, count):
    model = bf.convert(torch.nn.Linear(4, 3), bf.MomentPropagation(scale=scale))
    with forward_by(model, "moments"):
        found, _ = graph_of(lambda x: model(x).pair(), torch.randn(2, 4))
    assert found.count("aten.as_strided.default") == count


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_view_into_a_tensor_is_read_where_it_lies():
    """By inductor, which takes the view from where the memory begins."""
    torch._dynamo.reset()
    with scales_written_down():
        call = torch.compile(lambda x: written_down((x + 1.0)[:, 3]) * 2.0, fullgraph=True)
        result = call(torch.arange(12.0).view(3, 4))
    torch._dynamo.reset()
    torch.testing.assert_close(result, torch.tensor([8.0, 16.0, 24.0]))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_vmap_goes_through_moments_elsewhere():
    model = bf.convert(torch.nn.Linear(4, 3), bf.MomentPropagation(scale="out"))
    x = torch.randn(5, 4)

    def rows(x):
        return torch.func.vmap(lambda row: model(row).variance)(x)

    torch._dynamo.reset()
    with forward_by(model, "moments"):
        found = torch.compile(rows, backend="aot_eager")(x)
        torch.testing.assert_close(found, model(x).variance)
    torch._dynamo.reset()
