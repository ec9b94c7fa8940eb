"""Gradients that residuals need: of the step being gathered, and of the one being applied."""

from __future__ import annotations

import torch

from sluiceway.machine.device_ops import DeviceOps, Made


class ResidualGradients:
    """Sums of a step's gradients, by weight; each lives until nobody reads it."""

    def __init__(self, device: DeviceOps) -> None:
        self._device = device
        self.totals: dict[int, Made] = {}
        self.lent: dict[int, torch.Tensor] = {}
        self.kept = 0  # Weights of the last step that their residual trained though it was skipped.

    def add(self, weight: int, gradient: torch.Tensor) -> torch.Tensor:
        """Add a gradient, which is kept; returns the sum."""
        before = self.totals.get(weight)
        total = gradient if before is None else before.take().add_(gradient)
        self.totals[weight] = Made(total)
        return total

    def done(self, weight: int) -> None:
        """The residual of a weight is trained already: its sum goes."""
        del self.totals[weight]

    def drop(self) -> None:
        """The sums of the step that was being gathered go."""
        self.totals.clear()

    def lend(self, kept: int) -> None:
        """A step begins to be applied: each sum lives until its weight was waited for."""
        self.kept = kept
        self.lent.update((weight, total.take()) for weight, total in self.totals.items())
        self.totals.clear()

    def take_back(self, weight: int) -> None:
        """The step is applied to a weight, or torch's stream waits until it is."""
        total = self.lent.pop(weight, None)
        if total is not None:
            self._device.release(total)
