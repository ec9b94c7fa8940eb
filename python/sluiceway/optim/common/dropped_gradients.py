"""Gradients that were taken away or zeroed, all of them or those of a part of the model."""

from __future__ import annotations

import torch

from sluiceway.errors import InvalidArgument
from sluiceway.optim.common.mixed_modules import MixedModules
from sluiceway.optim.common.norm_carrier import Carriers, removed_in_part


class DroppedGradients:
    """What of the gradients of a step is not there any more, by what others and sentinels tell.

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

    def check_part(self, carriers: Carriers) -> None:
        """Refuse that gradients of a part of the model were taken away.

        Raises
        ------
        InvalidArgument
            A parameter that has its gradient and one that has none are named.
        """
        carriers.check_whole()
        gone = {i for i in self._had if self._ordinary[i][1].grad is None}
        kept = self._had - gone
        left = self._ordinary[min(kept)][0] if kept else None
        if carriers.removed():
            lost = carriers.name
            if not self._had:  # Nobody else bears witness.
                left = carriers.frozen_since()
        else:
            touched = self._modules.touched(gone, self._had)
            lost = touched and f"{self._ordinary[touched[0]][0]} (beside {touched[1]})"
            left = left or carriers.name
        if lost is not None and left is not None:
            raise removed_in_part(self._owner, lost, left)

    def all_gone(self, taken: set[int], zeroed: bool) -> None:
        """Gradients were dropped: those of the weights in `taken` are zeros, or all are None."""
        self._zeros = self._zeros | taken if zeroed else set()
        taken.clear()

    def since_step(self, taken: set[int], carriers: Carriers) -> None:
        """Note what became of the gradients in `taken`, which a step has used."""
        if carriers.removed():
            self.all_gone(taken, zeroed=False)
        elif not carriers.remains():
            self.all_gone(taken, zeroed=True)

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
