"""Your own training loop: two optimisers, and one line for the loss."""

import torch
import torch.nn.functional as F

import bayesify as bf
from bayesify.data import loader

torch.manual_seed(0)
data = bf.load_dataset("digits")
net = bf.build_model("mlp", in_features=64, hidden=(64, 64), out_features=10)
model = bf.convert(net, bf.MeanField(prior_std=0.3))

# Scales live on a log-like axis and their gradient carries 1/N: they need a larger step, and
# weight decay would pull their rho to 0, which is a standard deviation of 0.7.
scales = [value for name, value in model.named_parameters() if name.endswith(".rho")]
others = [value for name, value in model.named_parameters() if not name.endswith(".rho")]
optimizers = [
    torch.optim.AdamW(others, lr=3e-3, weight_decay=1e-2),
    torch.optim.Adam(scales, lr=1e-2),
]

for epoch in range(10):
    for images, targets in loader(data.train, 64, shuffle=True):
        nll = F.cross_entropy(model(images), targets)  # one forward, one draw of the weights
        loss = bf.elbo_loss(nll, model, num_data=len(data.train), beta=0.01)
        loss.total.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    print(f"epoch {epoch + 1}: nll {loss.nll:.3f}, KL {loss.kl:.0f} nats")

images, targets = next(iter(loader(data.test, len(data.test))))
prediction = bf.predict(model, images, likelihood="classification", seed=0)
print(f"test accuracy {(prediction.classes == targets).float().mean():.3f}")
