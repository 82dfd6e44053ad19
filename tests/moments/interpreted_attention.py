"""Attention by moments in its kernels, interpreted on a CPU, against the open form.

Run in a process of its own with TRITON_INTERPRET=1, which triton reads once.
"""

import torch

import bayesify as bf
from bayesify.conversion.scope import forward_by
from bayesify.moments import Moments, attention_rules, fused_attention

SIZES = [
    (2, 3, 37, 37, 16),
    (1, 2, 5, 70, 32),
    (1, 2, 70, 5, 32),
    (1, 1, 1, 1, 16),
    (1, 1, 33, 20, 128),
]


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
    # That of the only score of a target is 0, as the difference of parts that are not.
    largest = max(true.abs().max().item() for true in results[1])
    for ours, true in zip(*results, strict=True):
        size = true.abs().max().item() or 0.01 * largest
        torch.testing.assert_close(ours.double(), true, rtol=1e-4, atol=2e-6 * size)


def nearly_certain(strength):
    """Compare gradients in half precision where nearly all weight is on one source.

    There the gradients of scores are differences of which little is left. float16 stands for
    bfloat16, which the interpreter has not.
    """
    torch.manual_seed(0)
    keys = torch.randn(1, 2, 70, 64)
    means = [strength * keys, keys, torch.randn_like(keys) + 0.5]
    parts = [[mean, 0.3 * torch.rand_like(mean)] for mean in means]
    tensors = [part.half() for pair in parts for part in pair]
    weights = [torch.randn_like(keys).half() for _ in range(2)]
    results = fused_attention.run_forward(*tensors, 0.125)
    found = fused_attention.run_backward(tensors, [results[0], *results[2:]], *weights, 0.125)
    inputs = [each.double().requires_grad_() for each in tensors]
    outputs = open_form(*moments_of(inputs), 0.125).pair()
    true = torch.autograd.grad(outputs, inputs, [each.double() for each in weights])
    for ours, exact in zip(found, true, strict=True):
        error = (ours.double() - exact).norm() / exact.norm()
        assert error < 3e-3


def not_a_number():
    """Look that what is not a number does not come out as one."""
    tensors = [each.float() for each in given(1, 1, 3, 4, 16)]
    tensors[4][0, 0, 1, 2] = float("nan")
    found = fused_attention.fused_attention(*moments_of(tensors), 0.25)
    assert all(each[..., 2].isnan().all() for each in found.pair())


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
    not_a_number()
    for strength in (0.5, 1.0, 1.5):
        nearly_certain(strength)
    for certain in ((1,), (3,), (5,), (1, 3, 5)):
        compared(SIZES[0], certain)
    fused_attention.TILES = fused_attention.SMALL_TILES
    compared(SIZES[0])
    # Matrices of two heads at a time, then of some targets of one.
    for room in (2 * 37 * 48 * 4 * 7, 20 * 48 * 4 * 7):
        fused_attention.MATRIX_BYTES, fused_attention.LEAST_ROWS = room, 1
        compared(SIZES[0])
    has_products, fused_attention.has_bfloat16 = fused_attention.has_bfloat16, lambda _: False
    compared(SIZES[0])
    fused_attention.has_bfloat16 = has_products
    other_derivatives()
    compiled()
    print("all agree")
