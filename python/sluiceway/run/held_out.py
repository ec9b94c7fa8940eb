"""Mean loss of a held-out set: one function for training and for `eval`."""

from __future__ import annotations

from collections.abc import Callable

import torch

from sluiceway.machine.placement import Placement
from sluiceway.model.loss import loss_of
from sluiceway.text.batches import Sequences, in_order


def mean_loss(
    model: torch.nn.Module,
    placement: Placement,
    sequences: Sequences,
    micro_batch: int,
    most: int | None = None,
    advance: Callable[[int], None] = lambda count: None,
) -> tuple[float, int]:
    """Mean loss over the learned tokens of a set; the model's mode is as it was.

    Parameters
    ----------
    micro_batch : int
        Sequences of one forward.
    most : int or None
        Only the first so many sequences; None: all.
    advance : callable
        Told after each forward how many sequences it held.

    Returns
    -------
    tuple of float and int
        Nats per token, and tokens that were predicted.
    """
    total, learned, trains = 0.0, 0, model.training
    model.eval()
    with torch.no_grad():
        for batch in in_order(sequences, micro_batch, most):
            total += loss_of(model, placement, batch).item() * batch.learned
            learned += batch.learned
            advance(len(batch.inputs["input_ids"]))
    model.train(trains)
    return total / learned, learned
