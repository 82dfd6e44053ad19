"""Vision Transformers: an image as a row of patches, classified by a token that sees them all.

State-dict names are those of timm (`patch_embed.proj`, `blocks.0.attn.qkv`, ..., `head`), so that
the weights published for `vit_tiny_patch16_224` and its like load as they are; for images of
another size `resized_position` fits the one tensor that knows about it.

Reference: Dosovitskiy et al. (2021), "An image is worth 16x16 words"; the sizes tiny and small
are those of Touvron et al. (2021), "Training data-efficient image transformers", table 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesify.models.catalogue import models
from bayesify.models.convolution import dropout_or_identity
from bayesify.models.dense import check_dropout, check_positive

NORM_EPSILON = 1e-6
INITIAL_STD = 0.02
HIDDEN_PER_WIDTH = 4
POSITION = "pos_embed"


class PatchEmbedding(nn.Module):
    """Cut an image into square patches and map each to a token by one linear map.

    Args:
        in_channels: Number of channels of an image.
        width: Number of features of a token.
        patch_size: Height and width of a patch.
    """

    def __init__(self, in_channels: int, width: int, patch_size: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(in_channels, width, patch_size, stride=patch_size)

    def forward(self, images: Tensor) -> Tensor:
        """Return tokens of shape (batch, patches, width), row by row."""
        return self.proj(images).flatten(2).transpose(1, 2)


class Attention(nn.Module):
    """Let each token of an image look at all of its tokens.

    Args:
        width: Number of features of a token.
        num_heads: Number of heads; they share the width evenly.
        dropout: Probability of dropping an output.
    """

    def __init__(self, width: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.proj_drop = dropout_or_identity(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return new tokens of the same shape, (batch, tokens, width)."""
        heads = self.qkv(tokens).unflatten(-1, (3, self.num_heads, -1))
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)
        seen = F.scaled_dot_product_attention(query, key, value)
        return self.proj_drop(self.proj(seen.transpose(1, 2).flatten(2)))


class FeedForward(nn.Module):
    """Map each token by itself through one hidden GELU layer, four times as wide.

    Args:
        width: Number of features of a token.
        dropout: Probability of dropping a hidden unit, and an output.
    """

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, HIDDEN_PER_WIDTH * width)
        self.drop1 = dropout_or_identity(dropout)
        self.fc2 = nn.Linear(HIDDEN_PER_WIDTH * width, width)
        self.drop2 = dropout_or_identity(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return new tokens of the same shape."""
        return self.drop2(self.fc2(self.drop1(F.gelu(self.fc1(tokens)))))


class Block(nn.Module):
    """Attention, then a feed-forward network, each of normalised tokens and added to them.

    Args:
        width: Number of features of a token.
        num_heads: Number of heads of the attention.
        dropout: Probability of dropping an output of either, and a hidden unit.
    """

    def __init__(self, width: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=NORM_EPSILON)
        self.attn = Attention(width, num_heads, dropout)
        self.norm2 = nn.LayerNorm(width, eps=NORM_EPSILON)
        self.mlp = FeedForward(width, dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return new tokens of the same shape."""
        tokens = tokens + self.attn(self.norm1(tokens))
        return tokens + self.mlp(self.norm2(tokens))


class VisionTransformer(nn.Module):
    """Classify images by the class token after blocks of attention over their patches.

    `where="blocks.*.attn.*"` and `where="blocks.*.mlp.*"` choose the weights of one part of every
    block, `where="head"` those of the last layer.

    Args:
        width: Number of features of a token.
        depth: Number of blocks.
        num_heads: Number of heads of each attention, a divisor of `width`.
        num_classes: Number of outputs.
        in_channels: Number of channels of an image.
        image_size: Height and width of an image.
        patch_size: Height and width of a patch, a divisor of `image_size`.
        dropout: Probability of dropping a feature of an embedded patch and an output of any dense
            layer of a block but the one that makes queries, keys and values, as in the paper; 0
            adds no dropout modules.
    """

    def __init__(
        self,
        width: int,
        depth: int,
        num_heads: int,
        num_classes: int = 1000,
        in_channels: int = 3,
        image_size: int = 224,
        patch_size: int = 16,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_positive(width=width, depth=depth, num_heads=num_heads, num_classes=num_classes)
        check_positive(in_channels=in_channels, image_size=image_size, patch_size=patch_size)
        check_dropout(dropout)
        if width % num_heads:
            raise ValueError(f"num_heads must divide width={width}, got {num_heads}")
        if image_size % patch_size:
            raise ValueError(
                f"image_size must be a multiple of patch_size={patch_size}, got {image_size}; "
                "choose another patch_size, or pad or resize the images"
            )
        self.image_shape = (in_channels, image_size, image_size)
        self.grid_size = image_size // patch_size
        self.patch_embed = PatchEmbedding(in_channels, width, patch_size)
        self.cls_token = nn.Parameter(torch.empty(1, 1, width))
        self.pos_embed = nn.Parameter(torch.empty(1, 1 + self.grid_size**2, width))
        self.pos_drop = dropout_or_identity(dropout)
        self.blocks = nn.Sequential(*(Block(width, num_heads, dropout) for _ in range(depth)))
        self.norm = nn.LayerNorm(width, eps=NORM_EPSILON)
        self.head = nn.Linear(width, num_classes)
        self._start()

    def forward(self, images: Tensor) -> Tensor:
        """Return one row of logits for each image."""
        self._check(images)
        patches = self.patch_embed(images)
        first = self.cls_token.expand(patches.shape[0], -1, -1)
        tokens = self.pos_drop(torch.cat([first, patches], dim=1) + self.pos_embed)
        # The norm is of each token alone, and the head reads but one of them.
        return self.head(self.norm(self.blocks(tokens)[:, 0]))

    def _start(self) -> None:
        # The convolution that embeds patches keeps torch's own start, as in timm. The class token
        # does not start at almost 0 as there: a posterior's first scale is a tenth of its size.
        for table in (self.cls_token, self.pos_embed):
            nn.init.trunc_normal_(table, std=INITIAL_STD)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=INITIAL_STD)
                nn.init.zeros_(module.bias)

    def _check(self, images: Tensor) -> None:
        if tuple(images.shape[1:]) != self.image_shape:
            expected = ", ".join(map(str, self.image_shape))
            raise ValueError(
                f"images must have shape (batch, {expected}), got {tuple(images.shape)}; resize "
                "them, or build the model with their in_channels and image_size"
            )


def vit_tiny(
    num_classes: int = 1000,
    in_channels: int = 3,
    image_size: int = 224,
    patch_size: int = 16,
    dropout: float = 0.0,
    depth: int = 12,
) -> VisionTransformer:
    """Return ViT-Ti: 192 features, 3 heads (5,717,416 weights); see `VisionTransformer`."""
    return VisionTransformer(
        192, depth, 3, num_classes, in_channels, image_size, patch_size, dropout
    )


def vit_small(
    num_classes: int = 1000,
    in_channels: int = 3,
    image_size: int = 224,
    patch_size: int = 16,
    dropout: float = 0.0,
    depth: int = 12,
) -> VisionTransformer:
    """Return ViT-S: 384 features, 6 heads (22,050,664 weights); see `VisionTransformer`."""
    return VisionTransformer(
        384, depth, 6, num_classes, in_channels, image_size, patch_size, dropout
    )


def vit_base(
    num_classes: int = 1000,
    in_channels: int = 3,
    image_size: int = 224,
    patch_size: int = 16,
    dropout: float = 0.0,
    depth: int = 12,
) -> VisionTransformer:
    """Return ViT-B: 768 features, 12 heads (86,567,656 weights); see `VisionTransformer`."""
    return VisionTransformer(
        768, depth, 12, num_classes, in_channels, image_size, patch_size, dropout
    )


def vit_mini(
    num_classes: int = 10,
    in_channels: int = 3,
    image_size: int = 32,
    patch_size: int = 4,
    dropout: float = 0.0,
    width: int = 128,
    depth: int = 6,
    num_heads: int = 4,
) -> VisionTransformer:
    """Return a Vision Transformer for images of 28x28 or 32x32; see `VisionTransformer`."""
    return VisionTransformer(
        width, depth, num_heads, num_classes, in_channels, image_size, patch_size, dropout
    )


def resized_position(state: Mapping[str, Tensor], model: VisionTransformer) -> dict[str, Tensor]:
    """Return a state dict whose position embeddings fit the images of a model.

    Those of the patches are interpolated on their grid, bicubically and with antialiasing as in
    timm; that of the class token is kept, and so is all else. Patches must have the same size.

    Args:
        state: State dict of a Vision Transformer for square images of any size.
        model: The model to load it into, plain or converted.
    """
    position = state.get(POSITION)
    if position is None:
        names = ", ".join(list(state)[:4]) or "nothing"
        raise ValueError(f"state must hold {POSITION!r}, the position embeddings, got {names}")
    width = model.head.in_features
    old_size = math.isqrt(max(position.shape[1] - 1, 0)) if position.ndim == 3 else 0
    if old_size < 1 or tuple(position.shape) != (1, 1 + old_size**2, width):
        raise ValueError(
            f"state[{POSITION!r}] must have shape (1, 1 + side * side, {width}), a class token and "
            f"a square grid of patches, got {tuple(position.shape)}"
        )
    if old_size == model.grid_size:
        return dict(state)
    grid = position[:, 1:].unflatten(1, (old_size, old_size)).permute(0, 3, 1, 2)
    size = (model.grid_size, model.grid_size)
    # Half-precision tables would be rounded between the steps, or refused.
    resized = F.interpolate(grid.float(), size, mode="bicubic", antialias=True)
    patches = resized.flatten(2).transpose(1, 2).to(position.dtype)
    return {**state, POSITION: torch.cat([position[:, :1], patches], dim=1)}


models.register("vit_base")(vit_base)
models.register("vit_mini")(vit_mini)
models.register("vit_small")(vit_small)
models.register("vit_tiny")(vit_tiny)
