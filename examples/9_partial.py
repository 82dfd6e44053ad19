"""Make a trained network Bayesian where it matters: a few of its weights, and no others."""

import torch

import bayesify as bf
from bayesify.data import loader

torch.manual_seed(0)
digits = bf.load_dataset("digits")
train, test = loader(digits.train, 128, shuffle=True), loader(digits.test, 512)
strange = [(torch.rand_like(x), y) for x, y in test]

# Any trained network will do; this one is trained here.
plain = bf.convert(bf.build_model("mlp", in_features=64, hidden=(100, 50)), bf.Deterministic())
bf.fit(plain, train, epochs=15, learning_rate=3e-3, seed=0)
net = bf.revert(plain)

# Which weights do the outputs hang on? One backward pass a batch, no labels needed.
scores = bf.sensitivity(net, train)
total = sum(score.sum() for score in scores.values())
for name, score in scores.items():
    print(f"{name}: {score.sum() / total:.0%} of what the outputs hang on")

# One weight in twenty gets a scale; the others have none, not even in memory.
model = bf.convert(net, bf.PartialBayes(0.05, data=train, prior_std=0.3))
print(bf.summary(model))
bf.fit(model, train, epochs=10, beta=0.1, num_samples=2, seed=0)

for name, each in {"plain": plain, "partial": model}.items():
    found = bf.evaluate(each, test, ood={"noise": strange}, progress=False)
    print(f"{name:>8}: nll {found['nll']:.3f}, noise told apart {found.ood['noise']['auroc']:.3f}")
