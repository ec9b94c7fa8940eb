"""The loss of one batch: what training descends and evaluation averages."""

from __future__ import annotations

import torch

from sluiceway.machine.placement import Placement
from sluiceway.text.batches import Batch


def loss_of(model: torch.nn.Module, placement: Placement, batch: Batch) -> torch.Tensor:
    """Mean loss of a batch's learned tokens, in nats, with its graph."""
    inputs = {
        name: tensor.to(placement.device, non_blocking=True)
        for name, tensor in batch.inputs.items()
    }
    with placement.cast():
        return model(**inputs, use_cache=False).loss
