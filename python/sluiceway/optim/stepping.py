"""What a step does with the gradients that were gathered, and what becomes of them afterwards."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import torch

from sluiceway.optim.gathering import GatheringOptimizer
from sluiceway.optim.ordinary import OrdinaryParameters


class WholeStepOptimizer(GatheringOptimizer):
    """Enqueues the engine's update and makes that of the ordinary parameters, or neither.

    What can be refused is looked at before anything is enqueued, so that a step that was refused
    can be taken again.
    """

    _ordinary: OrdinaryParameters
    _stepping: list[torch.Tensor]

    @abstractmethod
    def _enqueue(
        self,
        weights: list[torch.Tensor],
        factor: float,
        own_factors: list[float],
        unscale: float,
        squares: float,
    ) -> tuple[bool, float, float]:
        """Enqueue one step of the engine; return whether it was skipped, the norm, the clipping.

        Parameters
        ----------
        weights : list of torch.Tensor
            Those of the engine.
        factor : float
            On what was gathered: unscaling, and what others did to the sentinel.
        own_factors : list of float
            On what was gathered of each weight, beside `factor`; empty: nothing.
        unscale : float
            Unscaling alone.
        squares : float
            Sum of squares of all unscaled gradients that are not the engine's.
        """

    def _stepped(self) -> None:
        """A step is enqueued, or was skipped; all counts know of it."""

    @torch.compiler.disable
    @torch.no_grad()
    def step(self, closure: Callable[[], torch.Tensor] | None = None) -> torch.Tensor | None:
        """Enqueue one update of every parameter that has a gradient.

        Returns
        -------
        torch.Tensor or None
            What `closure` returned.

        Raises
        ------
        InvalidArgument
            A parameter changed shape, dtype, layout or device, gradients were clipped by value or
            layer by layer, or those of the last step were not zeroed. Nothing was changed.
        Unavailable
            The process has become one of several ranks.
        Error
            A lane of an earlier step failed; lane and weight are named. Final.
        """
        self._check_open()
        self._check_surroundings()
        self._watch.check_held()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._watch.check_step(self.param_groups)
        self._hooks.backward.refuse_elsewhere("step()")
        self._refuse_lost()
        self._refuse_spent()
        self._drop_if_removed()
        self._note_zeros()
        self._foreign.check_step()
        self._dropped.check_zeros(self._hooks.taken)
        updates = self._ordinary.updates(self.param_groups, self.state)
        scale = 1.0 / self.loss_scale.value
        shared, own = self._clipping.factors() if self._standing.gathered else (1.0, [])
        squares = self._ordinary.sum_squares() * scale * scale  # Waits for the backward, here.
        self.sentinel.settle()
        # Kept until the next step: lanes write to this storage, even if somebody replaces `.data`.
        self._stepping[:] = weights = self.of_engine.tensors()
        given = self._standing.given
        try:
            skipped, norm, clip = self._enqueue(weights, shared * scale, own, scale, squares)
            if not skipped:
                self._ordinary.step(updates, self.state, clip * scale)
                self.of_engine.increment_versions(given)
        finally:
            if not self.engine.has_gradient():  # Else it has refused, and nothing was enqueued.
                self._use_up()
            self._in_flight.take_off()
        self._standing.overflowed = skipped
        self._standing.skipped_steps += skipped
        self.loss_scale.update(skipped)
        self._stepped()
        self._clock.step(norm)
        self._land_for_graphs()
        return loss

    def _use_up(self) -> None:
        """The engine has used its gradients; the sentinel stays until somebody zeroes it."""
        standing = self._standing
        standing.spent = standing.spent or bool(standing.given)
        standing.given, standing.gathered = set(), False

    def _land_for_graphs(self) -> None:
        """A compiled graph reads weights without waiting, and finds every update applied."""
        if self._compilation.check():
            self._in_flight.synchronize()
            self.before_forward(True)  # The hook of the model may be inside of a graph.

    @torch.compiler.disable
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop every gradient, what was gathered of them too."""
        if self._is_open() and not self._in_flight.forked():
            self._hooks.backward.refuse_elsewhere("zero_grad()")
            self._zero_gathered(set_to_none)
        super().zero_grad(set_to_none)
