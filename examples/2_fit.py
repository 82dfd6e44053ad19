"""Train a Bayesian network, stop, and go on where it stopped."""

import tempfile
from pathlib import Path

import torch

import bayesify as bf
from bayesify.data import loader, split

torch.manual_seed(0)
data = bf.load_dataset("digits")
train, validation = split(data.train, 0.1)

net = bf.build_model("mlp", in_features=64, hidden=(64, 64), out_features=10)
model = bf.convert(net, bf.MeanField(prior_std=0.3, how="local"))

with tempfile.TemporaryDirectory() as folder:
    options = {
        "run_dir": Path(folder),  # checkpoint, metrics.csv and log.txt go here
        "beta": 0.01,  # a tempered posterior; 1 is the ELBO
        "learning_rate": 5e-3,
        "keep_best": True,  # end on the epoch with the best validation nll
        "seed": 0,
    }
    loaders = loader(train, 64, shuffle=True), loader(validation, 256)
    history = bf.fit(model, *loaders, epochs=10, **options)
    print("files:", *sorted(path.name for path in Path(folder).iterdir()))

    # A run that was stopped goes on from its checkpoint; this one only has two epochs to add.
    history = bf.fit(model, *loaders, epochs=12, resume=True, **options)

for row in history.rows[::3]:
    print(f"epoch {row['epoch']:.0f}: nll {row['nll']:.3f}, validation nll {row['val_nll']:.3f}")
