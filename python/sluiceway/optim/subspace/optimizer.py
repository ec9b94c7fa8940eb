"""SubspaceAdamW: AdamW whose gradients are compressed before they leave the device."""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from sluiceway import _core
from sluiceway.config.values import Budget, Link, Refresh
from sluiceway.errors import InvalidArgument
from sluiceway.model.targets import select_weights
from sluiceway.optim.hooks import ModelHooks
from sluiceway.optim.ordinary import OrdinaryParameters
from sluiceway.optim.sentinel import Sentinel
from sluiceway.optim.step_clock import StepClock
from sluiceway.optim.subspace.arguments import (
    check_arguments,
    check_hyperparameters,
    engine_for,
    parameter_bytes,
    plain_numbers,
    residual_at_once,
    trainable_groups,
)
from sluiceway.optim.subspace.state import check_state, engine_state, numbered_parameters, restore


class SubspaceAdamW(torch.optim.Optimizer):
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
    codec : str
        "auto" (svd where its projectors fit the device budget, else block_random), "svd",
        "block_random", "block_pca", "sparse_learned", "sparse_random", "identity" or "none".
    ratio : float
        f in (0, 1]: cores are round(f m) x round(f n).
    d : int, optional
        Square d x d cores instead, for sparse families.
    nnz, block : int
        Nonzeros a row of sparse projectors; rows per group of block projectors.
    residual : str
        What is done with the part of the gradient that the codec leaves: "factored" trains with it
        on the device, as Adafactor does, "sign" by its sign, "none" drops it. "auto" is factored
        for codecs with orthonormal columns and for "none", else none. While it waits for `step()`
        the gradient stays on the device; see `accumulate`.
    residual_every : int
        Steps between the residuals of a weight, each the square root of that as large.
    second_moment : str
        "full", or "factored": of a core's second moment only the means of rows and columns are
        kept, which halves the state on the host. "auto" is factored for codecs with orthonormal
        columns, where `experiments/fidelity` found no loss, else full.
    scale : float or "auto"
        Factor on the compressed update; "auto" is 1/f for orthonormal codecs.
    refresh : Refresh, optional
        When projectors are measured and replaced.
    schedule : str
        "edf", "fcfs", "paper" or "barrier"; the bits are the same.
    wire : str
        "bf16", "fp32" or "int8": the format in which cores cross the link.
    tier : str
        "host", or "device": AdamW on the core runs on the device and nothing crosses.
    norm_mode : str
        "auto", "exact" or "speculative"; the bits are the same.
    weight_update : str
        "auto", "stochastic" or "residual", for 16-bit weights.
    target : str or sequence of str
        "all-linear", a regular expression or parameter names.
    embeddings : str
        "frozen" or "identity".
    device : str
        "auto" or "host".
    link : Link, optional
        Throttle of the link between device and host.
    budget : Budget, optional
        Bytes per tier.
    accumulate : int or "auto"
        Backwards per step. "auto": any number works; a wrong forecast is noticed and costs one more
        transfer. A number is a promise: residuals are then applied, and gradients freed, during the
        last backward, where neither `zero_grad()` nor a skipped step undoes them, one more backward
        is refused, and a save belongs after `step()`. Under autocast(float16) they wait all the
        same, and follow what scales the gradient, clipping included; a promise beside a GradScaler
        is refused otherwise, at its first step.
    loss_scale : None, "dynamic" or float
        Scale for `scale_loss()`, removed inside `step()`; not needed with GradScaler.
    seed : int
        Of projectors and stochastic rounding.
    param_groups : iterable of dict, optional
        As torch's; default is one group of all trainable parameters.
    trace : path, optional
        Write a Chrome/Perfetto trace there at `close()`.

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
        codec: str = "auto",
        ratio: float = 0.25,
        d: int | None = None,
        nnz: int = 4,
        block: int = 32,
        residual: str = "auto",
        residual_every: int = 1,
        second_moment: str = "auto",
        scale: float | str = "auto",
        refresh: Refresh | None = None,
        schedule: str = "edf",
        wire: str = "bf16",
        tier: str = "host",
        norm_mode: str = "auto",
        weight_update: str = "auto",
        target: str | Sequence[str] = "all-linear",
        embeddings: str = "frozen",
        device: str = "auto",
        link: Link | None = None,
        budget: Budget | None = None,
        accumulate: int | str = "auto",
        loss_scale: str | float | None = None,
        seed: int = 0,
        param_groups: Iterable[dict[str, Any]] | None = None,
        trace: str | os.PathLike | None = None,
        _pin: tuple[int, int] | None = None,
        _residual_max_rms: float = 1.0,
    ) -> None:
        arguments = {k: v for k, v in locals().items() if k not in ("self", "__class__", "model")}
        self._closed = True  # Until everything below has worked.
        check_arguments(arguments)
        arguments = plain_numbers(arguments)
        self._trace_path = None if trace is None else os.fspath(trace)
        self.arguments = arguments
        selection = select_weights(model, target, embeddings)
        self.frozen = selection.frozen
        groups = trainable_groups(model, param_groups, {id(p) for _, p in selection.frozen})
        trained = {id(p) for group in groups for p in group["params"]}
        self.weights = [w for w in selection.compressed if id(w.parameter) in trained]
        self._ordinary = OrdinaryParameters(
            [(name, p) for name, p in selection.ordinary if id(p) in trained], seed
        )
        self.loss_scale = _loss_scale(loss_scale)
        _core.count_host_allocations()
        self.engine = engine_for(model, self.weights, arguments)
        for index, weight in enumerate(self.weights):
            if len(weight.modules) > 1:
                self.engine.hold_residual(index)
        self._fixed_groups = False
        super().__init__(
            groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        )
        self._fixed_groups = True
        for _, parameter in self.frozen:
            parameter.requires_grad_(False)
        self.sentinel = Sentinel(min((w.parameter for w in self.weights), key=torch.numel))
        self._scale = 0.0 if scale == "auto" else float(scale)
        self._clock = StepClock(self.engine, parameter_bytes(model))
        self._refresh = refresh
        self._residuals = [self.engine.describe(i)["residual"] != "none" for i in self._indices()]
        self._residual_at_once = any(self._residuals) and residual_at_once(arguments)
        self._scaled_loss = False
        self.engine.enable_trace(trace is not None)
        self.overflowed = False
        self.skipped_steps = 0
        self._gathered = False  # Cores are accumulated, and the sentinel stands for them.
        self.calibrating = False
        self._opened_in = os.getpid()
        self._hooks = ModelHooks(self, model, self.weights)
        self._closed = False

    # ---- Called by the hooks ----

    def begin_backward(self) -> None:
        """First gradient of a backward: a sentinel that somebody removed means zero_grad()."""
        if self.calibrating:
            return
        self._drop_if_zeroed()
        if self._gathered:
            self.sentinel.check_unscaled()
        self.sentinel.remove()
        self._gathered = False  # Until end_backward(): no sentinel stands for the cores.
        if self._residual_at_once:
            self._early = [w.parameter.detach() for w in self.weights]  # Kept: the engine reads it.
            self.engine.prepare(self._hypers(), self._early)

    def abandon_backward(self) -> None:
        """A backward raised: what the step has gathered is not whole, and goes."""
        self._hooks.abandon_backward()
        self.sentinel.remove()
        self.engine.drop()
        self._gathered = False

    def end_backward(self) -> None:
        """All gradients of a backward are in: place the sentinel that stands for them."""
        if self.calibrating:
            return
        norm, _ = self.engine.end_backward()
        self.sentinel.place(norm)
        self._gathered = True
        self._clock.backward(self._hooks.forward_began_us, self._hooks.backward_began_us)

    def has_residual(self, index: int) -> bool:
        """Whether a weight is trained with what its codec leaves too."""
        return self._residuals[index]

    def expect_scaled_loss(self) -> None:
        """Gradients are scaled, by how much only `step()` learns."""
        if not self._scaled_loss:
            for index in self._indices():
                self.engine.hold_residual(index)
            self._scaled_loss = True

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Asked by torch's GradScaler before it calls `step()`: that is how it is noticed."""
        asking = sys._getframe(1).f_locals.get("self")
        if not isinstance(asking, torch.amp.GradScaler):
            return False
        if self._residual_at_once and not self._scaled_loss:
            raise InvalidArgument(
                "SubspaceAdamW: a GradScaler scales the gradients, but accumulate="
                f"{self.arguments['accumulate']} lets residuals train before it unscales them; "
                "expected accumulate='auto'"
            )
        self.expect_scaled_loss()
        return False

    def before_forward(self, training: bool) -> None:
        """A forward of the whole model begins."""
        self._drop_if_zeroed()
        refresh = self._refresh
        closure_due = refresh is not None and refresh.closure is not None and training
        free = closure_due and not self.calibrating and not self.engine.has_gradient()
        if free and self.engine.calibration_due():
            self._calibrate(refresh.closure)

    def _drop_if_zeroed(self) -> None:
        # model.zero_grad() leaves no other trace; so does a step that GradScaler left out.
        if self._gathered and self.sentinel.vanished():
            self._hooks.drop_totals()
            self.engine.drop()
            self._gathered = False

    def _calibrate(self, closure: Callable[[], torch.Tensor]) -> None:
        gradients = self._ordinary.gradients()
        self.sentinel.remove()
        self.engine.begin_calibration()
        self.calibrating = True
        try:
            with torch.enable_grad():
                closure().backward()
        finally:
            self.calibrating = False
            self.engine.end_calibration()
            for parameter, gradient in gradients:
                parameter.grad = gradient

    # ---- torch.optim.Optimizer ----

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
            A parameter changed shape or dtype, or gradients were clipped by value.
        Error
            A lane of an earlier step failed; lane and weight are named. Final.
        """
        self._check_open()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._drop_if_zeroed()
        self._refuse_foreign_gradients()
        scale = 1.0 / self.loss_scale.value
        factor = self.sentinel.factor() * scale if self._gathered else scale
        squares = self._ordinary.sum_squares() * scale * scale
        # Kept until the next step: lanes write to this storage, even if somebody replaces `.data`.
        self._stepping = weights = [w.parameter.detach() for w in self.weights]
        unscale = factor if self._scaled_loss else scale
        skipped, norm, clip = self.engine.step(self._hypers(), weights, factor, squares, unscale)
        self._hooks.lend_totals()
        if not skipped:
            self._ordinary.step(self.param_groups, self.state, clip * scale)
            for weight in weights:
                torch.autograd.graph.increment_version(weight)
        self.overflowed = skipped
        self.skipped_steps += skipped
        self.loss_scale.update(skipped)
        self.sentinel.remove()
        self._gathered = False
        self._clock.step(norm)
        return loss

    def _refuse_foreign_gradients(self) -> None:
        # Cores are made in backward: a gradient that was assigned would never be used.
        for weight in self.weights:
            if weight.parameter.grad is not None and not self.sentinel.stands_at(weight.parameter):
                raise InvalidArgument(
                    f"SubspaceAdamW.step: {weight.name} has a .grad that no backward() gave it, "
                    "expected None; call backward() instead of assigning .grad"
                )

    def _hypers(self) -> list[tuple[float, ...]]:
        of_parameter = {}
        for group in self.param_groups:
            hyper = (group["lr"], *group["betas"], group["eps"], group["weight_decay"], self._scale)
            of_parameter.update((id(p), tuple(map(float, hyper))) for p in group["params"])
        return [of_parameter[id(w.parameter)] for w in self.weights]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop every gradient, accumulated cores too."""
        if not self._closed and (self._gathered or self.engine.has_gradient()):
            self.abandon_backward()
        super().zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """State of every parameter and of the engine; loads under `weights_only=True`."""
        self._check_open()
        self.synchronize()
        state_dict = super().state_dict()
        state_dict["state"] = copy.deepcopy(state_dict["state"])  # As those of the weights below.
        numbers = {id(p): i for i, p in enumerate(numbered_parameters(self.param_groups))}
        for index, weight in enumerate(self.weights):
            state = self.engine.weight_state(index)
            state_dict["state"][numbers[id(weight.parameter)]] = state
        state_dict["sluiceway"] = engine_state(self)
        return state_dict

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a `state_dict()`; training goes on from it bit for bit."""
        self._check_open()
        check_state(self, state_dict)
        before = self.state_dict()
        try:
            self._restore(state_dict)
        except Exception:
            self._restore(before)  # A state that turns out broken half-way changes nothing.
            raise

    def _restore(self, state_dict: dict[str, Any]) -> None:
        # torch's version would cast f32 moments to the dtype of a 16-bit parameter.
        super().load_state_dict({**state_dict, "state": {}})
        restore(self, state_dict)

    def __getstate__(self) -> dict[str, Any]:
        raise InvalidArgument(
            "SubspaceAdamW: cannot be copied or pickled, as it holds threads and hooks of its "
            "model, expected state_dict(); load that into an optimizer made for the other model"
        )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's, while the optimizer is being made; refused afterwards."""
        if getattr(self, "_fixed_groups", False):
            raise InvalidArgument(
                "SubspaceAdamW.add_param_group: the engine is built, expected all groups in the "
                "constructor; pass param_groups="
            )
        super().add_param_group(param_group)
        check_hyperparameters(self.param_groups[-1])

    # ---- Beyond torch's interface ----

    def scale_loss(self, loss: torch.Tensor) -> torch.Tensor:
        """`loss` times the loss scale that `step()` removes again."""
        return loss * self.loss_scale.value

    def synchronize(self) -> None:
        """Wait until every enqueued step is applied to the weights."""
        self._check_open()
        self.engine.synchronize()
        self._hooks.take_back_totals()

    def stats(self) -> dict[str, Any]:
        """Numbers of the last step: seconds, bytes per link, peak bytes per tier, norm."""
        return {
            **self._clock.stats(),
            "skipped": self.overflowed,
            "skipped_steps": self.skipped_steps,
            "loss_scale": self.loss_scale.value,
        }

    def describe(self) -> list[dict[str, Any]]:
        """Codec, core shape and bytes of each compressed weight."""
        return [self.engine.describe(index) for index in self._indices()]

    def _indices(self) -> range:
        return range(len(self.weights))

    def close(self) -> None:
        """Apply what is enqueued, write the trace, take the hooks away; idempotent."""
        if self._closed or os.getpid() != self._opened_in:
            return
        self._closed = True
        self._release_model()
        self.engine.drop()
        self.engine.synchronize()
        if self._trace_path is not None:
            self.engine.write_trace(self._trace_path)

    def _release_model(self) -> None:
        self._hooks.remove()
        self.sentinel.release()
        for _, parameter in self.frozen:
            parameter.requires_grad_(True)

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidArgument("SubspaceAdamW: it is closed, expected an open optimizer")

    def __enter__(self) -> SubspaceAdamW:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True) and os.getpid() == self._opened_in:
            self._release_model()
            self.engine.finish()  # While the weights are certainly alive.


def _loss_scale(value: str | float | None) -> _core.LossScale:
    if value is None:
        return _core.LossScale("off")
    if value == "dynamic":
        return _core.LossScale("dynamic")
    if isinstance(value, str):
        raise InvalidArgument(f"loss_scale: is {value!r}, expected None, 'dynamic' or a number")
    return _core.LossScale("static", float(value))
