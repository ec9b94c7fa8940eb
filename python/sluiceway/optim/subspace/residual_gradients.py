"""Gradients that residuals need, of the step being gathered and of the step being applied."""

from __future__ import annotations

import torch

from sluiceway.machine.device_ops import DeviceOps, Made


class ResidualGradients:
    """Sums of a step's gradients by weight, each kept until no code has to read it any more."""

    def __init__(self, device: DeviceOps) -> None:
        self._device = device
        self.totals: dict[int, Made] = {}
        self.lent: dict[int, torch.Tensor] = {}
        self.kept = 0  # Number of weights that residuals trained although the step was skipped.

    def added(self, weight: int, gradient: torch.Tensor) -> torch.Tensor:
        """Return the sum with one more gradient; `keep` keeps it."""
        before = self.totals.pop(weight, None)
        return gradient if before is None else before.take().add_(gradient)

    def keep(self, weight: int, total: torch.Tensor) -> None:
        """Keep a sum until the step, as the weight's residual has not trained yet."""
        self.totals[weight] = Made(total)

    def drop(self) -> None:
        """Free the sums of the step being gathered."""
        self.totals.clear()

    def lend(self, kept: int) -> None:
        """Begin to apply a step, and keep each sum until `take_back` is called for its weight."""
        self.kept = kept
        self.lent.update((weight, total.take()) for weight, total in self.totals.items())
        self.totals.clear()

    def take_back(self, weight: int) -> None:
        """Free a weight's sum once its update is applied, or torch's stream waits for it."""
        total = self.lent.pop(weight, None)
        if total is not None:
            self._device.release(total)
