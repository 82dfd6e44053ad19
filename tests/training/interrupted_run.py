"""A script that trains until it is killed, and goes on when started again.

usage: interrupted_run.py FOLDER
"""

import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bayesify as bf


def main() -> None:
    folder = Path(sys.argv[1])
    torch.manual_seed(0)
    x = torch.randn(600, 10)
    y = x[:, :4].argmax(1)
    # Batch norm keeps buffers, dropout draws noise: both must survive a kill.
    net = nn.Sequential(
        nn.Linear(10, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 4)
    )
    model = bf.convert(net, bf.MeanField(prior_std=0.3))
    bf.fit(
        model,
        DataLoader(TensorDataset(x, y), 20, shuffle=True),
        DataLoader(TensorDataset(x[:100], y[:100]), 50),
        epochs=12,
        seed=7,
        optimizer="adamw",
        weight_decay=1e-3,
        beta="warm_up",
        keep_best=False,
        run_dir=folder,
        resume=True,
        checkpoint_every=7,
        progress=False,
    )
    bf.save(model, folder / "final.safetensors")


if __name__ == "__main__":
    main()
