"""Notices what others did to parameters behind the optimizer's back."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from sluiceway.errors import InvalidArgument
from sluiceway.model.targets import Selection
from sluiceway.optim.hyperparameters import check_group


def refuse_sparse(owner: str, name: str, gradient: torch.Tensor) -> None:
    """Refuse a gradient that has only some of its elements."""
    if gradient.layout is not torch.strided:
        raise InvalidArgument(
            f"{owner}: the gradient of {name} is {gradient.layout}, expected a dense one, as AdamW "
            "has no others; leave sparse=True out"
        )


class WeightWatch:
    """What every trained parameter was when the optimizer was made.

    Parameters
    ----------
    owner : str
        The optimizer's name, for errors.
    model : torch.nn.Module
    selection : Selection
        What is trained, and what is left out.
    """

    def __init__(self, owner: str, model: nn.Module, selection: Selection) -> None:
        self._owner = owner
        self._made_with = [(name, p, p.dtype, p.device) for name, p in selection.trained]
        self._hooked = [(w.name, w.parameter, w.parameter._cdata) for w in selection.compressed]
        self._ordinary, self._left_out = selection.ordinary, selection.left_out
        self._trained = names = {id(p): name for name, p in selection.trained}
        self._held = [
            (names[id(p)], module, local, p)
            for module in model.modules()
            for local, p in module._parameters.items()
            if id(p) in names
        ]

    def check(self) -> None:
        """Refuse a parameter that was converted, moved or swapped for another tensor.

        Raises
        ------
        InvalidArgument
            The first one is named.
        """
        for name, p, dtype, device in self._made_with:
            with torch._C.DisableTorchFunctionSubclass():  # A look waits for no update.
                same = p.dtype is dtype and p.device == device
            if not same:
                raise InvalidArgument(
                    f"{self._owner}: {name} is {p.dtype} on {p.device}, expected {dtype} on "
                    f"{device} as when the optimizer was made; convert or move the model first, "
                    "and make a new optimizer after changing a parameter"
                )
        for name, p, inside in self._hooked:
            with torch._C.DisableTorchFunctionSubclass():
                same = p._cdata == inside
            if not same:  # Our hooks are with what was inside.
                raise InvalidArgument(
                    f"{self._owner}: {name} was swapped for another tensor (torch.utils."
                    "swap_tensors, or set_swap_module_params_on_conversion), expected the one "
                    "that the optimizer was made for; make a new optimizer afterwards"
                )

    def check_step(self, groups: list[dict[str, Any]]) -> None:
        """Refuse groups that hold other parameters now, and gradients that nobody can use.

        Raises
        ------
        InvalidArgument
            The first one is named.
        """
        for group in groups:
            check_group(f"{self._owner}.step", group)
        held = {id(p) for group in groups for p in group["params"]}
        if held != self._trained.keys():
            missing = [name for key, name in self._trained.items() if key not in held]
            what = f"{missing[0]} is in none" if missing else "another tensor is in one"
            raise InvalidArgument(
                f"{self._owner}.step: {what} of the parameter groups now, expected those of the "
                "constructor; set lr and weight_decay of a group to 0 to leave it as it is, or "
                "make a new optimizer"
            )
        for name, p in self._ordinary:
            if p.grad is not None:
                refuse_sparse(f"{self._owner}.step", name, p.grad)
        for name, p in self._left_out:
            if p.requires_grad and p.grad is not None:
                raise InvalidArgument(
                    f"{self._owner}.step: {name} has a gradient, but was frozen when the optimizer "
                    "was made, expected it to stay frozen; make a new optimizer after unfreezing "
                    "(embeddings and head: embeddings='identity'), or name what is trained by "
                    "param_groups="
                )

    def check_held(self) -> None:
        """Refuse a module that holds another parameter now, which nobody trains.

        Between steps: within one, `torch.func.functional_call` puts others in their places.

        Raises
        ------
        InvalidArgument
            The first one is named.
        """
        for name, module, local, p in self._held:
            # A plain read: whatever else a module's dict does when it is asked, is not wanted.
            now = dict.get(module._parameters, local, p)
            if now is not p and now is not None:
                raise InvalidArgument(
                    f"{self._owner}: {name} is another parameter now than when the optimizer was "
                    "made, expected the same one; make a new optimizer after moving the model or "
                    "loading with assign=True"
                )
