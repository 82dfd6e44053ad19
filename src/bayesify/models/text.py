"""A small Transformer that classifies texts given as rows of word numbers.

Attention is written with a layer for each of its four products, not as `nn.MultiheadAttention`:
that one reads its weights past the layers that hold them, so their outputs could not be drawn.

Reference: Vaswani et al. (2017), "Attention is all you need".
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesify.models.catalogue import models
from bayesify.models.dense import check_dropout, check_positive

PADDING = 0
# Small, so that what a word has learnt soon outweighs where it stands and what it began as: unit
# variance, torch's own, costs one to two points of accuracy on film reviews.
EMBEDDING_STD = 0.05


class Attention(nn.Module):
    """Let each word of a text look at all of its words.

    Args:
        width: Number of features of a word.
        num_heads: Number of heads; they share the width evenly.
    """

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query = nn.Linear(width, width)
        # A bias here would add the same to all scores of a query, which the softmax takes away.
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)

    def forward(self, features: Tensor, may_see: Tensor) -> Tensor:
        """Return new features of shape (batch, words, width).

        Args:
            features: Features of shape (batch, words, width).
            may_see: Whether a word may be looked at, of shape (batch, words); at least one of
                each text.
        """
        query, key, value = (
            layer(features).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        seen = F.scaled_dot_product_attention(
            query, key, value, attn_mask=may_see[:, None, None, :]
        )
        return self.output(seen.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """Map each word by itself through one hidden ReLU layer.

    Args:
        width: Number of features of a word.
        hidden: Width of the hidden layer.
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.expand = nn.Linear(width, hidden)
        self.contract = nn.Linear(hidden, width)

    def forward(self, features: Tensor) -> Tensor:
        """Return new features of the same shape."""
        return self.contract(F.relu(self.expand(features)))


class EncoderBlock(nn.Module):
    """Attention, then a feed-forward network, each added to its input and normalised.

    Args:
        width: Number of features of a word.
        num_heads: Number of heads of the attention.
        hidden: Width of the feed-forward network's hidden layer.
        dropout: Probability of dropping an output of either.
    """

    def __init__(self, width: int, num_heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(width, num_heads)
        self.attention_dropout = _dropout(dropout)
        self.attention_norm = nn.LayerNorm(width)
        self.feed_forward = FeedForward(width, hidden)
        self.feed_forward_dropout = _dropout(dropout)
        self.feed_forward_norm = nn.LayerNorm(width)

    def forward(self, features: Tensor, may_see: Tensor) -> Tensor:
        """Return new features of the same shape; see `Attention`."""
        change = self.attention_dropout(self.attention(features, may_see))
        features = self.attention_norm(features + change)
        change = self.feed_forward_dropout(self.feed_forward(features))
        return self.feed_forward_norm(features + change)


class TextTransformer(nn.Module):
    """Classify texts by the mean over their words of one Transformer encoder block.

    `where="block.feed_forward"` and `where="block.attention"` choose the weights of one part of
    the block.

    Args:
        vocabulary_size: Number of different word numbers; 0 is padding.
        num_classes: Number of outputs.
        width: Number of features of a word.
        num_heads: Number of heads of the attention, a divisor of `width`.
        hidden: Width of the feed-forward network's hidden layer.
        length: Largest number of words of a text.
        dropout: Probability of dropping an output of attention, of the feed-forward network and
            an input of the last layer; 0 adds no dropout modules.
    """

    def __init__(
        self,
        vocabulary_size: int = 20_000,
        num_classes: int = 2,
        width: int = 32,
        num_heads: int = 2,
        hidden: int = 32,
        length: int = 120,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        check_positive(vocabulary_size=vocabulary_size, num_classes=num_classes, width=width)
        check_positive(num_heads=num_heads, hidden=hidden, length=length)
        check_dropout(dropout)
        if width % num_heads:
            raise ValueError(f"num_heads must divide width={width}, got {num_heads}")
        self.length = length
        self.words = nn.Embedding(vocabulary_size, width, padding_idx=PADDING)
        self.positions = nn.Embedding(length, width)
        self.block = EncoderBlock(width, num_heads, hidden, dropout)
        self.dropout = _dropout(dropout)
        self.head = nn.Linear(width, num_classes)
        self._start_small()

    def forward(self, texts: Tensor) -> Tensor:
        """Return one row of logits for each text.

        Args:
            texts: Word numbers of shape (batch, words), with at most `length` words; those
                that are 0 are padding and change nothing.
        """
        self._check(texts)
        is_word = texts != PADDING
        positions = torch.arange(texts.shape[1], device=texts.device)
        features = self.words(texts) + self.positions(positions)
        # A softmax over no word at all is NaN: a text of padding sees it, and the mean forgets it.
        may_see = is_word | ~is_word.any(1, keepdim=True)
        features = self.block(features, may_see)
        return self.head(self.dropout(_mean_of_words(features, is_word)))

    def _start_small(self) -> None:
        with torch.no_grad():
            for table in (self.words, self.positions):
                nn.init.normal_(table.weight, std=EMBEDDING_STD)
            self.words.weight[PADDING] = 0.0

    def _check(self, texts: Tensor) -> None:
        if texts.is_floating_point() or texts.ndim != 2 or texts.shape[1] > self.length:
            raise ValueError(
                f"texts must be integer word numbers of shape (batch, up to {self.length}), got "
                f"{texts.dtype} of shape {tuple(texts.shape)}; encode them by the vocabulary of "
                "the data set"
            )


def _mean_of_words(features: Tensor, is_word: Tensor) -> Tensor:
    """Return the mean over words of shape (batch, width); 0 for a text of none."""
    weights = is_word.to(features.dtype)
    weights = weights / weights.sum(1, keepdim=True).clamp(min=1.0)
    return (weights.unsqueeze(1) @ features).squeeze(1)


def _dropout(dropout: float) -> nn.Module:
    return nn.Dropout(dropout) if dropout > 0.0 else nn.Identity()


models.register("text_transformer")(TextTransformer)
