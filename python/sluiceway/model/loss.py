"""The loss of one batch, for training and evaluation."""

from __future__ import annotations

import torch

from sluiceway.machine.placement import Placement
from sluiceway.text.batches import Batch


def loss_of(model: torch.nn.Module, placement: Placement, batch: Batch) -> torch.Tensor:
    """Mean loss of a batch's learned tokens, in nats, with its graph."""
    with placement.cast():
        return model(**inputs_on(placement, batch), use_cache=False).loss


def inputs_on(placement: Placement, batch: Batch) -> dict[str, torch.Tensor]:
    """Copy a batch's inputs to the model's device."""
    return {
        name: tensor.to(placement.device, non_blocking=True)
        for name, tensor in batch.inputs.items()
    }
