"""Training steps of peers that average a KL over M draws.

torchbayesian draws M weights at once for the KL, next to the one of the forward pass. torch_blue
takes the KL from the draws of its forward passes, so M draws are M passes as well, side by side.
Both make every draw part of the graph. Normal posteriors and priors, their defaults.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch.nn.functional as F
from step_cost import TrainingStep
from torch import Tensor, func, nn

NUM_DATA = 50_000


def torchbayesian_step(net: nn.Module, x: Tensor, y: Tensor, num_samples: int) -> TrainingStep:
    from torchbayesian import bnn

    # It says at every call that an exact KL would do; that is not what is measured here.
    warnings.filterwarnings("ignore", message="You are using a Monte Carlo approximation")
    model = bnn.BayesianModule(net).to(x.device)

    def loss() -> tuple[Tensor, Tensor]:
        nll = F.cross_entropy(model(x), y)
        kl = model.kl_divergence(approx_num_samples=num_samples)
        return nll + kl / NUM_DATA, kl

    return TrainingStep(loss, model)


def torch_blue_step(net: nn.Module, x: Tensor, y: Tensor, num_samples: int) -> TrainingStep:
    from torch_blue import vi
    from torch_blue.vi.distributions import Categorical

    vi.convert_to_vimodule(net)
    negative_elbo = vi.KullbackLeiblerLoss(Categorical(), dataset_size=NUM_DATA)

    def loss() -> tuple[Tensor, None]:
        return negative_elbo(net(x, samples=num_samples), y) / NUM_DATA, None

    return TrainingStep(loss, net)


def torch_blue_step_without_running_averages(
    net: nn.Module, x: Tensor, y: Tensor, num_samples: int
) -> TrainingStep:
    """Mend what stops torch_blue at batch normalisation, as torch's own message advises."""
    return torch_blue_step(func.replace_all_batch_norm_modules_(net), x, y, num_samples)


PeerStep = Callable[[nn.Module, Tensor, Tensor, int], TrainingStep]
PEERS: dict[str, PeerStep] = {
    "torchbayesian": torchbayesian_step,
    "torch_blue": torch_blue_step,
    "torch_blue, no running averages": torch_blue_step_without_running_averages,
}
# What follows the peer that it mends.
MENDED = ("torch_blue, no running averages",)
