"""The choice of `compile`, and what captured passes leave behind."""

import pytest
import torch
from torch.utils.data import DataLoader

import bayesify as bf
from bayesify.conversion.method import methods
from bayesify.training.compiling import MODES, compile_options, compiled
from training.small_problem import data, network

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
@pytest.mark.parametrize("name", list(methods))
def test_torch_knows_the_options_of_every_method(name):
    wanted = dict(methods[name].gpu_compile_options)
    # An option that torch does not know, or of another type, is an error of torch.compile.
    torch.compile(network(), options=compile_options("default", torch.device("cuda"), wanted))
    assert wanted.items() <= compile_options(True, torch.device("cuda"), wanted).items()
    assert "triton.cudagraphs" in compile_options("reduce-overhead", torch.device("cuda"), wanted)
    assert not wanted.keys() & compile_options(True, torch.device("cpu"), wanted).keys()


def test_a_model_by_moments_is_compiled_with_its_own_options():
    assert bf.MomentPropagation.gpu_compile_options
    assert not bf.MeanField.gpu_compile_options


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
