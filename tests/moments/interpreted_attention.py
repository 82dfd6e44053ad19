"""Attention by moments in its kernels, interpreted on a CPU, against the open form.

Run in a process of its own with TRITON_INTERPRET=1, which triton reads once.
"""

import torch

import bayesify as bf
from bayesify.conversion.scope import forward_by
from bayesify.moments import Moments, attention_rules, fused_attention

SIZES = [(2, 3, 37, 37, 16), (1, 2, 5, 70, 32), (1, 1, 1, 1, 16), (1, 1, 33, 20, 128)]


def given(batch, heads, targets, sources, features, scale=0.3):
    torch.manual_seed(targets)
    counts = (targets, targets, sources, sources, sources, sources)
    parts = [torch.randn(batch, count, heads, features).transpose(1, 2) for count in counts]
    # Means of keys and values far from 0 are what the kernels take out first.
    return [
        part.square() * scale if index % 2 else part + index
        for index, part in enumerate(part.double() for part in parts)
    ]


def moments_of(tensors):
    return [Moments(tensors[index], tensors[index + 1]) for index in (0, 2, 4)]


def compared(sizes, certain=()):
    """Compare results and gradients in float32 with those of the open form in float64.

    Args:
        sizes: Of batch, heads, targets, sources and features.
        certain: Which variances are 0.
    """
    scale = sizes[-1] ** -0.5
    results = []
    for call, dtype in (
        (fused_attention.fused_attention, torch.float32),
        (open_form, torch.double),
    ):
        inputs = [
            (each.to(dtype) * (index not in certain)).requires_grad_()
            for index, each in enumerate(given(*sizes))
        ]
        mean, variance = call(*moments_of(inputs), scale).pair()
        torch.manual_seed(1)
        weights = [torch.randn(mean.shape).to(mean) for _ in range(2)]
        results.append([mean, variance, *torch.autograd.grad([mean, variance], inputs, weights)])
    for ours, true in zip(*results, strict=True):
        largest = true.abs().max().item()
        torch.testing.assert_close(ours.double(), true, rtol=1e-4, atol=2e-6 * largest)


def open_form(query, key, value, scale):
    # A mask of zeros is one that no kernel takes.
    return attention_rules.attend(query, key, value, torch.zeros(()).double(), 0.0, scale)


def other_derivatives():
    """Compare derivatives that kernels do not have with those of the open form."""
    fused_attention.TYPES = (torch.float32,)
    tensors = [each.float() for each in given(1, 2, 3, 4, 16)]

    def total(q):
        parts = moments_of([q, *tensors[1:]])
        return sum(
            each.square().sum() for each in attention_rules.attend(*parts, None, 0.0, 0.25).pair()
        )

    def alike(q):
        """Return the same of queries that are keys and values too, with a variance of their own."""
        parts = moments_of([q, q.square()] * 3)
        return attention_rules.attend(*parts, None, 0.0, 0.25).variance.square().sum()

    def slope(q, function=total):
        (found,) = torch.autograd.grad(function(q), q, create_graph=True)
        return found.square().sum()

    found = []
    for devices in (("cpu",), ()):
        fused_attention.DEVICES = devices
        q = tensors[0].clone().requires_grad_()
        found.append(
            [
                torch.func.jvp(total, (tensors[0],), (torch.ones_like(tensors[0]),))[1],
                torch.func.grad(total)(tensors[0]),
                torch.autograd.grad(slope(q), q)[0],
                torch.autograd.grad(slope(q, alike), q)[0],
            ]
        )
    for ours, true in zip(*found, strict=True):
        torch.testing.assert_close(ours, true, rtol=1e-4, atol=1e-5 * true.abs().max().item())


def compiled():
    """Compare a step of a transformer, compiled with the kernels in it, with an eager one."""
    torch.manual_seed(0)
    plain = bf.build_model("vit_tiny", num_classes=3, image_size=32, patch_size=16, depth=2)
    model = bf.convert(plain, bf.MomentPropagation())
    images = torch.randn(2, 3, 32, 32)
    grads = []
    fused_attention.TYPES = (torch.float32,)
    for devices in (("cpu",), ()):
        fused_attention.DEVICES = devices
        model.zero_grad()
        forward = torch.compile(model, backend="aot_eager", fullgraph=True) if devices else model
        with forward_by(model, "moments"):
            mean, variance = forward(images).pair()
        (mean.square().sum() + variance.sum()).backward()
        grads.append([each.grad.clone() for each in model.parameters()])
    for ours, true in zip(*grads, strict=True):
        torch.testing.assert_close(ours, true, rtol=1e-3, atol=1e-4 * true.abs().max().item())


if __name__ == "__main__":
    for sizes in SIZES:
        compared(sizes)
    for certain in ((1,), (3,), (5,), (1, 3, 5)):
        compared(SIZES[0], certain)
    fused_attention.TILES = fused_attention.SMALL_TILES
    compared(SIZES[0])
    has_products, fused_attention.has_bfloat16 = fused_attention.has_bfloat16, lambda _: False
    compared(SIZES[0])
    fused_attention.has_bfloat16 = has_products
    other_derivatives()
    compiled()
    print("all agree")
