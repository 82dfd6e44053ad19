"""find_structure: who reads whose units, and what keeps them from being told apart."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import bayesify as bf
from bayesify.compression.structure import Reader, find_structure
from bayesify.models import cifar_resnet
from compression.pruned import (
    NETWORKS,
    Averaged,
    Convolutional,
    TwoHeads,
    Viewed,
    dense,
    normalised,
    words,
)
from specimens import SPECIMENS, Specimen

Readers = dict[str, set[Reader]]


def readers(model: nn.Module) -> Readers:
    structure = find_structure(model)
    assert structure.problem is None
    return {link.producer: set(link.readers) for link in structure.links}


def blocked(model: nn.Module) -> dict[str, str]:
    structure = find_structure(model)
    assert structure.problem is None
    return dict(structure.blocked)


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (dense, {"0": {Reader("3")}, "3": {Reader("5")}}),
        (
            Convolutional,
            {"conv1": {Reader("conv2")}, "conv2": {Reader("fc1", 6)}, "fc1": {Reader("fc2")}},
        ),
        (
            Viewed,
            {"conv1": {Reader("conv2")}, "conv2": {Reader("fc1", 6)}, "fc1": {Reader("fc2")}},
        ),
        (normalised, {"0": {Reader("3")}, "3": {Reader("8", 6)}, "8": {Reader("11")}}),
        (TwoHeads, {"body": {Reader("left"), Reader("right")}}),
        (Averaged, {"encode": {Reader("decode")}, "decode": {Reader("head")}}),
        (words, {"0": {Reader("2")}}),
    ],
)
def test_units_are_followed_to_their_readers(build, expected: Readers) -> None:
    assert readers(build()) == expected
    assert readers(bf.convert(build(), bf.MeanField())) == expected


def test_norms_between_are_found_with_their_blocks() -> None:
    norms = {link.producer: link.norms for link in find_structure(normalised()).links}
    assert norms == {"0": {Reader("1")}, "3": {Reader("6", 6)}, "8": {Reader("9")}}


def test_the_last_layer_keeps_its_outputs() -> None:
    assert blocked(dense()) == {"5": "its output is an output of the network"}


def test_residual_blocks_open_only_inside() -> None:
    model = cifar_resnet(8, width=4)
    inside = {f"layer{n}.0.conv1": {Reader(f"layer{n}.0.conv2")} for n in (1, 2, 3)}
    assert readers(model) == inside
    assert "add" in blocked(model)["layer1.0.conv2"]


@pytest.mark.parametrize("specimen", SPECIMENS, ids=[s.name for s in SPECIMENS])
def test_no_model_raises(specimen: Specimen) -> None:
    model = specimen.build()
    structure = find_structure(model)
    assert structure.problem is None or not structure.links


class Net(nn.Module):
    """Two layers, and whatever a test does between them."""

    def __init__(self, between, first: nn.Module | None = None, second: nn.Module | None = None):
        super().__init__()
        self.between = between
        self.first = first or nn.Linear(4, 6)
        self.second = second or nn.Linear(6, 3)
        self.norm = nn.BatchNorm2d(6)

    def forward(self, x: Tensor) -> Tensor:
        self.slope = x.mean()
        return self.between(self, self.first(x))


def reshaped(net: Net, x: Tensor) -> Tensor:
    return net.second(x.reshape((x.size()[0], -1)))


OPEN = {
    "method": lambda net, x: net.second(x.tanh()),
    "function": lambda net, x: net.second(F.dropout(F.softplus(x, beta=2), training=net.training)),
    "flatten": lambda net, x: net.second(torch.flatten(x, start_dim=1)),
    "reshape": reshaped,
    "in_place": lambda net, x: net.second(F.relu(x, inplace=True)),
    "in_training_only": lambda net, x: net.second(F.dropout(x) if net.training else x),
}
CLOSED = {
    "add": (lambda net, x: net.second(x + 1), "add"),
    "itself": (lambda net, x: net.second(x * x), "mul"),
    "cat": (lambda net, x: net.second(torch.cat([x[:, :3], x[:, 3:]], 1)), "getitem"),
    "softmax": (lambda net, x: net.second(x.softmax(-1)), "softmax"),
    "layer_norm": (lambda net, x: net.second(F.layer_norm(x, (6,))), "layer_norm"),
    "returned": (lambda net, x: (net.second(x), x), "an output of the network"),
    "fixed_view": (lambda net, x: net.second(x.view(-1, 6)), "view"),
    "wrong_flatten": (lambda net, x: net.second(torch.flatten(x, 0)), "flatten"),
    "size": (lambda net, x: net.second(x) * x.size(0), "shape"),
    "width": (lambda net, x: net.second(x) * x.size(1), "size"),
    "twice": (lambda net, x: net.second(x) + net.second(x.relu()), "called more than once"),
    "weight_read": (lambda net, x: net.second(x) * net.second.weight.sum(), "used elsewhere"),
    "bias_read": (lambda net, x: net.second(x + net.first.bias), "used elsewhere"),
    "only_in_training": (
        lambda net, x: net.second(x) + (x.sum() if net.training else 0),
        "sum",
    ),
    "only_in_evaluation": (
        lambda net, x: x.new_zeros(3) if net.training else net.second(x),
        "new_zeros",
    ),
    "pooled": (lambda net, x: net.second(F.max_pool1d(x, 1)), "max_pool1d"),
    "alpha_dropout": (lambda net, x: net.second(F.alpha_dropout(x)), "alpha_dropout"),
    "norm_of_images": (lambda net, x: net.second(net.norm(x)), "BatchNorm2d"),
    "slope_from_outside": (lambda net, x: net.second(F.leaky_relu(x, net.slope)), "meet others"),
    "unused": (lambda net, x: torch.ones(3), "no layer reads"),
    "keyword": (lambda net, x: net.second(torch.relu(input=x)), "relu"),
}


@pytest.mark.parametrize("between", OPEN.values(), ids=OPEN)
def test_an_operation_on_each_unit_lets_units_pass(between) -> None:
    assert readers(Net(between)) == {"first": {Reader("second")}}


@pytest.mark.parametrize(("between", "word"), CLOSED.values(), ids=CLOSED)
def test_anything_else_blocks_a_layer(between, word: str) -> None:
    assert word in blocked(Net(between))["first"]


def test_what_differs_between_training_and_evaluation_blocks_a_layer() -> None:
    class Auxiliary(TwoHeads):
        def forward(self, x: Tensor) -> Tensor:
            hidden = self.body(x)
            return self.left(hidden) + (self.right(hidden).sum() if self.training else 0)

    assert "differently" in blocked(Auxiliary())["body"]


def test_a_value_overwritten_and_read_again_blocks_a_layer() -> None:
    class Overwritten(TwoHeads):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            hidden = self.body(x)
            return self.left(torch.sigmoid_(hidden)), self.right(hidden)

    assert "overwritten in place" in blocked(Overwritten())["body"]


def convolution(between, second: nn.Module) -> Net:
    return Net(between, nn.Conv2d(2, 6, 3), second)


@pytest.mark.parametrize(
    ("between", "second"),
    [
        # The linear layer would read the last axis of an image, not its channels.
        (lambda net, x: net.second(x), nn.Linear(6, 3)),
        # 20 features are no blocks of 6 channels.
        (lambda net, x: net.second(x.flatten(1)), nn.Linear(20, 3)),
        (lambda net, x: net.second(x.flatten(2)), nn.Linear(36, 3)),
        (lambda net, x: net.second(x.mean(1)), nn.Conv1d(6, 3, 1)),
        (lambda net, x: net.second(x.mean()), nn.Linear(6, 3)),
        # Without a batch axis of its own this pools over channels.
        (lambda net, x: net.second(F.max_pool3d(x, 1)), nn.Conv2d(6, 3, 1)),
        (lambda net, x: net.second(x), nn.Conv2d(6, 3, 1, groups=3)),
        (lambda net, x: net.second(F.max_pool2d(x, 2, return_indices=True)[0]), nn.Conv2d(6, 3, 1)),
    ],
)
def test_channels_that_are_not_what_is_read_block_a_convolution(between, second) -> None:
    assert "first" in blocked(convolution(between, second))


@pytest.mark.parametrize(
    ("between", "second", "block"),
    [
        (lambda net, x: net.second(F.adaptive_avg_pool2d(x, 2).flatten(1)), nn.Linear(24, 3), 4),
        (lambda net, x: net.second(x.mean((-1, -2))), nn.Linear(6, 3), 1),
        (lambda net, x: net.second(x.mean(dim=[2, 3], keepdim=True)), nn.Conv2d(6, 3, 1), 1),
        (lambda net, x: net.second(F.dropout2d(x)), nn.ConvTranspose2d(6, 3, 2), 1),
    ],
)
def test_channels_reach_their_readers(between, second: nn.Module, block: int) -> None:
    assert readers(convolution(between, second)) == {"first": {Reader("second", block)}}


def test_features_of_several_words_are_not_blocks() -> None:
    # Two words of 6 features, flattened, lie in turn: a unit is no run of adjacent inputs.
    between = Net(lambda net, x: net.second(x.flatten(1)), second=nn.Linear(12, 3))
    assert "first" in blocked(between)


@pytest.mark.parametrize("name", ["first", "second", "between"])
def test_hooks_block_and_are_not_run(name: str) -> None:
    called = []
    net = nn.Sequential()
    net.first, net.between, net.second = nn.Linear(4, 6), nn.Sequential(nn.ReLU()), nn.Linear(6, 3)
    getattr(net, name).register_forward_hook(lambda *_: called.append(1))
    assert "hooks" in blocked(net)["first"]
    assert not called


def test_tied_and_parametrised_layers_are_blocked() -> None:
    tied = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    tied[2].weight = tied[0].weight
    assert readers(tied) == {}
    assert "used elsewhere" in blocked(tied)["2"]
    normed = nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 4)), nn.Linear(4, 2))
    assert "more than the tensors" in blocked(normed)["0"]
    limited = nn.Sequential(nn.Embedding(5, 4, max_norm=1.0), nn.Linear(4, 2))
    assert "max_norm" in blocked(limited)["0"]


class OwnLinear(nn.Linear):
    """A subclass that computes nothing of its own."""


class MaskedLinear(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight * 2.0, self.bias)


def test_a_subclass_is_known_by_its_forward() -> None:
    own = nn.Sequential(OwnLinear(4, 6), nn.ReLU(), OwnLinear(6, 3))
    assert readers(own) == {"0": {Reader("2")}}
    masked = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), MaskedLinear(6, 3))
    assert "0" in blocked(masked)
    assert "2" not in readers(masked)


class Optional(Net):
    def forward(self, x: Tensor, extra: Tensor | None = None) -> Tensor:
        hidden = self.first(x)
        return self.second(hidden) if extra is not None else hidden


class Variable(Net):
    def forward(self, *inputs: Tensor) -> Tensor:
        return self.second(self.first(inputs[0]))


class Branching(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x)) if x.sum() > 0 else x


class Breaking(Net):
    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError("no forward today\nand more")


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Optional, "its forward takes an optional argument (extra)"),
        (Variable, "its forward takes any number of arguments (*inputs"),
        (Branching, "its forward cannot be traced: TraceError"),
        (Breaking, "its forward cannot be traced: RuntimeError: no forward today"),
    ],
)
def test_a_model_that_cannot_be_traced_has_a_problem_and_no_links(kind, reason: str) -> None:
    structure = find_structure(kind(None))
    assert structure.problem.startswith(reason)
    assert "\n" not in structure.problem
    assert not structure.links


def test_a_constant_unit_is_followed_through_its_operations() -> None:
    (link,) = find_structure(TwoHeads()).links
    assert not link.vanish(torch.zeros(8)).any()
    first, second = find_structure(dense()).links
    assert link.vanish(torch.full((8,), -200.0)).all()
    values = torch.tensor([-1.0, -0.0, 0.0, 1e-30, 1.0, torch.nan])
    assert first.vanish(values).tolist() == [True, True, True, False, False, False]
    assert second.vanish(values).tolist() == [False, True, True, False, False, False]


@pytest.mark.parametrize("name", NETWORKS)
def test_a_model_is_left_as_it_was(name: str) -> None:
    model = bf.convert(NETWORKS[name][0](), bf.MeanField()).eval()
    before = copy.deepcopy(model)
    find_structure(model)
    assert not model.training
    assert str(model) == str(before)
    assert vars(model).keys() == vars(before).keys()
    state = model.state_dict()
    assert all(torch.equal(state[key], value) for key, value in before.state_dict().items())
