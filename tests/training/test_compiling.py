"""The choice of `compile`, and what captured passes leave behind."""

import importlib

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import bayesify as bf
from bayesify.conversion.scope import forward_by
from bayesify.training.compiling import MODES, compile_options, compiled, torch_release, with_kl
from training.small_problem import data, network

CPU = torch.device("cpu")
NEEDS_A_WHOLE_PASS = pytest.mark.skipif(torch_release() < (2, 11), reason="torch before 2.11")
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("choice", ["reduce_overhead", 1, None])
def test_a_wrong_choice_is_named_before_anything_starts(choice):
    with pytest.raises(
        ValueError, match=r"compile must be True, False or a mode of torch\.compile"
    ):
        bf.fit(network(), [], epochs=1, compile=choice)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_torch_knows_every_mode():
    for mode in MODES:
        assert callable(compiled(network(), mode, torch.device("cpu")))
    model = network()
    assert compiled(model, False, torch.device("cpu")) is model


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
@pytest.mark.parametrize("norm", [nn.BatchNorm1d, nn.LayerNorm])
def test_networks_with_norms_are_compiled_for_moments_in_a_way_of_their_own(norm):
    method, gpu = bf.MomentPropagation(), torch.device("cuda")
    assert method.gpu_compile_options(network()) == {}
    normal = nn.Sequential(nn.Linear(2, 3), norm(3))
    assert bf.MeanField().gpu_compile_options(normal) == {}
    own = method.gpu_compile_options(normal)
    assert own
    # An option that torch does not know, or of another type, is an error of torch.compile.
    torch.compile(network(), options=compile_options("default", gpu, own))
    given = compile_options(True, gpu, own | {"no_such_option": 1})
    assert all(given[name] == own[name] for name in own.keys() & given.keys())
    is_new = torch_release() >= (2, 13)
    assert own.keys() - given.keys() == (set() if is_new else {"loop_reindexing_after_fusion"})
    assert "no_such_option" not in given
    assert compile_options("reduce-overhead", gpu, own)["triton.cudagraphs"] is True
    assert not own.keys() & compile_options(True, torch.device("cpu"), own).keys()


def eager(model, *given):
    """Take the place of `compiled`: what is handed to the compiler, as it is."""
    return model


@pytest.mark.parametrize("settings", [{}, {"accumulate": 2}, {"num_samples": 2}, {"beta": 0.0}])
@pytest.mark.parametrize("method", [bf.MomentPropagation(), bf.MeanField()])
def test_a_kl_inside_the_pass_trains_as_one_outside(method, settings, monkeypatch):
    # The package has a function of the module's name.
    module = importlib.import_module("bayesify.training.fit")
    found = []
    for is_inside in (True, False):
        monkeypatch.setattr(module, "compiled", eager)
        if not is_inside:
            monkeypatch.setattr(module, "with_kl", lambda *given: None)
        torch.manual_seed(0)
        model = bf.convert(nn.Sequential(nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 2)), method)
        loader = DataLoader(data(), 16)
        history = bf.fit(
            model, loader, loader, epochs=2, compile=True, progress=False, seed=1, **settings
        )
        found.append(([row["nll"] for row in history.rows], [row["kl"] for row in history.rows]))
        found[-1] += ([each.detach().clone() for each in model.parameters()],)
    torch.testing.assert_close(*found, rtol=1e-6, atol=1e-7)


class Watching(bf.MeanField):
    """Makes a pass of its own, without gradients, after the one that trains."""

    def nll(self, model, forward, nll):
        loss = nll(forward())
        with torch.no_grad(), self.sampling(model, "mean"):
            forward()
        return loss


class Calling(bf.MeanField):
    """Calls the model itself in every other step, so that no pass of `fit` has a KL."""

    def nll(self, model, forward, nll):
        type(self).count = getattr(self, "count", 0) + 1
        return nll(forward() if self.count % 2 else model(self.inputs))


@pytest.mark.parametrize("kind", [Watching, Calling])
def test_other_passes_of_a_method_do_not_lose_the_kl(kind, monkeypatch):
    module = importlib.import_module("bayesify.training.fit")
    monkeypatch.setattr(module, "compiled", eager)
    Calling.inputs = torch.stack([x for x, _ in data()])[:16]
    found = []
    for is_inside in (True, False):
        if not is_inside:
            monkeypatch.setattr(module, "with_kl", lambda *given: None)
        kind.count = 0
        torch.manual_seed(0)
        model = bf.convert(nn.Sequential(nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 2)), kind())
        loader = DataLoader(data(), 16, drop_last=True)
        bf.fit(model, loader, epochs=1, compile=True, beta=50.0, progress=False, seed=1)
        found.append([each.detach().clone() for each in model.parameters()])
    torch.testing.assert_close(*found, rtol=1e-6, atol=1e-7)


@NEEDS_A_WHOLE_PASS
def test_where_the_kl_stays_outside(monkeypatch):
    closed = bf.convert(nn.Linear(2, 3), bf.MeanField())
    drawn = bf.convert(nn.Linear(2, 3), bf.MonteCarloKL(estimator="streamed"))
    assert with_kl(closed, True, CPU, "auto") is not None
    assert with_kl(closed, "reduce-overhead", CPU, "ddp") is not None
    for model, choice, strategy in (
        (closed, False, "auto"),
        (closed, True, "fsdp"),
        (drawn, True, "auto"),
        (nn.Linear(2, 3), True, "auto"),
    ):
        assert with_kl(model, choice, CPU, strategy) is None
    monkeypatch.setattr(torch, "__version__", "2.10.1+cu128")
    assert with_kl(closed, True, CPU, "auto") is None


def test_an_older_torch_cannot_shard(monkeypatch):
    model = bf.convert(network(), bf.MeanField())
    monkeypatch.setattr(torch, "__version__", "2.10.1+cu128")
    with pytest.raises(RuntimeError, match=r"strategy='fsdp' needs torch 2\.11"):
        bf.fit(model, DataLoader(data(), 16), epochs=1, strategy="fsdp", progress=False)


@NEEDS_A_WHOLE_PASS
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of how dynamo calls a Function
@pytest.mark.parametrize("method", [bf.MomentPropagation(), bf.MomentPropagation(scale="out")])
def test_a_compiled_pass_is_one_graph_with_the_kl_in_it(method):
    model = bf.convert(nn.Sequential(nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 2)), method)
    passes = with_kl(model, True, CPU, "auto")
    assert passes is not None
    torch._dynamo.reset()
    call = torch.compile(passes, backend="aot_eager", fullgraph=True)
    with forward_by(model, "moments"), torch.autocast("cpu", torch.bfloat16):
        _, divergence = call(torch.randn(4, 5))
    torch.testing.assert_close(divergence, bf.kl(model), rtol=1e-6, atol=0.0)
    divergence.backward()
    inside = [each.grad.clone() for each in model.parameters() if each.grad is not None]
    model.zero_grad()
    bf.kl(model).backward()
    outside = [each.grad for each in model.parameters() if each.grad is not None]
    torch.testing.assert_close(inside, outside, rtol=1e-5, atol=1e-6)
    torch._dynamo.reset()


def test_options_reach_the_compiler(monkeypatch):
    seen = []
    monkeypatch.setattr(torch, "compile", lambda model, options: seen.append(options) or model)
    compiled(network(), True, torch.device("cuda"), {"realize_reads_threshold": 8})
    assert seen[0]["realize_reads_threshold"] == 8
    # The package has a function of the module's name.
    module = importlib.import_module("bayesify.training.fit")
    monkeypatch.setattr(module, "compiled", lambda model, *given: seen.append(given[2]) or model)
    plain = nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    model = bf.convert(plain, bf.MomentPropagation())
    bf.fit(model, DataLoader(data(), 16), epochs=1, compile=True, progress=False)
    assert seen[1] == bf.MomentPropagation().gpu_compile_options(model) != {}


@pytest.mark.parametrize(
    ("release", "is_wrong"),
    [
        ("2.10.0", True),
        ("2.11.0+cu130", True),
        ("2.12.1", True),
        ("2.13.0", False),
        ("3.0.0a0+git1", False),
    ],
)
def test_sums_that_torch_gets_wrong_are_left_out(release, is_wrong, monkeypatch):
    monkeypatch.setattr(torch, "__version__", release)
    found = compile_options(True, torch.device("cuda"))
    assert found == ({"triton.mix_order_reduction": False} if is_wrong else {})
    assert "triton.mix_order_reduction" not in compile_options(True, torch.device("cpu"))


@needs_cuda
@pytest.mark.parametrize("options", [{}, {"num_samples": 2}, {"accumulate": 3}])
def test_captured_passes_train_as_others_do(options):
    losses = []
    for mode in (True, "reduce-overhead"):
        model = bf.convert(network(), bf.MeanField(initial_std=1e-8))
        batches = DataLoader(data(), 16)
        losses.append(
            bf.fit(
                model,
                batches,
                batches,
                epochs=4,
                seed=0,
                beta=0.0,
                compile=mode,
                progress=False,
                **options,
            ).column("val_nll")
        )
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
