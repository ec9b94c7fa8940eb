"""The chunked loss in a rehearsal, where tensors have shapes but no values."""

from __future__ import annotations

import torch
from torch import nn

from sluiceway.model.chunked_loss.cross_entropy import chunked_cross_entropy, sliced_cross_entropy
from sluiceway.model.chunked_loss.of_model import cap_of, refusal_of


def rehearse_chunked_loss(model: nn.Module, graph: bool = False) -> None:
    """Let a model's own loss use the memory and operations of `ChunkedLoss`, if that supports it.

    Parameters
    ----------
    model : torch.nn.Module
        Its head and its loss function are replaced. Their results then have correct shapes only.
    graph : bool
        Whether the loss has a graph.
    """
    if refusal_of(model) is not None:
        return
    head, cap, losses = model.get_output_embeddings(), cap_of(model), []
    entropy = sliced_cross_entropy if graph else chunked_cross_entropy

    def product(hidden: torch.Tensor) -> torch.Tensor:
        rows = hidden.flatten(0, -2)
        labels = torch.zeros(len(rows), dtype=torch.long, device=rows.device)
        losses.append(entropy(rows, head.weight, labels, head.bias, cap=cap))
        return hidden[..., :1]

    head.forward = product
    model.loss_function = lambda *_, **__: losses.pop()
