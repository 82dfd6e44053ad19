"""Make a network Bayesian: what becomes random, what does not, and the way back."""

import torch
from torch import nn

import bayesify as bf

net = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1),
    nn.BatchNorm2d(8),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(512, 10),
)

# A copy of the network, of its own class; `net` is left as it is.
model = bf.convert(net, bf.MeanField(prior_std=1.0))
print(bf.summary(model))

# Only the last layer, or by name, by type, or by a function of your own.
last = bf.convert(net, bf.MeanField(where="last_layer"))
named = bf.convert(net, bf.MeanField(where=["4.weight", nn.Conv2d], biases=True))
print("random weights:", *(bf.summary(each).num_random for each in (model, last, named)))

# Every call is one draw of the weights; under `mean_weights` there is none.
images = torch.randn(2, 1, 8, 8)
net.eval()
model.eval()
print("two draws differ:", not torch.equal(model(images), model(images)))
with bf.mean_weights(model):
    print("mean weights are the network's own:", torch.allclose(model(images), net(images)))

plain = bf.revert(model)
print("and back:", torch.equal(plain(images), net(images)))
