"""Choose a posterior family and a prior; see how their KL is found, and what each way costs."""

import time

import torch

import bayesify as bf
from bayesify.data import loader

torch.manual_seed(0)
digits = bf.load_dataset("digits")
train, test = loader(digits.train, 128, shuffle=True), loader(digits.test, 512)
net = bf.build_model("mlp", in_features=64, hidden=(100, 50))

# A Radial posterior: one direction and one radius for each tensor. Its KL has a closed form.
narrow = {"name": "normal", "std": 0.1}
model = bf.convert(net, bf.MonteCarloKL("radial", prior=narrow))
bf.fit(model, train, epochs=15, beta=0.1, learning_rate=5e-3, seed=0)
print(f"radial: {bf.evaluate(model, test, progress=False)['accuracy']:.3f}")

# The same KL by 1000 draws a step, with the graph of one; and a prior that has no closed form.
mixture = {"name": "scale_mixture", "wide_std": 1.0, "narrow_std": 0.05}
ways = {
    "exact": bf.MonteCarloKL("normal", narrow),
    "drawn at once": bf.MonteCarloKL("normal", narrow, estimator="exact_mc"),
    "graph of one draw": bf.MonteCarloKL("normal", narrow, estimator="repar"),
    "memory of one draw": bf.MonteCarloKL("student_t", mixture, num_samples=100),
}
for name, method in ways.items():
    model = bf.convert(net, method)
    began = time.perf_counter()
    bf.kl(model).backward()
    how = bf.summary(model).rows[0].kl
    print(f"{name:>18}: {how:>22}, {1000 * (time.perf_counter() - began):7.1f} ms")

# What cannot be is refused with its reason.
try:
    bf.MonteCarloKL("normal", "exponential")
except ValueError as error:
    print(error)
