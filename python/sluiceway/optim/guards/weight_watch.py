"""Notices what others did to parameters behind the optimizer's back."""

from __future__ import annotations

import torch
from torch import nn

from sluiceway.errors import InvalidArgument


class WeightWatch:
    """What every trained parameter was when the optimizer was made.

    Parameters
    ----------
    owner : str
        The optimizer's name, for errors.
    model : torch.nn.Module
    parameters : list of (str, torch.Tensor)
        All that are trained.
    """

    def __init__(
        self,
        owner: str,
        model: nn.Module,
        parameters: list[tuple[str, torch.Tensor]],
    ) -> None:
        self._owner = owner
        self._made_with = [(name, p, p.dtype, p.device) for name, p in parameters]
        names = {id(p): name for name, p in parameters}
        self._held = [
            (names[id(p)], module, local, p)
            for module in model.modules()
            for local, p in module._parameters.items()
            if id(p) in names
        ]

    def check(self) -> None:
        """Refuse a parameter that was converted or moved.

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
