"""Write a network that knows how sure it is to one file, and run it where there is no torch."""

import tempfile
from pathlib import Path

import numpy as np
import torch

import bayesify as bf
from bayesify.data import loader

torch.manual_seed(0)
digits = bf.load_dataset("digits")
train, test = loader(digits.train, 128, shuffle=True), loader(digits.test, 512)
net = bf.build_model("mlp", in_features=64, hidden=(100, 50))

# Trained through moments: one pass carries a mean and a variance, and no weight is ever drawn.
model = bf.convert(net, bf.MomentPropagation(prior_std=0.3))
bf.fit(model, train, epochs=15, beta=0.1, learning_rate=3e-3, seed=0)

images, labels = next(iter(test))
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "digits.onnx"
    bf.export(model, path, example_inputs=images[:4])  # checked against torch before it is written
    print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB, {bf.read_manifest(path)['method']}")
    run = bf.Runtime(path)  # elsewhere: `from bayesify_runtime import Runtime`, without torch
    answer = run(images.numpy())
    noise = run(np.random.default_rng(0).uniform(-2, 2, images.shape).astype(np.float32))

right = (answer["probs"].argmax(1) == labels.numpy()).mean()
print(f"accuracy {right:.3f}, entropy {answer['entropy'].mean():.3f}")
print(f"entropy of noise {noise['entropy'].mean():.3f}")
difference = np.abs(answer["probs"] - bf.predict(model, images).probs.numpy()).max()
print(f"largest difference from torch: {difference:.0e}")
