import pytest
import torch
from torch import nn

from bayesify.models import MLP


def test_mlp_has_the_given_widths():
    model = MLP(6, (5, 4), 3)
    shapes = [
        tuple(layer.weight.shape) for layer in model.modules() if isinstance(layer, nn.Linear)
    ]
    assert shapes == [(5, 6), (4, 5), (3, 4)]


def test_mlp_equals_the_formula():
    torch.manual_seed(0)
    model = MLP(6, (5,), 3, activation="tanh")
    inputs = torch.randn(7, 2, 3)
    (w1, b1), (w2, b2) = (
        (layer.weight, layer.bias) for layer in model.modules() if isinstance(layer, nn.Linear)
    )
    expected = torch.tanh(inputs.reshape(7, 6) @ w1.T + b1) @ w2.T + b2
    torch.testing.assert_close(model(inputs), expected)


def test_mlp_without_hidden_layers_is_linear():
    torch.manual_seed(0)
    model = MLP(4, (), 2)
    a, b = torch.randn(2, 1, 4)
    zero = model(torch.zeros(1, 4))
    torch.testing.assert_close(model(a + b) - zero, (model(a) - zero) + (model(b) - zero))


def test_mlp_dropout_keeps_the_names_of_the_weights():
    plain, dropped = MLP(4, (3, 3), 2), MLP(4, (3, 3), 2, dropout=0.5)
    dropped.load_state_dict(plain.state_dict(), strict=True)
    inputs = torch.randn(5, 4)
    torch.testing.assert_close(dropped.eval()(inputs), plain(inputs))


def test_mlp_dropout_drops_only_in_training():
    torch.manual_seed(0)
    model = MLP(4, (64,), 2, dropout=0.5)
    inputs = torch.ones(1, 4)
    assert not torch.equal(model(inputs), model(inputs))
    model.eval()
    assert torch.equal(model(inputs), model(inputs))


def test_mlp_without_dropout_has_no_dropout_modules():
    assert not any(isinstance(module, nn.Dropout) for module in MLP().modules())


def test_mlp_runs_in_bfloat16():
    model = MLP(4, (3,), 2).to(torch.bfloat16)
    assert model(torch.ones(2, 4, dtype=torch.bfloat16)).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden": (3, 0)}, r"hidden\[1\] must be a positive integer, got 0"),
        ({"in_features": -1}, "in_features must be a positive integer, got -1"),
        ({"out_features": 1.5}, "out_features must be a positive integer, got 1.5"),
        ({"dropout": 1.0}, r"dropout must lie in \[0, 1\), got 1.0"),
        ({"activation": "rulu"}, "unknown activation 'rulu'. Did you mean 'relu'?"),
    ],
)
def test_mlp_refuses_wrong_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        MLP(**options)
