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
net = bf.build_model("mlp", **options)
plain = bf.convert(net, bf.Deterministic())
bf.fit(plain, train, epochs=10, schedule="constant", seed=0)
model = bf.convert(bf.revert(plain), bf.VariationalDropout(initial_std=0.0067))
how = {"beta": {"name": "warm_up", "fraction": 0.5}, "learning_rate": 5e-3}
history = bf.fit(model, train, epochs=40, scale_learning_rate=0.1, seed=0, **how)
print(f"weights that are mostly noise: {history.last['sparsity']:.1%}")

small = bf.compress(model)  # the method's own rule: log alpha of 3 and more goes
pruned = bf.compress(model, shrink=False)  # all that passed the rule, dead ends included
control = bf.compress(model, by="random", like=pruned)
print(bf.sparsity(small))
for name, each in (("trained", model), ("compressed", small), ("at random", control)):
    print(f"{name:>10}: {bf.evaluate(each, test, progress=False)['accuracy']:.3f}")

with tempfile.TemporaryDirectory() as folder:
    sizes = []
    for name, each in (("model", model), ("small", small)):
        path = Path(folder) / f"{name}.safetensors"
        bf.save(each, path, architecture="mlp", options=options)
        sizes.append(path.stat().st_size)
    print(f"the file: {sizes[1]:,} of {sizes[0]:,} bytes")
    again = bf.load(path)
    first, second = (bf.predict(each, test, seed=0).probs for each in (small, again))
    print("predicts the same after load:", torch.equal(first, second))
