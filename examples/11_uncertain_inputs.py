"""Inputs that are known only so well: what the error of a sensor does to a prediction."""

import torch

import bayesify as bf

torch.manual_seed(0)
x = torch.rand(256, 1) * 2 - 1
y = torch.sin(3 * x) + 0.05 * torch.randn(256, 1)

net = torch.nn.Sequential(torch.nn.Linear(1, 40), torch.nn.Tanh(), torch.nn.Linear(40, 1))
model = bf.convert(net, bf.MomentPropagation(prior_std=1.0))
likelihood = bf.GaussianRegression(0.05)
# Batches of `Moments(x, variance)` train it as well: on all the inputs there could have been.
bf.fit(model, [(x, y)] * 10, epochs=20, learning_rate=3e-2, num_data=256, likelihood=likelihood)

# Where sin(3x) is steep an error of the input is one of the output; at its peak it is none.
places = torch.tensor([[0.0], [torch.pi / 6]])
for std in (0.0, 0.02, 0.1):
    reading = bf.Moments(places, std**2)
    carried = bf.predict(model, reading, by="covariance").epistemic.sqrt()
    drawn = bf.predict(model, reading, by="sample", num_samples=2000, seed=0).epistemic.sqrt()
    print(f"input known to {std}: output to", [f"{each:.3f}" for each in carried.flatten()])
    print("                by 2000 draws to", [f"{each:.3f}" for each in drawn.flatten()])
