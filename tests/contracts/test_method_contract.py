"""Every registered method: converts, trains, predicts, is measured, saved and loaded."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bayesify as bf
from bayesify.conversion import methods

# A tenth of this little network would be a handful of weights.
OPTIONS = {name: {"density": 0.7, "interval": 10} for name in ("sparse_subspace", "rigl")}

# Made of a network that is trained already, by a package that need not be there.
OF_TRAINED = {"laplace": "laplace"}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 3)
    )


def batches() -> DataLoader[tuple[torch.Tensor, ...]]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(120, 4, generator=generator)
    return DataLoader(TensorDataset(x, x[:, :3].argmax(1)), 40)


@pytest.mark.parametrize("name", list(methods))
def test_method_goes_through_every_stage(name: str, tmp_path: Path) -> None:
    net, epochs = network(), 25
    options = {"learning_rate": 0.02, "seed": 0, "progress": False}
    if name in OF_TRAINED:
        pytest.importorskip(OF_TRAINED[name])
        plain, epochs = bf.convert(net, bf.Deterministic()), 0
        bf.fit(plain, batches(), epochs=25, **options)
        net = bf.revert(plain)
    before = {key: value.clone() for key, value in net.state_dict().items()}
    method = methods[name](**OPTIONS.get(name, {})).for_data(batches())
    model = bf.convert(net, method)
    assert all(torch.equal(before[key], value) for key, value in net.state_dict().items())
    assert bf.kl(model).item() >= 0
    history = bf.fit(model, batches(), epochs=epochs, **options)
    assert not epochs or history.last["nll"] < 0.7 * history.rows[0]["nll"]
    x = torch.randn(9, 4)
    for way in method.ways:
        prediction = bf.predict(model, x, num_samples=5, by=way)
        assert prediction.probs.shape == (9, 3)
        torch.testing.assert_close(prediction.probs.sum(1), torch.ones(9))
    table = bf.evaluate(model, batches(), num_samples=10, progress=False)
    assert table["accuracy"] > 0.8
    bf.save(model, tmp_path / "model.safetensors")
    loaded = bf.load(tmp_path / "model.safetensors", network())
    first, second = (bf.predict(m, x, num_samples=5, seed=0).probs for m in (model, loaded))
    assert torch.equal(first, second)
    assert str(bf.summary(model))


@pytest.mark.parametrize("name", list(methods))
def test_method_refuses_a_converted_model_and_a_class(name: str) -> None:
    if name in OF_TRAINED:
        pytest.importorskip(OF_TRAINED[name])
    method = methods[name]().for_data(batches())
    model = bf.convert(network(), method)
    with pytest.raises(bf.ConversionError, match="call revert first"):
        bf.convert(model, method)
    with pytest.raises(TypeError, match=rf"did you mean {type(method).__name__}\(\)"):
        bf.convert(network(), type(method))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"must be a torch\.nn\.Module"):
        bf.convert("net", method)  # type: ignore[type-var]
