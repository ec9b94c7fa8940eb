"""Selects every trainable parameter, whatever its shape, for one engine.

The gradients of some weights may cross the link compressed: those in `compressed` that do not have
`identity`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import nn

from sluiceway.errors import InvalidArgument
from sluiceway.model.targets import (
    CompressedWeight,
    Selection,
    check_dense,
    check_storage,
    owners_of,
    reasons_against,
)

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_NO_CODEC = "no codec"
_BATCH = "3-D weights"


class WholeWeight(CompressedWeight):
    """One parameter of any shape that an engine's lanes train as one row of numbers."""

    @property
    def is_batch(self) -> bool:
        """Always False: experts are one tensor like any other."""
        return False

    @property
    def shape(self) -> tuple[int, int]:
        """One row of all elements."""
        return 1, self.parameter.numel()

    def matrices(self, whole: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return a view of the tensor as one row."""
        return (whole.view(1, -1),)

    def check_layout(self, whole: torch.Tensor) -> None:
        """Raise InvalidArgument if the parameter is not contiguous any more."""
        if not whole.is_contiguous():
            raise InvalidArgument(
                f"step: {self.name} has strides {tuple(whole.stride())}, expected contiguous "
                "memory; make it contiguous() and continue"
            )


def select_whole(
    owner: str,
    model: nn.Module,
    only: Collection[int] | None = None,
    target: str | Sequence[str] | None = None,
    away: Collection[int] = (),
) -> Selection:
    """Select all trainable parameters of `model` in its order; tied ones count as one.

    Parameters
    ----------
    owner : str
        The optimizer's name, for errors.
    model : torch.nn.Module
        Parameters with `requires_grad=False`, and those without elements, are left out.
    only : collection of int, optional
        id() of the parameters to take; all others are left out.
    target : str or sequence of str, optional
        Matrices whose gradients may cross compressed, named as in `select_weights`; none by
        default. `why_ordinary` has a reason for each weight that is not among them.
    away : collection of int, optional
        id() of the parameters whose values are elsewhere, so that their layout means nothing.

    Raises
    ------
    InvalidArgument
        A parameter's dtype or layout is not supported, or the model has no parameter to train.
    """
    owners = owners_of(model)
    against = {} if target is None else reasons_against(model, target, owners)
    selection = Selection()
    for key, (name, parameter, holders) in owners.items():
        wanted = parameter.requires_grad and (only is None or key in only)
        if wanted and parameter.numel() > 0:
            _check(owner, name, parameter, key in away)
            modules = [module for module, _ in holders]
            why = against.get(key, _NO_CODEC) or (_BATCH if parameter.dim() > 2 else None)
            if why is not None:
                selection.why_ordinary[name] = why
            whole = why is not None
            selection.compressed.append(WholeWeight(name, parameter, modules, identity=whole))
    check_dense(owner, selection, owners)
    here = [w for w in selection.compressed if id(w.parameter) not in away]
    check_storage(owner, ((w.name, w.parameter) for w in here))
    if not any(w.parameter.numel() > 1 for w in selection.compressed):
        # The gradient that stands for all others, for clipping, needs two elements.
        raise InvalidArgument(
            f"{owner}: {type(model).__name__} has no trainable parameter of at least 2 elements, "
            "expected one; unfreeze the parameters to train, or use torch.optim.AdamW"
        )
    return selection


def _check(owner: str, name: str, parameter: nn.Parameter, is_away: bool) -> None:
    if parameter.dtype not in DTYPES:
        raise InvalidArgument(
            f"{owner}: {name} is {parameter.dtype}, expected float32, bfloat16 or float16; convert "
            "or freeze it"
        )
    if is_away:
        return
    if parameter.layout is not torch.strided or not parameter.is_contiguous():
        strides = parameter.stride() if parameter.layout is torch.strided else parameter.layout
        raise InvalidArgument(
            f"{owner}: {name} has strides {strides}, expected contiguous memory; make it "
            "contiguous(), or freeze it"
        )
