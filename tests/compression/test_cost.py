"""Costs against counting by hand, against torch's own counter, and against the formulas."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.flop_counter import FlopCounterMode

import bayesify as bf
from bayesify.compression import Costs, count_costs

NUM_WEIGHTS, NUM_BIASES = 6 * 20 + 20 * 5, 20 + 5
ONE_PASS = 2 * NUM_WEIGHTS
INPUTS = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
# The number of the step, four bytes, that Adam keeps for each tensor.
COUNTER = 4


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 5))


def costs_of(method: Any, **options: Any) -> Costs:
    return count_costs(bf.convert(network(), method), INPUTS, **options)


@pytest.mark.parametrize(("optimizer", "copies"), [("sgd", 3), ("adam", 4)])
def test_a_plain_network_takes_three_passes_and_keeps_what_its_optimiser_does(
    optimizer: str, copies: int
) -> None:
    found = costs_of(bf.Deterministic(), optimizer=optimizer, num_samples=5)
    number = NUM_WEIGHTS + NUM_BIASES
    assert found.modelled.num_parameters == found.measured.num_parameters == number
    assert found.modelled.flops == found.measured.flops == found.plain_flops == 3 * ONE_PASS
    assert found.modelled.num_bytes == 4 * copies * number
    counters = 4 * COUNTER if optimizer == "adam" else 0
    assert found.measured.num_bytes == 4 * copies * number + counters
    assert found.measured.num_buffers == 0


def test_an_ensemble_costs_as_much_as_its_members() -> None:
    one, three = costs_of(bf.Deterministic()), costs_of(bf.DeepEnsemble(3), num_samples=5)
    for name in ("modelled", "measured"):
        first, many = getattr(one, name), getattr(three, name)
        assert many.num_parameters == 3 * first.num_parameters
        assert many.num_bytes == 3 * first.num_bytes
        assert many.flops == 3 * first.flops


@pytest.mark.parametrize("num_samples", [1, 5])
def test_variational_inference_follows_the_formula_and_here_biases_have_no_scale(
    num_samples: int,
) -> None:
    found = costs_of(bf.MeanField(), optimizer="sgd", num_samples=num_samples)
    assert found.modelled.num_parameters == 2 * (NUM_WEIGHTS + NUM_BIASES)
    assert found.measured.num_parameters == 2 * NUM_WEIGHTS + NUM_BIASES
    assert found.modelled.flops == 2 * (num_samples + 2) * ONE_PASS
    assert found.measured.flops == 3 * num_samples * ONE_PASS
    # Means: themselves, gradient, momentum. Scales: themselves, gradient, two moments.
    assert found.modelled.num_bytes == 4 * (3 + 4) * (NUM_WEIGHTS + NUM_BIASES)
    scales = 4 * 4 * NUM_WEIGHTS + 2 * COUNTER
    assert found.measured.num_bytes == 4 * 3 * (NUM_WEIGHTS + NUM_BIASES) + scales


def test_local_reparameterisation_takes_two_products() -> None:
    found = costs_of(bf.MeanField(how="local"))
    assert found.measured.flops == 2 * costs_of(bf.MeanField()).measured.flops
    assert found.modelled.flops == costs_of(bf.MeanField()).modelled.flops


@pytest.mark.parametrize("fraction", [0.0, 0.05, 0.5])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_partial_network_pays_for_its_random_weights_and_their_positions(
    fraction: float, optimizer: str
) -> None:
    method = bf.PartialBayes(fraction, score="random")
    found = costs_of(method, optimizer=optimizer, num_samples=5)
    number, num_random = NUM_WEIGHTS + NUM_BIASES, round(fraction * NUM_WEIGHTS)
    share = num_random / NUM_WEIGHTS
    assert found.modelled.num_parameters == pytest.approx((1 + share) * number)
    assert found.modelled.flops == pytest.approx((1 + share) * (5 + 2) * ONE_PASS)
    assert found.measured.num_parameters == number + num_random
    positions = sum(entry.nbytes for entry in bf.convert(network(), method).buffers())
    assert positions <= 4 * num_random
    assert found.measured.flops == 3 * 5 * ONE_PASS
    # A scale, its gradient, its two moments, and where it is.
    expected = 4 * (3 if optimizer == "sgd" else 4) * number + 4 * 4 * num_random + positions
    num_counters = 2 + (4 if optimizer == "adam" else 0)
    assert 0 <= found.measured.num_bytes - expected <= COUNTER * num_counters
    assert found.measured.num_gradient_bytes == 4 * (number + num_random)


@pytest.mark.parametrize("fraction", [0.01, 0.05, 0.2])
@pytest.mark.parametrize(("optimizer", "scale_optimizer"), [("adam", "adam"), ("sgd", "rmsprop")])
def test_a_partial_network_keeps_its_share_and_at_most_two_per_cent(
    fraction: float, optimizer: Any, scale_optimizer: Any
) -> None:
    torch.manual_seed(0)
    net, inputs = bf.build_model("lenet_300_100"), torch.randn(2, 784)
    plain = count_costs(bf.convert(net, bf.Deterministic()), inputs, optimizer=optimizer).measured
    model = bf.convert(net, bf.PartialBayes(fraction, score="random"))
    options = {"optimizer": optimizer, "scale_optimizer": scale_optimizer}
    found = count_costs(model, inputs, **options).measured
    assert found.num_bytes <= 1.02 * (1 + fraction) * plain.num_bytes
    kept, kept_plain = (each.num_bytes - each.num_gradient_bytes for each in (found, plain))
    assert kept <= 1.02 * (1 + fraction) * kept_plain


def test_scales_in_rmsprop_keep_one_number_less() -> None:
    adam = costs_of(bf.MeanField())
    found = costs_of(bf.MeanField(), scale_optimizer="rmsprop")
    assert adam.measured.num_bytes - found.measured.num_bytes == 4 * NUM_WEIGHTS
    assert adam.modelled.num_bytes - found.modelled.num_bytes == 4 * (NUM_WEIGHTS + NUM_BIASES)


def test_a_sparse_subspace_pays_for_live_weights_twice_and_for_their_positions() -> None:
    found = costs_of(bf.SparseSubspace(0.1, first_dense=False), num_samples=2)
    live = round(0.1 * 120) + round(0.1 * 100)
    assert found.measured.num_parameters == 2 * live + NUM_BIASES
    assert found.measured.num_buffers == live
    assert found.modelled.flops == pytest.approx(2 * (2 + 2) * 2 * live)
    assert found.measured.flops == pytest.approx(2 * 3 * 2 * 2 * live)
    assert found.plain_flops == 3 * ONE_PASS


@pytest.mark.parametrize("method", [bf.MeanField(), bf.PartialBayes(0.2, score="magnitude")])
def test_flops_agree_with_torch(method: Any) -> None:
    model, inputs = bf.convert(network(), method), INPUTS.clone().requires_grad_()
    with FlopCounterMode(display=False) as counter:
        for _ in range(3):
            model(inputs).square().sum().backward()
    found = count_costs(model, INPUTS, num_samples=3)
    assert found.measured.flops == pytest.approx(counter.get_total_flops() / len(INPUTS))


def test_bytes_are_those_a_run_holds() -> None:
    model = bf.convert(network(), bf.PartialBayes(0.3, score="magnitude"))
    expected = count_costs(model, INPUTS).measured.num_bytes
    held: list[torch.optim.Optimizer] = []

    def adam(groups: Any) -> torch.optim.Optimizer:
        held.append(torch.optim.Adam(groups, lr=1e-3))
        return held[0]

    loader = DataLoader(TensorDataset(INPUTS, torch.tensor([0, 1, 2, 3])), 4)
    bf.fit(model, loader, epochs=1, optimizer=adam, progress=False)
    states = [value for state in held[0].state.values() for value in state.values()]
    parameters, buffers = list(model.parameters()), list(model.buffers())
    scales = [value for name, value in model.named_parameters() if name.endswith("rho")]
    of_scales = sum(2 * value.nbytes + COUNTER for value in scales)
    found = sum(value.nbytes for value in (*parameters, *parameters, *buffers, *states))
    assert found + of_scales == expected


def test_a_run_adds_its_warm_start() -> None:
    found = costs_of(bf.PartialBayes(0.05, score="random"), num_samples=5)
    assert found.modelled_flops(10) == 10 * found.modelled.flops
    warm = found.modelled_flops(10, warm_start_epochs=4) - found.modelled_flops(10)
    assert warm == pytest.approx(4 * 3 * ONE_PASS)
    warm = found.measured_flops(10, warm_start_epochs=4) - 10 * found.measured.flops
    assert warm == pytest.approx(4 * 3 * ONE_PASS)


def test_buffers_of_norms_tied_weights_and_half_precision_are_counted_as_they_are() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
            self.second.weight = self.first.weight
            self.norm = nn.BatchNorm1d(6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.norm(self.first(x)))

    torch.manual_seed(0)
    found = count_costs(bf.convert(Tied(), bf.MeanField()), INPUTS)
    assert found.measured.num_parameters == 2 * 36 + 2 * 6 + 2 * 6
    assert found.measured.num_buffers == 6 + 6 + 1
    half = bf.convert(network().bfloat16(), bf.Deterministic())
    number = NUM_WEIGHTS + NUM_BIASES
    assert count_costs(half, INPUTS.bfloat16()).modelled.num_bytes == 2 * 4 * number


def test_counting_leaves_no_trace() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 2))
    model = bf.convert(net, bf.MeanField()).eval()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    count_costs(model, torch.randn(2, 1, 4, 4, generator=torch.Generator().manual_seed(0)))
    assert torch.rand(1) == expected
    assert not model.training
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(value.grad is None for value in model.parameters())


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="optimizer must be 'sgd' or 'adam', got 'rmsprop'"):
        costs_of(bf.Deterministic(), optimizer="rmsprop")
    with pytest.raises(ValueError, match="scale_optimizer must be 'adam' or 'rmsprop', got 'sgd'"):
        costs_of(bf.MeanField(), scale_optimizer="sgd")
    with pytest.raises(ValueError, match="num_samples must be a whole number >= 1, got 0"):
        costs_of(bf.MeanField(), num_samples=0)
