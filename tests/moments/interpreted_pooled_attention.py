"""Attention by pooled rules in its kernels, interpreted on a CPU, against torch's own operations.

Run in a process of its own with TRITON_INTERPRET=1, which triton reads once.
"""

import torch

import bayesify as bf
from bayesify.conversion.scope import forward_by
from bayesify.moments import Moments, attention_rules, fused_attention, moment_rules
from bayesify.moments import fused_pooled_attention as fused
from bayesify.moments.pooled_sums import attended_and_total

SIZES = [
    (2, 3, 37, 37, 16),
    (1, 2, 5, 70, 32),
    (1, 2, 70, 5, 32),
    (1, 1, 1, 1, 16),
    (1, 1, 33, 20, 128),
]


def given(batch, heads, targets, sources, features):
    torch.manual_seed(targets)
    counts = (targets, sources, sources)
    tokens = [torch.randn(batch, count, heads, features).transpose(1, 2) for count in counts]
    tokens[2] = tokens[2] + 2.0
    counts = (targets, targets, sources, sources, sources)
    numbers = [torch.rand(batch, heads, count) for count in counts]
    return [each.double() for each in (*tokens, *numbers)]


def with_gradients(call, inputs, dtype, scale):
    inputs = [each.to(dtype).requires_grad_() for each in inputs]
    mean, total = call(*inputs[:3], inputs[3:], scale)
    torch.manual_seed(1)
    weights = [torch.randn(each.shape).to(each) for each in (mean, total)]
    return [mean, total, *torch.autograd.grad([mean, total], inputs, weights)]


def compared(sizes):
    scale = sizes[-1] ** -0.5
    ours = with_gradients(fused.fused_sums, given(*sizes), torch.float32, scale)
    true = with_gradients(attended_and_total, given(*sizes), torch.double, scale)
    largest = max(each.abs().max().item() for each in true)
    for found, exact in zip(ours, true, strict=True):
        size = exact.abs().max().item() or largest
        torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=3e-6 * size)


def nearly_certain(strength):
    """Compare in half precision where nearly all weight is on one source.

    float16 stands for bfloat16, which the interpreter has not.
    """
    torch.manual_seed(0)
    keys = torch.randn(1, 2, 70, 64)
    tokens = [(each).half() for each in (strength * keys, keys, torch.randn_like(keys) + 0.5)]
    numbers = [torch.rand(1, 2, 70) for _ in range(5)]
    g, h = torch.randn_like(keys).half(), torch.randn(1, 2, 70)
    out, total, *rest = fused.run_forward(*tokens, numbers, 0.125)
    found = [out, total, *fused.run_backward([*tokens, *numbers], [out, total, *rest], g, h, 0.125)]
    inputs = [each.double().requires_grad_() for each in (*tokens, *numbers)]
    results = attended_and_total(*inputs[:3], inputs[3:], 0.125)
    true = [*results, *torch.autograd.grad(results, inputs, [g.double(), h.double()])]
    for index, (ours, exact) in enumerate(zip(found, true, strict=True)):
        error = float((ours.double() - exact).norm() / exact.norm())
        assert error < 4e-3, (strength, index, error)


def not_a_number():
    inputs = [each.float() for each in given(1, 1, 3, 4, 16)]
    inputs[2][0, 0, 1, 2] = float("nan")
    mean, total = fused.fused_sums(*inputs[:3], inputs[3:], 0.25)
    assert mean[..., 2].isnan().all()
    assert total.isnan().all()


def other_derivatives():
    """Compare derivatives that kernels do not have with those of torch's own operations."""
    inputs = [each.float() for each in given(1, 2, 3, 4, 16)]

    def slope(q, call):
        mean, total = call(q, *inputs[1:3], inputs[3:], 0.25)
        whole = mean.square().sum() + total.square().sum()
        (found,) = torch.autograd.grad(whole, q, create_graph=True)
        return found.square().sum()

    found = []
    for call in (fused.fused_sums, attended_and_total):
        q = inputs[0].clone().requires_grad_()
        found.append(torch.autograd.grad(slope(q, call), q)[0])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def whole_network(call):
    """Compare a step of a transformer with the kernels in it with one without."""
    torch.manual_seed(0)
    plain = bf.build_model("vit_tiny", num_classes=3, image_size=32, patch_size=16, depth=2)
    model = bf.convert(plain, bf.MomentPropagation(rules="pooled", scale="out"))
    images = torch.randn(2, 3, 32, 32)
    grads = []
    for devices in (("cpu",), ()):
        fused_attention.DEVICES = devices
        model.zero_grad()
        forward = call(model) if devices else model
        with forward_by(model, "moments"), moment_rules("pooled"):
            mean, variance = forward(images).pair()
        (mean.square().sum() + variance.sum()).backward()
        grads.append([each.grad.clone() for each in model.parameters()])
    for ours, true in zip(*grads, strict=True):
        torch.testing.assert_close(ours, true, rtol=1e-3, atol=1e-4 * true.abs().max().item())


def is_taken():
    """Look that the rule uses the kernels where it can."""
    seen = []
    before, attention_rules_module = fused.run_forward, attention_rules
    fused.run_forward = lambda *args: seen.append(1) or before(*args)
    fused_attention.DEVICES = ("cpu",)
    tokens = torch.randn(1, 2, 5, 16)
    parts = [Moments(tokens, torch.rand_like(tokens)) for _ in range(3)]
    with moment_rules("pooled"):
        one = attention_rules_module.attend(*parts, None, 0.0, 0.25)
        fused_attention.DEVICES = ()
        other = attention_rules_module.attend(*parts, None, 0.0, 0.25)
    fused.run_forward = before
    assert seen == [1]
    torch.testing.assert_close(one.variance, other.variance)


if __name__ == "__main__":
    for sizes in SIZES:
        compared(sizes)
    not_a_number()
    for strength in (0.5, 1.0, 1.5):
        nearly_certain(strength)
    fused.TILES = dict.fromkeys(fused.TILES, fused_attention.Tiles(32, 16, 4, 1))
    compared(SIZES[0])
    has_products, fused.has_bfloat16 = fused.has_bfloat16, lambda _: False
    compared(SIZES[0])
    fused.has_bfloat16 = has_products
    other_derivatives()
    fused_attention.TYPES = (torch.float32,)
    is_taken()
    whole_network(lambda model: model)
    whole_network(lambda model: torch.compile(model, backend="aot_eager", fullgraph=True))
    print("all agree")
