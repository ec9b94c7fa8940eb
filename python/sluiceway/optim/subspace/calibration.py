"""Measuring projectors on a loss that the user's closure gives, between two steps."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from sluiceway import _core
from sluiceway.model.targets import CompressedWeight
from sluiceway.optim.common import torch_private


class Calibration:
    """Runs a closure's backward whose gradients train nothing, and counts first fits.

    Parameters
    ----------
    engine : SubspaceEngine
    closure : callable or None
        Returns a calibration loss.
    model : torch.nn.Module
        Gradients of its other parameters are put back afterwards, whoever trains them. Those of
        parameters outside of it are the closure's own affair.
    weights : list of CompressedWeight
        Their gradients calibrate.
    """

    def __init__(
        self,
        engine: _core.SubspaceEngine,
        closure: Callable[[], torch.Tensor] | None,
        model: nn.Module,
        weights: list[CompressedWeight],
    ) -> None:
        self._engine = engine
        self._closure = closure
        self._model = weakref.ref(model)
        self._own = {id(weight.parameter) for weight in weights}
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
        """Return whether it is time, and nothing is gathered that a backward would disturb."""
        free = self._closure is not None and not self.running and not self._engine.has_gradient()
        return free and self._engine.calibration_due()

    def run(self) -> None:
        """Measure, and replace projectors where the policy says so."""
        with self._others_as_they_are():
            self._engine.begin_calibration()
            self.running = True
            try:
                with torch.enable_grad():
                    self._closure().backward()
            finally:
                self.running = False
                self._engine.end_calibration()

    @contextmanager
    def _others_as_they_are(self) -> Iterator[None]:
        """Nothing becomes of the gradients of what is not ours."""
        model = self._model()
        others = [p for p in model.parameters() if id(p) not in self._own and p.requires_grad]
        # What a hook does with a gradient, of another optimizer for one, cannot be taken back.
        hooked = [p for p in others if torch_private.accumulation_hooks(p)]
        gradients = [(p, p.grad) for p in others if not torch_private.accumulation_hooks(p)]
        for parameter in hooked:
            parameter.requires_grad_(False)
        for parameter, _ in gradients:
            parameter.grad = None  # Else autograd adds to the tensor that is put back.
        try:
            yield
        finally:
            for parameter in hooked:
                parameter.requires_grad_(True)
            for parameter, gradient in gradients:
                parameter.grad = gradient
