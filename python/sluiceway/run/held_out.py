"""Computes the mean loss of a held-out set, for training and for `sluiceway eval`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

import torch

from sluiceway.text.batches import Batch, Sequences, in_order


def mean_loss(
    model: torch.nn.Module,
    sequences: Sequences,
    micro_batch: int,
    losses: Callable[[Sequence[Batch]], list[float]],
    most: int | None = None,
    advance: Callable[[int], None] = lambda count: None,
    at_once: int = 1,
) -> tuple[float, int]:
    """Compute the mean loss over the learned tokens of a set; the model's mode stays as it was.

    Parameters
    ----------
    micro_batch : int
        Number of sequences in one forward.
    losses : callable
        Computes the mean loss of each of several batches.
    most : int or None
        Evaluate only the first `most` sequences; None: all.
    advance : callable
        Called for each batch with the number of its sequences, as soon as its loss is known.
    at_once : int
        Largest number of batches to give to `losses` in one call.

    Returns
    -------
    tuple of float and int
        Nats per token, and the number of tokens that were predicted.
    """
    total, learned, trains = 0.0, 0, model.training
    model.eval()
    with torch.no_grad():
        batches = in_order(sequences, micro_batch, most)
        while group := list(islice(batches, at_once)):
            for batch, loss in zip(group, losses(group), strict=True):
                total += loss * batch.learned
                learned += batch.learned
                advance(len(batch.inputs["input_ids"]))
    model.train(trains)
    return total / learned, learned
