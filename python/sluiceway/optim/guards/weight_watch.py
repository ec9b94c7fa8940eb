"""Notices what others did to parameters behind the optimizer's back."""

from __future__ import annotations

import torch
from torch import nn

from sluiceway.errors import InvalidArgument


class WeightWatch:
    """What every trained parameter was when the optimizer was made, and where its update goes.

    Parameters
    ----------
    owner : str
        The optimizer's name, for errors.
    model : torch.nn.Module
    parameters : list of (str, torch.Tensor)
        All that are trained.
    weights : list of (str, torch.Tensor)
        Those that are updated while other work goes on, in the order of their numbers.
    """

    def __init__(
        self,
        owner: str,
        model: nn.Module,
        parameters: list[tuple[str, torch.Tensor]],
        weights: list[tuple[str, torch.Tensor]],
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
        self._weights = weights
        self._under_way: dict[int, int] = {}  # Address that the update of a weight is written to.

    def check(self) -> None:
        """Refuse a parameter that was converted or moved.

        Raises
        ------
        InvalidArgument
            The first one is named.
        """
        for name, p, dtype, device in self._made_with:
            if p.dtype is not dtype or p.device != device:
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

    def begin_update(self) -> None:
        """A step was enqueued."""
        self._under_way = {i: p.data_ptr() for i, (_, p) in enumerate(self._weights)}

    def end_update(self, weight: int) -> None:
        """The update of a weight is applied.

        Raises
        ------
        InvalidArgument
            The weight got other storage meanwhile, which the update has not reached.
        """
        address = self._under_way.pop(weight, None)
        name, p = self._weights[weight]
        if address is not None and p.data_ptr() != address:
            raise InvalidArgument(
                f"{self._owner}: {name} got other storage while its update was under way, "
                "expected the update to be applied first; call synchronize() before .data is "
                "assigned or the model is converted"
            )

    def end_updates(self) -> None:
        """The updates of all weights are applied."""
        for weight in list(self._under_way):
            self.end_update(weight)
