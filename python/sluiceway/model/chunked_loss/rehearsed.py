"""The chunked loss in a rehearsal, where tensors have shapes but no values."""

from __future__ import annotations

import torch
from torch import nn

from sluiceway.model.chunked_loss.cross_entropy import chunked_cross_entropy
from sluiceway.model.chunked_loss.of_model import cap_of, refusal_of


def rehearse_chunked_loss(model: nn.Module) -> None:
    """Let a model's own loss use the memory and operations of `ChunkedLoss`, if that supports it.

    Parameters
    ----------
    model : torch.nn.Module
        Its head and its loss function are replaced. Their results then have correct shapes only.
    """
    if refusal_of(model) is not None:
        return
    head, cap, losses = model.get_output_embeddings(), cap_of(model), []

    def product(hidden: torch.Tensor) -> torch.Tensor:
        rows = hidden.flatten(0, -2)
        labels = torch.zeros(len(rows), dtype=torch.long, device=rows.device)
        losses.append(chunked_cross_entropy(rows, head.weight, labels, head.bias, cap=cap))
        return hidden[..., :1]

    head.forward = product
    model.loss_function = lambda *_, **__: losses.pop()
