"""Save a model to one file and load it back: no code in it, nothing unpickled."""

import tempfile
from pathlib import Path

import torch
from safetensors import safe_open
from torch import nn

import bayesify as bf
from bayesify.data import loader

torch.manual_seed(0)
data = bf.load_dataset("two_moons")


def network() -> nn.Module:
    """Return the architecture; a file holds tensors and choices, never code."""
    return nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2))


model = bf.convert(network(), bf.MeanField(prior_std=1.0))
bf.fit(model, loader(data.train, 50), epochs=50, learning_rate=1e-2, seed=0)

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "model.safetensors"
    bf.save(model, path, note={"data": "two moons"})
    with safe_open(path, framework="pt") as file:
        print("tensors:", *sorted(file.keys()))
    again = bf.load(path, network())

    # A model of the library is named in the file, so loading needs nothing else.
    options = {"in_features": 2, "hidden": [16], "out_features": 2}
    named = bf.convert(bf.build_model("mlp", **options), bf.MeanField())
    bf.save(named, path, architecture="mlp", options=options)
    print("loaded by name:", type(bf.load(path)).__name__)

before, after = (bf.predict(each, data.test.inputs, seed=0).probs for each in (model, again))
print("the same predictions:", torch.equal(before, after))
