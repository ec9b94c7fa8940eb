"""Measures projectors on the loss of the user's closure, between two steps."""

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
    """Runs the closure's backward, whose gradients train nothing, and counts first fits.

    Parameters
    ----------
    engine : SubspaceEngine
    closure : callable or None
        Returns a calibration loss.
    model : torch.nn.Module
        Calibration restores the gradients of its other parameters afterwards, also those that
        another optimizer trains. The closure must look after parameters outside of the model.
    weights : list of CompressedWeight
        Calibration uses the gradients of these weights.
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
        # Called with the number of fitted projectors and the number to fit.
        self.watch: Callable[[int, int], None] | None = None
        self.restart()

    def restart(self) -> None:
        """Restart the count: the engine is new, or has loaded fitted projectors."""
        self._left = self._wanted = self._engine.uncalibrated()

    def begin_backward(self) -> None:
        """Report progress before the gradients come; projectors are fitted to the first ones."""
        if self._left and self.watch is not None:
            self.watch(self._wanted - self._left, self._wanted)

    def after_gradient(self) -> None:
        """Report progress after a gradient, which may have fitted a projector."""
        if not self._left:
            return
        left = self._engine.uncalibrated()
        if left != self._left and self.watch is not None:
            self.watch(self._wanted - left, self._wanted)
        self._left = left

    def due(self) -> bool:
        """Return whether calibration is due and would not disturb gathered gradients."""
        free = self._closure is not None and not self.running and not self._engine.has_gradient()
        return free and self._engine.calibration_due()

    def run(self) -> None:
        """Measure the projectors, and replace those that the policy rejects."""
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
        """Restore the gradients of all other parameters when the block ends."""
        model = self._model()
        others = [p for p in model.parameters() if id(p) not in self._own and p.requires_grad]
        # A hook, for example of another optimizer, may use a gradient, and we cannot undo that.
        hooked = [p for p in others if torch_private.accumulation_hooks(p)]
        gradients = [(p, p.grad) for p in others if not torch_private.accumulation_hooks(p)]
        for parameter in hooked:
            parameter.requires_grad_(False)
        for parameter, _ in gradients:
            parameter.grad = None  # Otherwise autograd adds to the tensor that we restore.
        try:
            yield
        finally:
            for parameter in hooked:
                parameter.requires_grad_(True)
            for parameter, gradient in gradients:
                parameter.grad = gradient
