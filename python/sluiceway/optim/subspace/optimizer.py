"""SubspaceAdamW: AdamW whose gradients are compressed before they leave the device."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from sluiceway import _core
from sluiceway.config.options import refuse_unknown
from sluiceway.errors import InvalidArgument
from sluiceway.optim.documented import takes
from sluiceway.optim.hooked_optimizer import HookedOptimizer
from sluiceway.optim.subspace.arguments import SubspaceArguments, engine_for, residual_at_once
from sluiceway.optim.subspace.calibration import Calibration
from sluiceway.optim.subspace.residual_gradients import ResidualGradients
from sluiceway.optim.subspace.state import (
    check_engine_state,
    engine_state,
    restore_engine_state,
)


@takes(SubspaceArguments)
class SubspaceAdamW(HookedOptimizer):
    """AdamW on compressed gradients, with moments and update on the host, layer by layer.

    For each compressed weight W (m x n): S = P^T G Q leaves the device during backward, AdamW runs
    on the small core S on the host, and W += -lr scale P D Q^T is applied before the weight's next
    forward [LSP-Offload, arXiv 2406.10181]. Norms, biases and small weights are trained with AdamW
    on the device. Embeddings and head are frozen unless `embeddings="identity"`.

    What differs from torch's own optimizers: updates are applied while the next forward already
    runs, each before its layer, so whoever reads a parameter outside of its model (`p.data`, an
    average of weights, `copy.deepcopy(model)`) calls `synchronize()` first; `model.state_dict()`
    does that by itself. `step()` uses up the gradients of compressed weights, with or without
    `zero_grad()`. Neither the optimizer nor, while it is open, its model can be pickled.

    Parameters
    ----------
    model : torch.nn.Module
        Its trainable parameters are taken; hooks are registered on it until `close()`.
    lr, betas, eps, weight_decay
        As in torch.optim.AdamW; mutable in `param_groups`.
    max_norm : float, optional
        Clip the common norm of all gradients at this value inside `step()`.
    param_groups : iterable of dict, optional
        As torch's; default is one group of all trainable parameters.
    {options}

    Raises
    ------
    InvalidArgument, OutOfMemory, Unavailable
        Nothing was changed.
    """

    def __init__(
        self,
        model: nn.Module,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        max_norm: float | None = None,
        *,
        param_groups: Iterable[dict[str, Any]] | None = None,
        **options: Any,
    ) -> None:
        name = type(self).__name__
        refuse_unknown(name, options, inspect.signature(SubspaceAdamW.__init__).parameters)
        checked = SubspaceArguments.checked(name, {"max_norm": max_norm, **options})
        adam = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(model, adam, checked, param_groups)

    def _make_engine(self, model: nn.Module) -> _core.SubspaceEngine:
        options = self.options
        engine = engine_for(model, self.weights, options)
        for index, weight in enumerate(self.weights):
            if len(weight.modules) > 1:
                engine.hold_residual(index)
        indices = range(len(self.weights))
        self._residuals = [engine.describe(i)["residual"] != "none" for i in indices]
        self._residual_at_once = any(self._residuals) and residual_at_once(options)
        self._gradients = ResidualGradients()
        closure = getattr(options.refresh, "closure", None)  # A file's policy has none.
        self._calibration = Calibration(engine, closure, self._ordinary)
        self._residuals_kept = 0
        self._scale = 0.0 if options.scale == "auto" else options.scale
        return engine

    # ---- GradientSink ----

    def before_forward(self, training: bool) -> None:
        """A forward of the whole model begins."""
        super().before_forward(training)
        if training and self._calibration.due():
            self.sentinel.remove()
            self._calibration.run()

    def wait(self, weight: int) -> None:
        """Come back when the last update of a weight is applied."""
        super().wait(weight)
        self._gradients.take_back(weight)

    def used_again(self, weight: int) -> None:
        """Its residual waits for the sum of its gradients, whatever was promised."""
        self.engine.hold_residual(weight)

    def expect_scaled_loss(self) -> None:
        """Residuals wait until `step()` knows the scale."""
        if not self._scaled_loss:
            for index in range(len(self.weights)):
                self.engine.hold_residual(index)
        super().expect_scaled_loss()

    def begin_backward(self) -> None:
        """As every backward; with a promise, the engine may update weights while it runs."""
        self._calibration.begin_backward()
        if self._calibration.running:
            return
        super().begin_backward()
        if self._residual_at_once:
            self._early = [w.parameter.detach() for w in self.weights]  # Kept: the engine reads it.
            self.engine.prepare(self._hypers(self._scale), self._early)

    def add_gradient(self, weight: int, gradient: torch.Tensor) -> None:
        """Compress it; the whole of it is kept for as long as its residual needs it."""
        if self._calibration.running or not self._residuals[weight]:
            self.engine.add_gradient(weight, gradient, gradient)
        else:
            total = self._gradients.add(weight, gradient)
            self.engine.add_gradient(weight, gradient, total)
            if self.engine.residual_done(weight):
                self._gradients.done(weight)
        self._calibration.after_gradient()

    def end_backward(self, forward_began_us: float, backward_began_us: float) -> None:
        """As every backward, but a calibration's."""
        if not self._calibration.running:
            super().end_backward(forward_began_us, backward_began_us)

    def _drop(self) -> None:
        self._gradients.drop()
        super()._drop()

    def _refuse_scaler(self) -> None:
        if self._residual_at_once and not self._scaled_loss:
            raise InvalidArgument(
                "SubspaceAdamW: a GradScaler scales the gradients, but accumulate="
                f"{self.options.accumulate} lets residuals train before it unscales them; "
                "expected accumulate='auto'"
            )

    # ---- HookedOptimizer ----

    def _enqueue(
        self, weights: list[torch.Tensor], factor: float, unscale: float, squares: float
    ) -> tuple[bool, float, float]:
        # Whole gradients do not follow what others did to the sentinel, but for a scaler's part.
        of_residuals = factor if self._scaled_loss else unscale
        hypers = self._hypers(self._scale)
        skipped, norm, clip, self._residuals_kept = self.engine.step(
            hypers, weights, factor, squares, of_residuals
        )
        self._gradients.lend()
        return skipped, norm, clip

    def watch_calibration(self, watch: Callable[[int, int], None]) -> None:
        """Tell `watch`, while projectors are fitted to their first gradients, how many of how many.

        It is called inside the first backward, between two weights.
        """
        self._calibration.watch = watch

    def synchronize(self) -> None:
        """Wait until every enqueued step is applied to the weights."""
        super().synchronize()
        self._gradients.take_back_all()

    def stats(self) -> dict[str, Any]:
        """Numbers of the last step: as of every engine, and of projectors."""
        raw = self._clock.raw
        return {
            **super().stats(),
            "learn_seconds": raw["learn_seconds"],
            "subspace": {
                "bias_mean": raw["bias_mean"],
                "refreshed": raw["refreshed"],
                "residuals_kept": self._residuals_kept,
            },
        }

    def _own_state(self) -> dict[str, Any]:
        return engine_state(self)

    def _check_own_state(self, state_dict: dict[str, Any]) -> None:
        check_engine_state(self, state_dict)

    def _restore_own_state(self, state_dict: dict[str, Any]) -> None:
        restore_engine_state(self, state_dict)
        self._calibration.restart()
