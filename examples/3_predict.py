"""Predict, and split what is not known into noise and ignorance."""

import torch

import bayesify as bf
from bayesify.data import loader

torch.manual_seed(0)
torch.set_printoptions(precision=3, sci_mode=False)

# Classes: entropies in nats.
moons = bf.load_dataset("two_moons", num_train=100, noise_std=0.15)
net = bf.build_model("mlp", in_features=2, hidden=(32, 32), out_features=2)
model = bf.convert(net, bf.MeanField(prior_std=2.0, initial_std=0.1))
bf.fit(model, loader(moons.train, 100), epochs=200, learning_rate=1e-2, beta=0.1, seed=0)

points = torch.tensor([[-0.5, 0.8], [0.6, 0.2], [4.0, 4.0]])  # familiar, in between, far away
prediction = bf.predict(model, points, num_samples=100, seed=0)
print(prediction)
for name in ("probs", "entropy", "aleatoric", "epistemic"):
    print(f"{name}:\n{getattr(prediction, name)}")

# Numbers: variances, and intervals of the whole predictive distribution.
curve = bf.load_dataset("curve_1d")
net = bf.build_model("mlp", in_features=1, hidden=(50,), out_features=1)
model = bf.convert(net, bf.MeanField(prior_std=1.0, initial_std=0.05))
noise = bf.GaussianRegression(noise=0.05)  # a known standard deviation; it can be learned too
batches = loader(curve.train, 20, shuffle=True)
bf.fit(model, batches, likelihood=noise, epochs=300, learning_rate=2e-2, seed=0)

prediction = bf.predict(model, torch.tensor([[0.25], [1.5]]), num_samples=100, seed=0)
low, high = prediction.interval(0.95)
for index, where in enumerate(("inside the data ", "far outside them")):
    print(
        f"{where}: {prediction.mean[index, 0]:.2f} in [{low[index, 0]:.2f}, {high[index, 0]:.2f}]"
    )
