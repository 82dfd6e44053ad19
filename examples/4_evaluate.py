"""Score four methods on the same data: right, calibrated, and unsure where it should be."""

import torch

import bayesify as bf
from bayesify.data import loader
from bayesify.recipes import make_ood

data = bf.load_dataset("digits")
strange = make_ood(data.test, "shuffled")  # the test digits, each with its pixels in disorder

methods = {
    "plain": bf.Deterministic(),
    "mean field": bf.MeanField(prior_std=0.3, how="local"),
    "MC dropout": bf.MCDropout(),
    "ensemble of 3": bf.DeepEnsemble(num_members=3),
}
print("                accuracy    nll    ece  auroc")
for name, method in methods.items():
    torch.manual_seed(0)
    net = bf.build_model("mlp", in_features=64, hidden=(64, 64), out_features=10, dropout=0.1)
    model = bf.convert(net, method)
    batches = loader(data.train, 64, shuffle=True)
    bf.fit(model, batches, epochs=10, learning_rate=5e-3, beta=0.01, seed=0)
    table = bf.evaluate(
        model, loader(data.test, 256), ood={"shuffled": loader(strange, 256)}, progress=False
    )
    scores = (table["accuracy"], table["nll"], table["ece"], table.ood["shuffled"]["auroc"])
    print(f"{name:>14}", "  ".join(f"{score:.3f}".rjust(6) for score in scores))

print("\nThe whole table of the last one:\n")
print(table)
