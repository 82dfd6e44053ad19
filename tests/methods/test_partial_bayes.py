"""Partial Bayesian networks: exactly so many random weights, and what the two ends must be."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bayesify as bf
from bayesify.conversion.posterior import posteriors
from bayesify.recipes.recipe import make_recipe
from bayesify.recipes.run import run_recipe
from bayesify.recipes.run_folder import RunFolder

NUM_WEIGHTS = 6 * 20 + 20 * 12 + 12 * 3


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 12), nn.ReLU(), nn.Linear(12, 3)
    )


def batches(size: int = 120) -> DataLoader:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(size, 6, generator=generator)
    return DataLoader(TensorDataset(x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long()), 30)


def partial(fraction: float, **options: object) -> nn.Sequential:
    return bf.convert(network(), bf.PartialBayes(fraction, data=batches(), **options))


@pytest.mark.parametrize("fraction", [0.001, 0.01, 0.1, 0.5, 0.95])
@pytest.mark.parametrize("score", ["fisher", "magnitude", "random"])
def test_exactly_so_many_weights_are_random(fraction: float, score: str) -> None:
    model = partial(fraction, score=score)
    wanted = round(fraction * NUM_WEIGHTS)
    assert bf.summary(model).num_random == wanted
    sites = posteriors(model)
    assert sum(site.rho.numel() for site in sites) == wanted
    assert sum(site.mean.numel() for site in sites) == NUM_WEIGHTS


def test_each_tensor_gives_its_share_where_they_do_not_compete() -> None:
    model = partial(0.25, scope="layer")
    assert [site.num_random for site in posteriors(model)] == [30, 60, 9]


def test_the_largest_scores_are_chosen() -> None:
    net = network()
    score = torch.cat([v.flatten() for v in bf.sensitivity(net, batches(), "jacobian").values()])
    model = partial(0.1, score="jacobian")
    chosen = torch.zeros(NUM_WEIGHTS, dtype=torch.bool)
    offset = 0
    for site in posteriors(model):
        assert site.random_index is not None
        chosen[site.random_index + offset] = True
        offset += site.shape.numel()
    assert score[chosen].min() >= score[~chosen].max()


def test_only_the_chosen_weights_are_ever_drawn_or_have_a_scale_to_train() -> None:
    model = partial(0.1)
    for site in posteriors(model):
        mean = site.dense_mean().detach().flatten()
        draws = torch.stack([site.sample().detach().flatten() for _ in range(5)])
        moves = (draws != mean).any(0)
        expected = torch.zeros_like(moves)
        expected[site.random_index] = True
        assert torch.equal(moves, expected)
    loss = bf.elbo_loss(model(torch.randn(5, 6)).square().mean(), model, num_data=10)
    loss.total.backward()
    for site in (site for site in posteriors(model) if site.num_random):
        assert site.rho.grad.shape == (site.num_random,)
        assert site.mean.grad.shape == site.shape


def test_none_is_the_plain_network() -> None:
    model = bf.convert(network(), bf.PartialBayes(0.0))
    x = torch.randn(5, 6)
    assert torch.equal(model(x), network()(x))
    assert float(bf.kl(model)) == 0.0
    plain = bf.convert(network(), bf.Deterministic())
    for each in (model, plain):
        bf.fit(each, batches(), epochs=3, seed=0, progress=False)
    assert torch.equal(bf.revert(model)(x), bf.revert(plain)(x))


@pytest.mark.parametrize("how", ["sample", "local"])
def test_all_is_mean_field(how: str) -> None:
    every = bf.convert(network(), bf.PartialBayes(1.0, prior_std=0.3, how=how))
    dense = bf.convert(network(), bf.MeanField(prior_std=0.3, how=how))
    for each in (every, dense):
        bf.fit(each, batches(), epochs=2, seed=0, progress=False)
    for first, second in zip(posteriors(every), posteriors(dense), strict=True):
        assert first.random_index is None
        assert torch.equal(first.mean, second.mean)
        assert torch.equal(first.rho, second.rho)


def test_the_kl_counts_the_random_weights_only() -> None:
    model = partial(0.2, prior_std=0.7)
    total = 0.0
    for site in posteriors(model):
        mean = site.mean.detach().flatten()[site.random_index].double()
        std = torch.nn.functional.softplus(site.rho.detach().double())
        normal = torch.distributions.Normal
        prior = normal(torch.zeros_like(mean), torch.full_like(mean, 0.7))
        total += torch.distributions.kl_divergence(normal(mean, std), prior).sum()
    assert float(bf.kl(model).detach()) == pytest.approx(float(total), rel=1e-5)


def test_the_choice_follows_the_units_when_they_change_places() -> None:
    net, turned = network(), network()
    order = torch.randperm(20, generator=torch.Generator().manual_seed(4))
    with torch.no_grad():
        turned[0].weight.copy_(net[0].weight[order])
        turned[0].bias.copy_(net[0].bias[order])
        turned[2].weight.copy_(net[2].weight[:, order])
    # One example at a time: no random signs, so nothing but the weights decides.
    one_by_one = DataLoader(batches().dataset, 1)
    masks = []
    for each in (net, turned):
        model = bf.convert(each, bf.PartialBayes(0.2, data=one_by_one))
        site = model[0].weight_posterior
        mask = torch.zeros(site.shape.numel(), dtype=torch.bool)
        mask[site.random_index] = True
        masks.append(mask.view(site.shape))
    assert torch.equal(masks[0][order], masks[1])


def test_fit_finds_the_posterior_of_the_random_weights() -> None:
    """With orthogonal inputs weights do not disturb each other, and each answer is known."""
    torch.manual_seed(0)
    num_data, noise, prior_std = 64, 0.5, 0.6
    x = torch.linalg.qr(torch.randn(num_data, 4))[0] * num_data**0.5
    y = x @ torch.tensor([[0.8], [-1.2], [0.3], [0.5]]) + noise * torch.randn(num_data, 1)
    plain = nn.Linear(4, 1, bias=False)
    nn.init.constant_(plain.weight, 0.1)
    with torch.no_grad():
        plain.weight[0, :2] = 0.2
    choices = {"prior_std": prior_std, "initial_std": 0.03, "how": "local"}
    method = bf.PartialBayes(0.5, score="magnitude", **choices)
    model = bf.convert(plain, method)
    site = model.weight_posterior
    assert site.random_index.tolist() == [0, 1]
    options = {"learning_rate": 2e-2, "scale_learning_rate": 2e-2, "num_samples": 3}
    loader = DataLoader(TensorDataset(x, y), num_data)
    likelihood = bf.GaussianRegression(noise)
    bf.fit(model, loader, epochs=1500, likelihood=likelihood, progress=False, **options)
    least_squares = (x.T @ y)[:, 0] / num_data
    precision = num_data / noise**2 + torch.tensor([1.0, 1.0, 0.0, 0.0]) / prior_std**2
    mean = least_squares * (num_data / noise**2) / precision
    assert ((site.mean.detach()[0] - mean).abs() * precision.sqrt()).max() < 0.1
    found = site.dense_variance().detach()[0]
    assert (found[:2] * precision[:2] - 1).abs().max() < 0.05
    assert (found[2:] == 0).all()


class Odd(nn.Module):
    """Layers that the published method could not take."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(2, 3, 2, stride=2)
        self.memory = nn.GRU(3 * 4, 5, batch_first=True)
        self.attention = nn.MultiheadAttention(5, 1, batch_first=True)
        self.head = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.up(x).transpose(1, 2).flatten(2)
        values, _ = self.memory(rows)
        values, _ = self.attention(values, values, values, need_weights=False)
        return self.head(values[:, -1])


def test_transposed_convolutions_recurrent_layers_and_attention_take_part() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(12, 2, 2, 2), torch.randint(0, 2, (12,))
    loader = DataLoader(TensorDataset(x, y), 4)
    net = Odd()
    model = bf.convert(net, bf.PartialBayes(0.2, data=loader, scope="layer"))
    rows = {row.path: row.num_random for row in bf.summary(model).rows}
    for path in ("up.weight", "memory.weight_hh_l0", "attention.in_proj_weight", "head.weight"):
        assert rows[path] == round(0.2 * net.get_parameter(path).numel())
    with bf.mean_weights(model):
        torch.testing.assert_close(model(x), net(x))
    history = bf.fit(model, loader, epochs=15, beta=0.01, learning_rate=0.01, progress=False)
    assert history.last["nll"] < history.rows[0]["nll"]


def test_a_padding_row_is_never_chosen() -> None:
    torch.manual_seed(0)
    table = nn.Sequential(nn.Embedding(5, 4, padding_idx=1), nn.Flatten(), nn.Linear(8, 2))
    for fraction in (0.5, 1.0):
        model = bf.convert(table, bf.PartialBayes(fraction, score="random", scope="layer"))
        site = model[0].weight_posterior
        assert not torch.isin(site.random_index, torch.arange(4, 8)).any()
        assert site.num_random == (10 if fraction == 0.5 else 16)


@pytest.mark.parametrize("fraction", [0.0, 0.01, 0.3, 1.0])
def test_a_file_holds_the_choice(fraction: float, tmp_path: Path) -> None:
    model = partial(fraction)
    bf.fit(model, batches(), epochs=1, progress=False)
    path = tmp_path / "model.safetensors"
    bf.save(model, path)
    loaded = bf.load(path, network())
    x = torch.randn(4, 6)
    first, second = (bf.predict(each, x, num_samples=4, seed=0).probs for each in (model, loaded))
    assert torch.equal(first, second)
    assert bf.summary(loaded).num_random == round(fraction * NUM_WEIGHTS)


def test_a_file_grows_by_the_share_of_random_weights(tmp_path: Path) -> None:
    net = nn.Linear(500, 400, bias=False)
    sizes = {}
    for fraction in (0.0, 0.01, 0.2, 1.0):
        model = bf.convert(net, bf.PartialBayes(fraction, score="random"))
        bf.save(model, tmp_path / "model")
        sizes[fraction] = (tmp_path / "model").stat().st_size
    for fraction in (0.01, 0.2):
        positions = min(1 / 32, fraction)  # a bit for every weight, or four bytes for each chosen
        assert sizes[fraction] / sizes[0.0] == pytest.approx(1 + fraction + positions, rel=0.01)


@pytest.mark.parametrize("scale_optimizer", ["adam", "rmsprop"])
def test_a_resumed_run_ends_with_the_same_bits(scale_optimizer: str, tmp_path: Path) -> None:
    whole = partial(0.1)
    options = {"learning_rate": 0.01, "seed": 0, "progress": False}
    options |= {"scale_optimizer": scale_optimizer}
    bf.fit(whole, batches(), epochs=4, run_dir=tmp_path / "whole", **options)
    part = partial(0.1)
    run = tmp_path / "part"

    def stop(progress: float) -> float:
        if progress >= 0.5:
            raise KeyboardInterrupt
        return 1.0

    with pytest.raises(KeyboardInterrupt):
        bf.fit(part, batches(), epochs=4, run_dir=run, beta=stop, **options)
    again = partial(0.1)
    bf.fit(again, batches(), epochs=4, run_dir=run, resume=True, **options)
    for first, second in zip(whole.state_dict().values(), again.state_dict().values(), strict=True):
        assert torch.equal(first, second)


def test_a_resumed_run_takes_the_choice_of_weights_from_its_checkpoint(tmp_path: Path) -> None:
    options = {"seed": 0, "progress": False, "run_dir": tmp_path}
    first, other = (
        bf.convert(network(), bf.PartialBayes(0.1, score="random", scope="layer", seed=seed))
        for seed in (0, 1)
    )
    bf.fit(first, batches(), epochs=1, **options)
    bf.fit(other, batches(), epochs=1, resume=True, **options)
    for one, two in zip(posteriors(first), posteriors(other), strict=True):
        assert torch.equal(one.random_index, two.random_index)


def test_other_families_can_be_partial() -> None:
    model = partial(0.2, family="radial", initial_std=0.05)
    bf.fit(model, batches(), epochs=3, progress=False)
    assert bf.summary(model).num_random == round(0.2 * NUM_WEIGHTS)
    assert bf.predict(model, torch.randn(4, 6), num_samples=3).epistemic.sum() > 0


def test_pruning_keeps_what_is_certain() -> None:
    small = bf.compress(partial(0.5), keep=0.6, shrink=False)
    assert bf.sparsity(small).removed == pytest.approx(0.4, abs=0.01)


def test_a_recipe_scores_by_its_training_data_after_the_warm_start(tmp_path: Path) -> None:
    tables = {
        "model": {"name": "mlp", "hidden": [16]},
        "data": {"name": "digits", "batch_size": 150, "validation": 0},
        "method": {"name": "partial_bayes", "fraction": 0.1},
        "fit": {"epochs": 1, "progress": False, "accelerator": "cpu"},
        "warm_start": {"epochs": 2, "progress": False, "accelerator": "cpu"},
    }
    parts, _ = run_recipe(make_recipe(tables), RunFolder(tmp_path / "run"))
    assert parts.plain is not None
    chosen = bf.convert(parts.plain, bf.PartialBayes(0.1, data=parts.train))
    for first, second in zip(posteriors(parts.model), posteriors(chosen), strict=True):
        assert torch.equal(first.random_index, second.random_index)
    assert bf.summary(parts.model).num_random == round(0.1 * (64 * 16 + 16 * 10))


def test_what_makes_no_sense_is_refused_and_nothing_changed() -> None:
    with pytest.raises(ValueError, match=r"fraction must lie in \[0, 1\], got 1.5"):
        bf.PartialBayes(1.5)
    with pytest.raises(ValueError, match="unknown score 'fishr'"):
        bf.PartialBayes(score="fishr")
    with pytest.raises(ValueError, match="scope must be"):
        bf.PartialBayes(scope="model")
    net = network()
    with pytest.raises(ValueError, match="data must be given to score weights by 'jacobian'"):
        bf.convert(net, bf.PartialBayes(0.1))
    with pytest.raises(RuntimeError):
        bf.convert_(net, bf.PartialBayes(0.1, data=[(torch.randn(2, 7), torch.tensor([0, 1]))]))
    assert type(net[0]) is nn.Linear
    assert not posteriors(net)


class Adapted(nn.Module):
    """A frozen layer with a low-rank adapter beside it."""

    def __init__(self, layer: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.lora_down = nn.Linear(layer.in_features, rank, bias=False)
        self.lora_up = nn.Linear(rank, layer.out_features, bias=False)
        nn.init.zeros_(self.lora_up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.lora_up(self.lora_down(x))


def test_adapters_of_a_hugging_face_model_can_be_the_only_random_weights() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=30,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=20,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    net = transformers.BertForSequenceClassification(config)
    attention = net.bert.encoder.layer[0].attention.self
    for name in ("query", "value"):
        setattr(attention, name, Adapted(getattr(attention, name)))
    tokens, labels = torch.randint(0, 30, (12, 6)), torch.randint(0, 2, (12,))
    loader = [{"input_ids": tokens, "labels": labels}]
    for method in (
        bf.MeanField(where="*lora_*"),
        bf.PartialBayes(0.5, where="*lora_*", data=loader),
    ):
        model = bf.convert(net, method)
        random = {row.path for row in bf.summary(model).rows}
        assert len(random) == 4
        assert all("lora_" in path for path in random)
        bf.fit(model, loader, epochs=2, num_data=12, progress=False)
        frozen = model.bert.encoder.layer[0].attention.self.query.layer.weight
        assert torch.equal(frozen, attention.query.layer.weight)
        assert bf.predict(model, {"input_ids": tokens}, num_samples=3).probs.shape == (12, 2)


def test_the_kl_can_be_weighed_in_either_reading() -> None:
    """KL / N is the library's own; with num_data = 1 the weight is on the KL itself."""
    losses = []
    for num_data, beta in ((120, 0.2), (1, 0.2 / 120)):
        model = partial(0.2)
        history = bf.fit(
            model, batches(), epochs=2, num_data=num_data, beta=beta, seed=0, progress=False
        )
        losses.append(history.last["nll"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_family_offers_the_ways_it_has() -> None:
    assert "local" not in bf.PartialBayes(0.1, family="radial").ways
    assert "moments" not in bf.PartialBayes(0.1, family="horseshoe").ways
    with pytest.raises(ValueError, match="how='local' needs a Normal posterior"):
        bf.PartialBayes(0.1, family="radial", how="local")
