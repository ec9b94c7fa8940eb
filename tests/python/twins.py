"""Models that are trained to be compared with a twin."""

from __future__ import annotations

from collections.abc import Callable

import sluiceway as sw
import torch
from small_models import distance, loss_of
from torch import nn

LR = 1e-3


def identity(model: nn.Module, **arguments: object) -> sw.SubspaceAdamW:
    """Make a SubspaceAdamW without losses, which equals torch's AdamW."""
    return sw.SubspaceAdamW(model, lr=LR, codec="identity", wire="fp32", **arguments)


def train(
    model: nn.Module,
    opt: torch.optim.Optimizer,
    steps: int,
    scheduler: torch.optim.lr_scheduler.LRScheduler | None = None,
    first: int = 0,
    loss: Callable[[nn.Module, int], torch.Tensor] = loss_of,
    micro_batches: int = 1,
) -> nn.Module:
    """Train on batches that are a function of their number, from step `first` on."""
    for step in range(first, first + steps):
        for micro in range(micro_batches):
            loss(model, micro_batches * step + micro).backward()
        opt.step()
        if scheduler is not None:
            scheduler.step()
        opt.zero_grad()
    return model


def close_to_native(
    make_model: Callable[[], nn.Module],
    steps: int = 12,
    scheduler: Callable[[torch.optim.Optimizer], object] | None = None,
    loss: Callable[[nn.Module, int], torch.Tensor] = loss_of,
    **arguments: object,
) -> float:
    """Train twins with ours and torch's; return the distance of their weights."""
    ours, theirs = make_model(), make_model()
    reference = torch.optim.AdamW(theirs.parameters(), lr=LR, foreach=False)
    with identity(ours, **arguments) as opt:
        train(ours, opt, steps, scheduler and scheduler(opt), loss=loss)
    train(theirs, reference, steps, scheduler and scheduler(reference), loss=loss)
    return distance(ours, theirs)
