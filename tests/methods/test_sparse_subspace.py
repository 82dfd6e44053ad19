"""SparseSubspace: a fixed number of weights exists, and they move to where the gradient is."""

import copy
import math
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bayesify as bf
from bayesify.conversion.method import Update
from bayesify.conversion.posterior import Posterior
from bayesify.methods.sparse_subspace import sparse_sites

OPTIMIZERS = ["sgd", "adam", "adamw", "rmsprop", "adagrad"]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 12), nn.ReLU(), nn.Linear(12, 3)
    )


def batches(size: int = 20) -> DataLoader[tuple[torch.Tensor, ...]]:
    x = torch.randn(120, 6, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(1)
    return DataLoader(TensorDataset(x, x[:, :3].argmax(1)), size, shuffle=True, generator=generator)


def fitted(model: nn.Module, epochs: int = 6, **options: object) -> bf.History:
    choices = {"learning_rate": 0.02, "beta": 0.01, "seed": 0, "progress": False, **options}
    return bf.fit(model, batches(), epochs=epochs, **choices)


def counts(model: nn.Module) -> list[int]:
    return [site.num_live for site in sparse_sites(model).values()]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("how", ["sample", "local"])
def test_counts_are_conserved_and_the_subspace_moves(optimizer: str, how: str) -> None:
    model = bf.convert(network(), bf.SparseSubspace(0.2, interval=2, how=how))
    before = {path: site.index.clone() for path, site in sparse_sites(model).items()}
    first = counts(model)
    assert first == [48, 7]
    fitted(model, optimizer=optimizer)
    assert counts(model) == first
    for path, site in sparse_sites(model).items():
        assert not torch.equal(site.index, before[path]), path
        assert torch.equal(site.index, site.index.unique())
        dense = site.dense_mean().detach().flatten()
        assert int((dense != 0).sum()) <= site.num_live
        assert site.mean.shape == site.rho.shape == site.index.shape


def test_only_live_entries_are_stored_trained_and_remembered() -> None:
    model = bf.convert(network(), bf.SparseSubspace(0.1, first_dense=False))
    assert [tuple(p.shape) for site in sparse_sites(model).values() for p in site.parameters()] == [
        (12,), (12,), (24,), (24,), (4,), (4,),
    ]  # fmt: skip
    loss = bf.elbo_loss(model(torch.randn(5, 6)).square().mean(), model, num_data=10)
    loss.total.backward()
    for site in sparse_sites(model).values():
        assert site.mean.grad.shape == site.index.shape
    assert bf.summary(model).num_random == 40


def test_growth_takes_the_entries_of_largest_gradient() -> None:
    model = bf.convert(
        nn.Linear(10, 4, bias=False), bf.SparseSubspace(0.25, interval=1, readmit=False)
    )
    site = model.weight_posterior
    site.gradient = torch.zeros(4, 10)
    outside = [n for n in range(40) if n not in site.index.tolist()]
    best = outside[7:10]
    site.gradient.view(-1)[best] = torch.tensor([3.0, -5.0, 4.0])
    worst = site.index[
        (site.mean.abs() / site.dense_variance().flatten()[site.index].sqrt())
        .topk(3, largest=False)
        .indices
    ]
    old = set(site.index.tolist())
    method = bf.SparseSubspace(0.25, interval=1, readmit=False, replacement=0.3)
    method.after_step(model, Update(1, 10**9, [], lambda tensor: tensor))
    assert set(site.index.tolist()) == (old - set(worst.tolist())) | set(best)
    added = torch.isin(site.index, torch.tensor(best))
    assert (site.mean.detach()[added] == 0).all()


def test_a_new_entry_has_no_history_and_a_kept_one_has_its_own() -> None:
    model = bf.convert(nn.Linear(10, 4, bias=False), bf.SparseSubspace(0.5, interval=1))
    site = model.weight_posterior
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(8, 10)).square().sum().backward()
    optimizer.step()
    old, state = site.index.clone(), {k: v.clone() for k, v in optimizer.state[site.mean].items()}
    site.gradient = torch.randn(4, 10, generator=torch.Generator().manual_seed(0))
    values = dict(zip(old.tolist(), site.mean.tolist(), strict=True))
    bf.SparseSubspace(0.5, interval=1, readmit=False).after_step(
        model, Update(1, 1000, [optimizer], lambda tensor: tensor)
    )
    moments = dict(zip(old.tolist(), state["exp_avg"].tolist(), strict=True))
    for place, entry in enumerate(site.index.tolist()):
        now = optimizer.state[site.mean]["exp_avg"][place].item()
        assert now == pytest.approx(moments.get(entry, 0.0), abs=0)
        assert site.mean[place].item() == values.get(entry, 0.0)
    assert optimizer.state[site.mean]["step"] == 1


def test_new_entries_start_with_the_mean_std_of_their_tensor_or_a_given_one() -> None:
    for new_std in (None, 0.07):
        model = bf.convert(nn.Linear(10, 4, bias=False), bf.SparseSubspace(0.5))
        site = model.weight_posterior
        with torch.no_grad():
            site.rho.uniform_(-4, -1)
        old, mean_std = site.index.clone(), torch.nn.functional.softplus(site.rho).mean().item()
        site.gradient = torch.rand(4, 10)
        method = bf.SparseSubspace(0.5, interval=1, readmit=False, new_std=new_std)
        method.after_step(model, Update(1, 1000, [], lambda tensor: tensor))
        fresh = torch.nn.functional.softplus(site.rho.detach())[~torch.isin(site.index, old)]
        assert fresh.numel()
        torch.testing.assert_close(fresh, torch.full_like(fresh, new_std or mean_std))


def test_the_gradient_kept_is_that_of_the_dense_network() -> None:
    model = bf.convert(network(), bf.SparseSubspace(0.3, how="sample"))
    plain = bf.revert(model)
    x = torch.randn(5, 6)
    for site in sparse_sites(model).values():
        site.keeps_gradient = True
    with bf.mean_weights(model):
        model(x).square().sum().backward()
    plain(x).square().sum().backward()
    for path, site in sparse_sites(model).items():
        torch.testing.assert_close(site.gradient, plain.get_parameter(path).grad)


@pytest.mark.parametrize("addition", ["gradient", "mean_gradient", "mean_abs_gradient"])
@pytest.mark.parametrize("scope", ["layer", "global"])
def test_every_rule_learns(addition: str, scope: str) -> None:
    method = bf.SparseSubspace(0.4, addition=addition, scope=scope, interval=3, num_gradients=2)
    model = bf.convert(network(), method)
    total = sum(counts(model))
    history = fitted(model, epochs=25)
    assert sum(counts(model)) == total
    assert history.last["accuracy"] > 0.8
    assert all(site.gradient is None for site in sparse_sites(model).values())


def test_weights_cross_from_tensor_to_tensor_under_a_global_scope() -> None:
    model = bf.convert(network(), bf.SparseSubspace(0.3, scope="global", interval=2))
    before = counts(model)
    fitted(model)
    assert counts(model) != before
    assert sum(counts(model)) == sum(before)


def test_nothing_moves_after_the_end_or_between_intervals() -> None:
    method = bf.SparseSubspace(interval=100, end=0.5)
    moves = [step for step in range(1, 1001) if method.moves_at(step, 1000)]
    assert moves == [100, 200, 300, 400]
    assert method.share_replaced(0, 1000) == pytest.approx(0.3)
    assert method.share_replaced(250, 1000) == pytest.approx(0.15)
    assert method.share_replaced(500, 1000) == pytest.approx(0.0)


@pytest.mark.parametrize("scope", ["layer", "global"])
@pytest.mark.parametrize("kind", [bf.SparseSubspace, bf.RigL])
def test_a_resumed_run_ends_with_the_same_bits(
    kind: type[bf.SparseSubspace], scope: str, tmp_path: Path
) -> None:
    method = kind(0.2, interval=2, scope=scope)
    whole = bf.convert(network(), method)
    fitted(whole, epochs=6, run_dir=tmp_path / "whole")
    part = bf.convert(network(), method)

    class Stop(Exception):
        pass

    calls = 0

    def stop(module: nn.Module, inputs: object) -> None:
        nonlocal calls
        calls += 1
        if calls == 22:
            raise Stop

    handle = part.register_forward_pre_hook(stop)
    with pytest.raises(Stop):
        fitted(part, epochs=6, run_dir=tmp_path / "part", checkpoint_every=1)
    handle.remove()
    again = bf.convert(network(), method)
    fitted(again, epochs=6, run_dir=tmp_path / "part", resume=True)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name


def test_the_best_weights_come_back_whatever_moved_since(tmp_path: Path) -> None:
    for folder in (None, tmp_path):
        model = bf.convert(network(), bf.SparseSubspace(0.2, interval=1, scope="global"))
        options = {"learning_rate": 0.3, "seed": 0, "progress": False, "run_dir": folder}
        history = bf.fit(model, batches(), batches(), epochs=8, keep_best=True, **options)
        assert min(history.column("val_nll")) < history.last["val_nll"]
        assert sum(counts(model)) == 55


def test_a_file_holds_the_subspace(tmp_path: Path) -> None:
    model = bf.convert(network(), bf.SparseSubspace(0.2, interval=2))
    fitted(model)
    bf.save(model, tmp_path / "model.safetensors")
    loaded = bf.load(tmp_path / "model.safetensors", network())
    x = torch.randn(4, 6)
    first, second = (bf.predict(m, x, num_samples=4, seed=0).probs for m in (model, loaded))
    assert torch.equal(first, second)
    assert loaded.bayesify.method == model.bayesify.method


def test_full_density_is_mean_field() -> None:
    sparse = bf.convert(network(), bf.SparseSubspace(1.0, prior_std=0.3))
    dense = bf.convert(network(), bf.MeanField(prior_std=0.3, how="local"))
    assert not sparse_sites(sparse)
    torch.testing.assert_close(bf.kl(sparse), bf.kl(dense))
    histories = [fitted(model, epochs=3).rows for model in (sparse, dense)]
    for first, second in zip(*histories, strict=True):
        assert first["nll"] == pytest.approx(second["nll"])


def test_allocations() -> None:
    def shares(**options: object) -> list[float]:
        model = bf.convert(network(), bf.SparseSubspace(0.2, **options))
        sites = [site for _, site in model.named_modules() if isinstance(site, Posterior)]
        return [site.num_live / site.shape.numel() for site in sites]

    assert shares() == pytest.approx([1.0, 48 / 240, 7 / 36])
    assert shares(first_dense=False) == pytest.approx([24 / 120, 48 / 240, 7 / 36])
    small, large = shares(allocation="erk")[2], shares(allocation="erk")[1]
    assert small > large
    total = 240 * large + 36 * small
    assert total == pytest.approx(0.2 * 276, abs=1)
    assert shares(allocation={"2.weight": 0.5})[1] == 0.5
    with pytest.raises(bf.ConversionError, match=r"unknown tensor in allocation '3\.weight'"):
        shares(allocation={"3.weight": 0.5})


def test_erdos_renyi_never_exceeds_a_tensor() -> None:
    model = bf.convert(network(), bf.SparseSubspace(0.9, allocation="erk", first_dense=False))
    sizes = [site.num_live for site in model.modules() if isinstance(site, Posterior)]
    assert sum(sizes) == pytest.approx(0.9 * 396, abs=2)
    assert sizes[2] == 36


def test_an_embedding_keeps_its_padding_and_attention_is_sparse_too() -> None:
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(9, 8, padding_idx=0)
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
            self.head = nn.Linear(8, 2)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            x = self.table(tokens)
            return self.head(self.attention(x, x, x)[0].mean(1))

    tokens = torch.randint(0, 9, (40, 5), generator=torch.Generator().manual_seed(0))
    data = DataLoader(TensorDataset(tokens, (tokens == 3).any(1).long()), 20)
    model = bf.convert(Reader(), bf.SparseSubspace(0.3, interval=1, first_dense=False))
    before = counts(model)
    bf.fit(model, data, epochs=5, seed=0, progress=False)
    assert counts(model) == before
    assert len(before) == 4
    assert model.table.weight_posterior.index.min() >= 8
    broken = Reader()
    nn.init.ones_(broken.table.weight)
    with pytest.raises(bf.ConversionError, match="padding row is not 0"):
        bf.convert(broken, bf.SparseSubspace(0.3))


def test_a_start_by_magnitude_keeps_the_largest_weights() -> None:
    net = nn.Linear(10, 4, bias=False)
    model = bf.convert(net, bf.SparseSubspace(0.25, start="magnitude"))
    largest = net.weight.detach().abs().flatten().topk(10).indices.sort().values
    assert torch.equal(model.weight_posterior.index, largest)


def test_a_random_start_follows_from_its_seed() -> None:
    first, same, other = (
        bf.convert(network(), bf.SparseSubspace(0.2, seed=seed)) for seed in (0, 0, 1)
    )
    index = [m.get_submodule("2.weight_posterior").index for m in (first, same, other)]
    assert torch.equal(index[0], index[1])
    assert not torch.equal(index[0], index[2])


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
@pytest.mark.parametrize("mode", [True, "reduce-overhead"])
def test_compiled_training_moves_too(mode: bool | str) -> None:
    model = bf.convert(network(), bf.SparseSubspace(0.2, interval=3))
    sites = sparse_sites(model).values()
    before = copy.deepcopy([site.index for site in sites])
    places = [site.index.data_ptr() for site in sites]
    fitted(model, epochs=2, compile=mode)
    after = [site.index for site in sites]
    assert not any(map(torch.equal, before, after))
    # A captured CUDA graph would go on reading where the positions lay when it was captured.
    assert [index.data_ptr() for index in after] == places


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"density": 0.0}, r"density must lie in \(0, 1\], got 0\.0"),
        ({"density": 1.5}, r"density must lie in \(0, 1\], got 1\.5"),
        ({"interval": 0}, "interval must be a whole number >= 1, got 0"),
        ({"removal": "snrr"}, "unknown removal criterion 'snrr'. Did you mean 'snr'?"),
        ({"addition": "random"}, "addition must be one of 'gradient'"),
        ({"allocation": "even"}, "allocation must be one of 'uniform', 'erk', got 'even'"),
        ({"allocation": {"a": 2.0}}, r"allocation\['a'\] must lie in \(0, 1\], got 2\.0"),
        ({"new_std": -1.0}, "new_std must be positive and finite"),
        ({"scope": "model"}, "scope must be one of 'layer', 'global'"),
    ],
)
def test_wrong_choices_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bf.SparseSubspace(**options)


def test_the_loader_must_have_a_length() -> None:
    model = bf.convert(network(), bf.SparseSubspace(0.2))

    class Stream:
        def __iter__(self) -> object:
            return iter(batches())

    with pytest.raises(ValueError, match="needs a train_loader with a length"):
        bf.fit(model, Stream(), epochs=1, num_data=120, progress=False)


def test_shares_fall_along_a_cosine() -> None:
    method = bf.SparseSubspace(replacement=0.4, end=1.0)
    found = [method.share_replaced(step, 8) for step in range(9)]
    assert found == pytest.approx([0.2 * (1 + math.cos(math.pi * k / 8)) for k in range(9)])


def test_sharding_is_refused_before_anything_starts() -> None:
    model = bf.convert(network(), bf.SparseSubspace(0.2))
    with pytest.raises(ValueError, match="strategy='fsdp' cannot shard SparseSubspace"):
        fitted(model, strategy="fsdp")


def test_rigl_is_the_same_machinery_without_scales() -> None:
    model = bf.convert(network(), bf.RigL(0.4, interval=3))
    before = {path: site.index.clone() for path, site in sparse_sites(model).items()}
    history = fitted(model, epochs=25)
    assert history.last["accuracy"] > 0.8
    assert bf.kl(model).item() == 0.0
    x = torch.randn(4, 6)
    assert torch.equal(model(x), model(x))
    for path, site in sparse_sites(model).items():
        assert site.rho.numel() == 0
        assert site.num_live == before[path].numel()
        assert not torch.equal(site.index, before[path])
    plain = bf.revert(model)
    torch.testing.assert_close(plain(x), model(x))


@pytest.mark.parametrize("scope", ["layer", "global"])
def test_the_density_falls_to_its_last_value(scope: str) -> None:
    method = bf.SparseSubspace(0.2, first_density=0.6, scope=scope, interval=2, replacement=0.2)
    model = bf.convert(network(), method)
    assert sum(counts(model)) == pytest.approx(0.6 * 276, abs=2)
    seen = []

    class Watching(bf.SparseSubspace):
        def after_step(self, model: nn.Module, update: Update) -> None:
            super().after_step(model, update)
            seen.append(sum(counts(model)))

    options = {"first_density": 0.6, "scope": scope, "interval": 2, "replacement": 0.2}
    model.bayesify.method = Watching(0.2, **options)
    fitted(model, epochs=8)
    assert seen == sorted(seen, reverse=True)
    assert len(set(seen)) > 4
    assert sum(counts(model)) == sum(counts(bf.convert(network(), bf.SparseSubspace(0.2))))


def test_a_density_that_falls_can_be_resumed(tmp_path: Path) -> None:
    method = bf.SparseSubspace(0.2, first_density=0.5, interval=2)
    whole = bf.convert(network(), method)
    fitted(whole, epochs=6, run_dir=tmp_path / "whole")
    part = bf.convert(network(), method)

    def stop(progress: float) -> float:
        if progress >= 0.5:
            raise KeyboardInterrupt
        return 1.0

    with pytest.raises(KeyboardInterrupt):
        fitted(part, epochs=6, run_dir=tmp_path / "part", schedule=stop)
    again = bf.convert(network(), method)
    fitted(again, epochs=6, run_dir=tmp_path / "part", resume=True)
    for first, second in zip(whole.state_dict().values(), again.state_dict().values(), strict=True):
        assert first.shape == second.shape


def test_a_first_density_below_the_last_is_refused() -> None:
    with pytest.raises(ValueError, match="first_density must be at least density"):
        bf.SparseSubspace(0.2, first_density=0.1)
    with pytest.raises(ValueError, match="first_density must be at least density"):
        bf.SparseSubspace(0.2, first_density=0.5, pattern="4x1")
