"""Start from a trained network, let variational dropout find what it needs, remove the rest."""

import tempfile
from pathlib import Path

import torch

import bayesify as bf
from bayesify.data import loader

torch.manual_seed(0)
digits = bf.load_dataset("digits")
train, test = loader(digits.train, 128, shuffle=True), loader(digits.test, 512)

# A warm start: train the plain network first (or load your own), then anneal the KL.
options = {"in_features": 64, "hidden": (100, 50)}
plain = bf.convert(bf.build_model("mlp", **options), bf.Deterministic())
bf.fit(plain, train, epochs=10, schedule="constant", seed=0)
model = bf.convert(bf.revert(plain), bf.VariationalDropout(initial_std=0.0067))  # log variance -10
annealed = {"name": "warm_up", "fraction": 0.5}
rates = {"learning_rate": 5e-3, "scale_learning_rate": 0.1}
history = bf.fit(model, train, epochs=40, beta=annealed, seed=0, **rates)
print(f"weights that are mostly noise: {history.last['sparsity']:.1%}")

small = bf.compress(model)  # the method's own rule: log alpha of 3 and more goes
pruned = bf.compress(model, shrink=False)  # the same before dead units take more with them
control = bf.compress(model, by="random", like=pruned)  # as many of each layer, at random
print(bf.sparsity(small))
for name, each in (("trained", model), ("compressed", small), ("at random", control)):
    print(f"{name:>10}: {bf.evaluate(each, test, progress=False)['accuracy']:.3f}")

with tempfile.TemporaryDirectory() as folder:
    files = [Path(folder) / "model.safetensors", Path(folder) / "small.safetensors"]
    for each, path in zip((model, small), files, strict=True):
        bf.save(each, path, architecture="mlp", options=options)
    print(f"the file: {files[1].stat().st_size:,} of {files[0].stat().st_size:,} bytes")
    again = bf.load(files[1])
    first, second = (bf.predict(each, test, seed=0).probs for each in (small, again))
    print("predicts the same after load:", torch.equal(first, second))
