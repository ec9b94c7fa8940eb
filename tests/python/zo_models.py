"""A language model small enough for an oracle in plain Python, with all that a decoder has."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class ZoBlock(nn.Module):
    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 13)
        self.down = nn.Linear(13, width, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.dropout(self.down(functional.gelu(self.up(self.norm(x)))))


class ZoDecoder(nn.Module):
    """Embedding, blocks, norm, and a head that is tied to the embedding."""

    def __init__(self, blocks: int = 3, width: int = 7, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, width)
        self.layers = nn.ModuleList(ZoBlock(width, dropout) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def decoder(seed: int = 0, **changes: object) -> ZoDecoder:
    torch.manual_seed(seed)
    return ZoDecoder(**changes)


def zo_ids(step: int, rows: int = 3) -> torch.Tensor:
    """Tokens that are a function of `step` alone."""
    return torch.randint(0, 11, (rows, 9), generator=torch.Generator().manual_seed(step))


def zo_loss(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """Of the next token."""
    return functional.cross_entropy(model(ids)[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())
