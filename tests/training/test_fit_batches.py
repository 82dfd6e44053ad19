"""What a loader may yield, what a loss sees of it, and which loaders cannot train."""

from collections import namedtuple
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.distributed import DistributedSampler

import bayesify as bf
from bayesify.training.settings import FitSettings, num_examples
from training.small_problem import data, network


def test_loaders_that_cannot_train_are_explained() -> None:
    class Stream(IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            return iter([data()[index] for index in range(48)])

    model = bf.convert(network(), bf.MeanField())
    x, y = data().tensors
    options: dict[str, Any] = {"epochs": 1, "num_data": 96, "progress": False}
    with pytest.raises(TypeError, match=r"read anew in every epoch.*got a generator"):
        bf.fit(model, ((x, y) for _ in range(2)), **options)
    with pytest.raises(ValueError, match="accumulate=2 needs a train_loader with a length"):
        bf.fit(model, DataLoader(Stream(), 16), accumulate=2, **options)
    with pytest.raises(ValueError, match="train_loader yielded no batch in epoch 1"):
        bf.fit(model, [], likelihood="classification", **options)
    with pytest.raises(ValueError, match="val_loader yielded no example"):
        bf.fit(model, [(x, y)], [], **options)
    with pytest.raises(ValueError, match="checkpoint_every=3 needs run_dir"):
        bf.fit(model, [(x, y)], checkpoint_every=3, **options)
    frozen = bf.convert(network().requires_grad_(False), bf.Deterministic())
    with pytest.raises(ValueError, match="nothing to train"):
        bf.fit(frozen, [(x, y)], **options)
    assert frozen.bayesify.likelihood is None


def test_number_of_examples_is_that_of_all_processes() -> None:
    sampler = DistributedSampler(data(), num_replicas=4, rank=0)
    assert num_examples(DataLoader(data(), 8, sampler=sampler), FitSettings(epochs=1)) == 96


def test_named_tuples_and_packed_sequences_are_batches() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.GRU(5, 4)
            self.head = nn.Linear(4, 2)

        def forward(self, x: nn.utils.rnn.PackedSequence) -> torch.Tensor:
            return self.head(self.layers(x)[1][0])

    pair = namedtuple("pair", ("inputs", "targets"))
    x, y = data(4).tensors
    packed = nn.utils.rnn.pack_sequence([x[:3], x[3:]])
    for model, inputs in ((network(), x), (Recurrent(), packed)):
        bayesian = bf.convert(model, bf.MeanField())
        targets = y if inputs is x else y[:2]
        batches = [pair(inputs, targets)]
        assert bf.fit(bayesian, batches, epochs=1, num_data=4, progress=False).last["nll"] > 0


def test_users_loss_always_sees_the_whole_output() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(5, 2)

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"scores": self.head(x), "twice": 2 * self.head(x)}

    def loss(output: dict[str, torch.Tensor], targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(output["scores"] + output["twice"], targets)

    model = bf.convert(Two(), bf.MeanField())
    loader = DataLoader(data(), 32)
    row = bf.fit(model, loader, loader, epochs=1, likelihood=loss, progress=False).last
    assert row["loss"] == pytest.approx(row["nll"], rel=1e-6)
