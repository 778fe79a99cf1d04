"""GPT: a decoder with normalisation before attention and before the MLP (Radford et al. 2019,
"Language Models are Unsupervised Multitask Learners", section 2.3)."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from raysuite.errors import UserError

_STD = 0.02
"""The standard deviation of initial weights. For the output matrices of attention and of the MLP,
it is divided by sqrt(2 * layers), as in GPT-2."""


class Embedding(nn.Module):
    """Tokens [b, t] -> [b, t, width]: the sum of a token embedding and a position embedding."""

    def __init__(self, vocabulary: int, sequence: int, width: int, dropout: float) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.place = nn.Embedding(sequence, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        if tokens.shape[1] > (most := self.place.num_embeddings):
            raise UserError(
                f"got {tokens.shape[1]} tokens, but the model has {most} positions; leave "
                "model.options.sequence out, or lower data.sequence"
            )
        places = torch.arange(tokens.shape[1], device=tokens.device)
        result: Tensor = self.dropout(self.token(tokens) + self.place(places))
        return result


class Block(nn.Module):
    """Causal self-attention and an MLP, each added to its input [b, t, width]."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.drop = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.joined = nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.joined(self.attention(self.norm1(x))))
        wide = functional.gelu(self.wide(self.norm2(x)), approximate="tanh")
        result: Tensor = x + self.dropout(self.narrow(wide))
        return result

    def attention(self, x: Tensor) -> Tensor:
        batch, places, width = x.shape
        parts = self.queries_keys_values(x).view(batch, places, 3, self.heads, -1)
        queries, keys, values = parts.permute(2, 0, 3, 1, 4)
        found = functional.scaled_dot_product_attention(
            queries, keys, values, dropout_p=self.drop if self.training else 0.0, is_causal=True
        )
        return found.transpose(1, 2).reshape(batch, places, width)


class Gpt(nn.Module):
    """Tokens [b, t], t <= sequence -> logits [b, t, vocabulary].

    The defaults are small; GPT-2 with 124 M parameters has layers 12, heads 12, width 768.
    """

    def __init__(
        self,
        num_classes: int,
        sequence: int,
        layers: int = 2,
        heads: int = 2,
        width: int = 64,
        dropout: float = 0.0,
        tied: bool = True,
    ) -> None:
        """`tied`: whether the last layer shares the matrix of the token embedding.

        Raises UserError if `width` is not a multiple of `heads`.
        """
        super().__init__()
        if width % heads:
            near = max(1, round(width / heads)) * heads
            raise UserError(
                f"width {width} is not a multiple of {heads} heads; {near} would be valid"
            )
        self.embedding = Embedding(num_classes, sequence, width, dropout)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_classes, bias=False)
        self.apply(partial(_initialise, std=_STD))
        for name, weight in self.named_parameters():
            if name.endswith(("joined.weight", "narrow.weight")):
                nn.init.normal_(weight, std=_STD / math.sqrt(2 * layers))
        if tied:
            self.head.weight = self.embedding.token.weight

    def layers(self) -> list[list[nn.Module]]:
        """The parts of each layer, in order of calls. A pipeline can be cut between layers."""
        return [[self.embedding], *([block] for block in self.blocks), [self.norm, self.head]]

    def forward(self, tokens: Tensor) -> Tensor:
        x = tokens
        for parts in self.layers():
            for part in parts:
                x = part(x)
        return x


def _initialise(module: nn.Module, std: float) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=std)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
