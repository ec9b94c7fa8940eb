"""Measuring projectors on a loss that the user's closure gives, between two steps."""

from __future__ import annotations

from collections.abc import Callable

import torch

from sluiceway import _core
from sluiceway.optim.ordinary import OrdinaryParameters


class Calibration:
    """Runs a closure's backward whose gradients train nothing, and counts first fits.

    Parameters
    ----------
    engine : SubspaceEngine
    closure : callable or None
        Returns a calibration loss.
    ordinary : OrdinaryParameters
        Their gradients are put back afterwards.
    """

    def __init__(
        self,
        engine: _core.SubspaceEngine,
        closure: Callable[[], torch.Tensor] | None,
        ordinary: OrdinaryParameters,
    ) -> None:
        self._engine = engine
        self._closure = closure
        self._ordinary = ordinary
        self.running = False
        # Told how many of how many are fitted.
        self.watch: Callable[[int, int], None] | None = None
        self.restart()

    def restart(self) -> None:
        """Count from here: the engine is new, or has taken over fitted projectors."""
        self._left = self._wanted = self._engine.uncalibrated()

    def begin_backward(self) -> None:
        """Gradients are about to come; the first ones are fitted to."""
        if self._left and self.watch is not None:
            self.watch(self._wanted - self._left, self._wanted)

    def after_gradient(self) -> None:
        """One has come, and perhaps was fitted to."""
        if not self._left:
            return
        left = self._engine.uncalibrated()
        if left != self._left and self.watch is not None:
            self.watch(self._wanted - left, self._wanted)
        self._left = left

    def due(self) -> bool:
        """Whether it is time, and nothing is gathered that a backward would disturb."""
        free = self._closure is not None and not self.running and not self._engine.has_gradient()
        return free and self._engine.calibration_due()

    def run(self) -> None:
        """Measure, and replace projectors where the policy says so."""
        gradients = self._ordinary.gradients()
        self._engine.begin_calibration()
        self.running = True
        try:
            with torch.enable_grad():
                self._closure().backward()
        finally:
            self.running = False
            self._engine.end_calibration()
            for parameter, gradient in gradients:
                parameter.grad = gradient
