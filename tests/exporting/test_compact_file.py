"""The file of a compressed model: small at every sparsity, and read back to the same model."""

from pathlib import Path

import pytest
import torch
from torch import nn

import bayesify as bf
from bayesify.archive import read_archive, write_archive
from bayesify.conversion.posterior import posteriors


def trained(method: bf.Method | None = None) -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(40, 60), nn.ReLU(), nn.Linear(60, 30), nn.ReLU(), nn.Linear(30, 3)
    )
    model = bf.convert(net, method or bf.VariationalDropout())
    data = [(torch.randn(16, 40), torch.randint(3, (16,))) for _ in range(2)]
    bf.fit(model, data, epochs=2, num_data=32, progress=False)
    return model


def architecture() -> nn.Module:
    return nn.Sequential(
        nn.Linear(40, 60), nn.ReLU(), nn.Linear(60, 30), nn.ReLU(), nn.Linear(30, 3)
    )


@pytest.mark.parametrize("keep", [0.0, 0.01, 0.1, 0.5, 0.99, 1.0])
@pytest.mark.parametrize("shrink", [False, True])
@pytest.mark.parametrize("method", [bf.VariationalDropout(), bf.MeanField(scale="out")], ids=str)
def test_loaded_model_predicts_bit_for_bit_the_same(
    keep: float, shrink: bool, method: bf.Method, tmp_path: Path
) -> None:
    small = bf.compress(trained(method), by="magnitude", keep=keep, shrink=shrink)
    bf.save(small, tmp_path / "small.safetensors")
    again = bf.load(tmp_path / "small.safetensors", architecture())
    x = torch.randn(7, 40)
    first, second = (bf.predict(each, x, num_samples=5, seed=0).probs for each in (small, again))
    assert torch.equal(first, second)
    assert bf.sparsity(again) == bf.sparsity(small)
    assert bf.kl(again).item() == bf.kl(small).item()
    for one, other in zip(posteriors(small), posteriors(again), strict=True):
        assert (one.index is None) == (other.index is None)
        if one.index is not None:
            assert torch.equal(one.index, other.index)


def test_a_file_shrinks_with_its_model_and_never_grows_by_more_than_a_bit_a_weight(
    tmp_path: Path,
) -> None:
    model = trained()
    bf.save(model, tmp_path / "dense.safetensors")
    dense = (tmp_path / "dense.safetensors").stat().st_size
    num_weights = sum(site.num_live for site in posteriors(model))
    sizes = []
    for keep in (0.99, 0.5, 0.05, 0.01):
        path = tmp_path / f"{keep}.safetensors"
        bf.save(bf.compress(model, keep=keep, shrink=False), path)
        sizes.append(path.stat().st_size)
        most = dense - 8 * num_weights * (1 - keep) + min(num_weights / 8, 4 * keep * num_weights)
        assert sizes[-1] < most + 1024  # names and shapes
    assert sizes == sorted(sizes, reverse=True)


def test_an_index_in_any_order_is_kept_as_it_is(tmp_path: Path) -> None:
    small = bf.compress(trained(), keep=0.5, shrink=False)
    site = posteriors(small)[0]
    order = torch.randperm(site.num_live)
    for name in ("mean", "rho"):
        getattr(site, name).data = getattr(site, name).data[order]
    site.index = site.index[order]
    bf.save(small, tmp_path / "small.safetensors")
    again = bf.load(tmp_path / "small.safetensors", architecture())
    assert torch.equal(posteriors(again)[0].index, site.index)
    torch.testing.assert_close(posteriors(again)[0].dense_mean(), site.dense_mean())


def test_an_index_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    small = bf.compress(trained(), keep=0.01, shrink=False)
    path = tmp_path / "small.safetensors"
    bf.save(small, path)
    tensors, description = read_archive(path, "model")
    tensors["0.weight.index"] = tensors["0.weight.index"] + 10_000
    write_archive(path, "model", tensors, description)
    with pytest.raises(bf.ArchiveError, match=r"0\.weight: its positions reach beyond its 2400"):
        bf.load(path, architecture())
    tensors["0.weight.index"] = torch.zeros(1, dtype=torch.int32)
    write_archive(path, "model", tensors, description)
    with pytest.raises(bf.ArchiveError, match="expected 1 numbers of mean"):
        bf.load(path, architecture())


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, 4, padding_idx=0)
        self.head = nn.Linear(4, 9, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(tokens))


@pytest.mark.parametrize("keep", [0.05, 0.6])
def test_tied_weights_are_read_back_tied(keep: float, tmp_path: Path) -> None:
    torch.manual_seed(0)
    small = bf.compress(bf.convert(Tied(), bf.MeanField()), keep=keep)
    bf.save(small, tmp_path / "small.safetensors")
    again = bf.load(tmp_path / "small.safetensors", Tied())
    assert again.head.weight_posterior is again.embedding.weight_posterior
    x = torch.arange(5)
    with bf.mean_weights(small), bf.mean_weights(again):
        assert torch.equal(small(x), again(x))


@pytest.mark.filterwarnings("ignore:for .*copying from a non-meta parameter")
def test_a_compressed_file_follows_the_device_of_the_architecture(tmp_path: Path) -> None:
    bf.save(bf.compress(trained(), keep=0.1, shrink=False), tmp_path / "small.safetensors")
    # The meta device stands for any other: values are lost there, places are not.
    again = bf.load(tmp_path / "small.safetensors", architecture().to("meta"))
    places = {tensor.device.type for tensor in again.state_dict().values()}
    assert places == {"meta"}


def test_tied_positions_are_stored_once(tmp_path: Path) -> None:
    class Large(Tied):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(500, 40)
            self.head = nn.Linear(40, 500, bias=False)
            self.head.weight = self.embedding.weight

    model = bf.convert(Large(), bf.MeanField())
    path = tmp_path / "small.safetensors"
    bf.save(bf.compress(model, keep=0.5), path)
    assert path.stat().st_size < 8 * 10_000 + 20_000 / 8 + 3_000
    assert bf.sparsity(bf.load(path, Large())).removed == 0.5
