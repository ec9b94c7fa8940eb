"""Gradients that were taken away or zeroed, all of them or those of a part of the model."""

from __future__ import annotations

import torch

from sluiceway.errors import InvalidArgument
from sluiceway.optim.guards.mixed_modules import MixedModules


class DroppedGradients:
    """What of the gradients of a step is not there any more, by what ordinary ones tell.

    Parameters
    ----------
    owner : str
        The optimizer's name, for errors.
    compressed : list of (str, torch.Tensor)
        By their number.
    ordinary : list of (str, torch.Tensor)
        Parameters whose gradients are in `.grad`.
    modules : MixedModules
    """

    def __init__(
        self,
        owner: str,
        compressed: list[tuple[str, torch.Tensor]],
        ordinary: list[tuple[str, torch.Tensor]],
        modules: MixedModules,
    ) -> None:
        self._owner = owner
        self._compressed = compressed
        self._ordinary = ordinary
        self._modules = modules
        self._had: set[int] = set()
        # Compressed weights whose gradient torch would keep as zeros, and step with.
        self._zeros: set[int] = set()

    def note(self) -> None:
        """Remember who has a gradient."""
        self._had = {i for i, (_, p) in enumerate(self._ordinary) if p.grad is not None}

    def check_part(self, sentinel: str, removed: bool) -> None:
        """Refuse that gradients of a part of the model were taken away; `sentinel` is the weight
        that has one, unless it was `removed`.

        Raises
        ------
        InvalidArgument
            A parameter that has its gradient and one that has none are named.
        """
        gone = {i for i in self._had if self._ordinary[i][1].grad is None}
        kept = self._had - gone
        if removed:
            lost = sentinel if kept else None
        else:
            touched = self._modules.touched(gone, self._had)
            lost = touched and f"{self._ordinary[touched[0]][0]} (beside {touched[1]})"
        if lost is None:
            return
        left = self._ordinary[min(kept)][0] if kept else sentinel
        raise InvalidArgument(
            f"{self._owner}: the gradient of {lost} was removed, that of {left} was not, expected "
            "all or none, as compressed gradients cannot be removed one by one; freeze a part by "
            "requires_grad_(False) before the forward, or call zero_grad() for all"
        )

    def all_gone(self, taken: set[int], zeroed: bool) -> None:
        """Gradients were dropped: those of the weights in `taken` are zeros, or all are None."""
        self._zeros = self._zeros | taken if zeroed else set()
        taken.clear()

    def since_step(self, taken: set[int]) -> None:
        """Gradients are about to come, the first after a step that used those in `taken`."""
        if self._had:
            # The first of the model: this backward comes to it last.
            gradient = self._ordinary[min(self._had)][1].grad
            if gradient is None:
                self.all_gone(taken, zeroed=False)
            elif gradient.layout is torch.strided and not gradient.any():
                self.all_gone(taken, zeroed=True)
        taken.clear()

    def check_zeros(self, taken: set[int]) -> None:
        """Refuse a step in which torch would go on with gradients of zeros.

        Raises
        ------
        InvalidArgument
            The first weight is named.
        """
        for weight in sorted(self._zeros - taken):
            name, _ = self._compressed[weight]
            raise InvalidArgument(
                f"{self._owner}.step: {name} has no gradient in this step, and gradients were "
                "zeroed in place before, with which AdamW would go on, expected None; call "
                "zero_grad(set_to_none=True)"
            )
