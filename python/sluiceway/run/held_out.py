"""Mean loss of a held-out set: one function for training and for `eval`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice

import torch

from sluiceway.engines.protocol import Evaluates
from sluiceway.machine.placement import Placement
from sluiceway.model.loss import loss_of
from sluiceway.text.batches import Batch, Sequences, in_order


def mean_loss(
    model: torch.nn.Module,
    placement: Placement,
    sequences: Sequences,
    micro_batch: int,
    most: int | None = None,
    advance: Callable[[int], None] = lambda count: None,
    by: Evaluates | None = None,
    batch_loss: Callable[[Batch], torch.Tensor] | None = None,
) -> tuple[float, int]:
    """Mean loss over the learned tokens of a set; the model's mode is as it was.

    Parameters
    ----------
    micro_batch : int
        Sequences of one forward.
    most : int or None
        Only the first so many sequences; None: all.
    advance : callable
        Told of each batch how many sequences it held, when its loss is there.
    by : Evaluates, optional
        Who computes losses; None: each is that of a plain forward.
    batch_loss : callable, optional
        What that forward's loss is; None: the model's own.

    Returns
    -------
    tuple of float and int
        Nats per token, and tokens that were predicted.
    """
    total, learned, trains = 0.0, 0, model.training
    batch_loss = batch_loss or partial(loss_of, model, placement)
    model.eval()
    with torch.no_grad():
        batches = in_order(sequences, micro_batch, most)
        while group := list(islice(batches, by.evaluated_at_once if by else 1)):
            losses = by.losses(group) if by else [batch_loss(*group).item()]
            for batch, loss in zip(group, losses, strict=True):
                total += loss * batch.learned
                learned += batch.learned
                advance(len(batch.inputs["input_ids"]))
    model.train(trains)
    return total / learned, learned
