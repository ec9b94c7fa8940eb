"""Differences from torch's AdamW, with a link so slow that a missing wait would show."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable

import sluiceway as sw
import torch
from small_models import loss_of, make, update_error
from torch import nn
from torch.optim.swa_utils import AveragedModel
from twins import LR, identity, train

SLOW = sw.Link(d2h_gbps=0.05, h2d_gbps=0.05)  # A weight of 256 x 256 takes 10 ms there and back.

Wrap = Callable[[nn.Module], nn.Module]


def as_it_is(model: nn.Module) -> nn.Module:
    return model


def trained_error(
    make_model: Callable[[], nn.Module],
    before: Wrap = as_it_is,
    after: Wrap = as_it_is,
    loss: Callable[[nn.Module, int], torch.Tensor] = loss_of,
    steps: int = 8,
) -> float:
    """Norm of the difference of the updates that ours and torch's make, over that of torch's.

    `before` and `after` say what is trained: they are called with the model, or with what the
    other returned, before and after the optimizer is made.
    """
    ours, theirs = make_model(), make_model()
    reference = before(theirs)
    native = torch.optim.AdamW(theirs.parameters(), lr=LR, foreach=False)
    train(after(reference), native, steps, loss=loss)
    trained = before(ours)
    with identity(ours, link=SLOW) as opt:
        train(after(trained), opt, steps, loss=loss)
    return update_error(make_model(), ours, theirs)


def driven_error(
    drive: Callable[[nn.Module, torch.optim.Optimizer], None],
    make_model: Callable[[], nn.Module] = make,
    **adam: float,
) -> float:
    """Return `trained_error` for a loop `drive(model, opt)`, run with torch's AdamW first."""
    ours, native = make_model(), make_model()
    drive(native, torch.optim.AdamW(native.parameters(), lr=LR, foreach=False, **adam))
    with identity(ours, link=SLOW, **adam) as opt:
        drive(ours, opt)
    return update_error(make_model(), ours, native)


def saved(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = {
    "deepcopy": copy.deepcopy,
    "save": saved,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "averaged": lambda model: AveragedModel(model).module,
}
