"""SubspaceAdamW: AdamW whose gradients are compressed before they leave the device."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from sluiceway import _core
from sluiceway.base.columns import WeightTable
from sluiceway.config.options import refuse_unknown
from sluiceway.errors import InvalidArgument
from sluiceway.model.targets import Selection, embedding_parameters, select_weights
from sluiceway.optim.common import torch_private
from sluiceway.optim.common.documented import documents_options
from sluiceway.optim.common.engine_optimizer import EngineOptimizer
from sluiceway.optim.common.parameters import check_group
from sluiceway.optim.common.ranks import Ranks, facts_of
from sluiceway.optim.common.repeated_blocks import RepeatedBlocks
from sluiceway.optim.subspace.arguments import (
    SubspaceArguments,
    engine_for,
    residual_at_once,
    resolve_embeddings,
    resolve_weight_rates,
)
from sluiceway.optim.subspace.calibration import Calibration
from sluiceway.optim.subspace.choices import reasons
from sluiceway.optim.subspace.early_residuals import EarlyResiduals
from sluiceway.optim.subspace.fused.fusing import FusedLinears, fuse_own
from sluiceway.optim.subspace.residual_gradients import ResidualGradients
from sluiceway.optim.subspace.shared_gradients import SharedGradients
from sluiceway.optim.subspace.state import (
    check_engine_state,
    engine_state,
    restore_engine_state,
)
from sluiceway.optim.subspace.weight_rates import weight_factors, with_factors

# Options by which ranks may differ: places, and how much of its own memory each one takes.
_OF_EACH_RANK = {
    **dict.fromkeys(["device", "link", "budget", "trace", "pin", "lane_threads"], True),
    "refresh": {"closure"},
}
_ZERO = 1e-20  # A factor on residuals, which divide by it; beside eps such a residual vanishes.


@documents_options(
    SubspaceArguments,
    "codec", "ratio", "target", "embeddings", "tokens_per_step", "total_steps", "accumulate",
    "activations", "device", "budget", "loss_scale", "seed",
)  # fmt: skip
class SubspaceAdamW(EngineOptimizer):
    """AdamW on compressed gradients, with moments and update on the host, layer by layer.

    For each compressed weight W (m x n): S = P^T G Q leaves the device during backward, AdamW runs
    on the small core S on the host, and W += -lr scale P D Q^T is applied before the weight's next
    forward [LSP-Offload, arXiv 2406.10181]. The residual, the part of G that S leaves out, trains W
    on the device, without a first moment and without crossing the link. codec="auto" gives a weight
    a core only where measurements showed a gain. Each slice of a 3-D parameter, for example of
    experts, is such a weight. AdamW on the device trains norms, biases and small weights;
    `uncompressed` lists the groups of them with more than 1 % of all elements, and why. Embeddings
    and head have no core, unless `embeddings="identity"` sends their whole gradients.

    docs/contract.md lists on one page how this differs from torch's own optimizers. `.grad` of a
    compressed weight has the norm of the gradient and not its values. The runtime applies updates
    while the next forward runs, and every read of a weight through torch's functions waits for its
    update.

    Parameters
    ----------
    model : torch.nn.Module
        The optimizer trains its trainable parameters, and keeps hooks on it until `close()`.
    lr, betas, eps, weight_decay
        As in torch.optim.AdamW; mutable in `param_groups`.
    max_norm : float, optional
        Clip the common norm of all gradients at this value inside `step()`. Neither this nor any
        other clipping or scaling of gradients changes residuals: the update of each is limited to
        a root mean square of 1 by itself. So weights without a core, the most frequent choice of
        codec="auto", are not clipped.
    param_groups : iterable of dict, optional
        Groups as in torch; default is one group of all trainable parameters. The optimizer trains
        the parameters in its groups, and does not touch any other parameter.
    {options}

    Raises
    ------
    InvalidArgument, OutOfMemory, Unavailable
        The constructor changed nothing.
    """

    _groups_are_written = True  # The user chose by these groups what to train.

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
        refuse_unknown(name, options, SubspaceArguments.keywords())
        checked = SubspaceArguments.checked(name, {"max_norm": max_norm, **options})
        adam = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(model, adam, checked, param_groups)
        self.fused_linears: FusedLinears | None = None
        if checked.fused:
            fuse_own(model, self)

    def _take_ranks(self, model: nn.Module) -> Ranks:
        """Return the ranks, after comparing weights and options with the other ones."""
        ranks = Ranks(self._owner)
        if ranks.count > 1:
            options = self.options.model_dump(exclude=_OF_EACH_RANK)
            ranks.check_alike(facts_of(model) | options)
        return ranks

    def _select(self, model: nn.Module, wanted: Collection[int], grouped: bool) -> Selection:
        """Select what to compress; groups that the user wrote must not have what is frozen."""
        options = self.options
        if grouped and self._groups_are_written and options.embeddings == "frozen":
            for name, parameter in embedding_parameters(model):
                if id(parameter) in wanted:
                    raise InvalidArgument(
                        f"{self._owner}: {name} is in param_groups, but embeddings='frozen'; "
                        "leave it out of the groups, or leave embeddings= out to train it"
                    )
        return select_weights(model, options.target, resolve_embeddings(options), wanted)

    def _make_engine(self, model: nn.Module) -> _core.SubspaceEngine:
        options = self.options
        several = self.ranks.count > 1
        engine = engine_for(model, self.weights, options, self.device, several)
        for index, weight in enumerate(self.weights):
            if len(weight.modules) > 1:
                self._hold_residuals(engine, self.of_engine.numbers(index))
        numbers = range(len(self.of_engine))
        has_residuals = any(engine.describe(n)["residual"] != "none" for n in numbers)
        self._residual_at_once = has_residuals and residual_at_once(options) and not several
        self._gradients = ResidualGradients(self.device)
        self._shared = SharedGradients(
            self.ranks,
            engine,
            self.of_engine,
            self._gradients,
            self._ordinary,
            self.device,
            0 if options.accumulate == "auto" else options.accumulate,
        )
        self._early = EarlyResiduals(self._owner, engine, self.of_engine.names, options.accumulate)
        closure = getattr(options.refresh, "closure", None)  # A policy from a file has no closure.
        self._calibration = Calibration(engine, closure, model, self.weights)
        self._scale = 0.0 if options.scale == "auto" else options.scale
        rates = resolve_weight_rates(options, options.weight_rates)
        self._has_own_rates = rates == "rms"
        self.rate_factors = self._factors_of_rates()
        return engine

    def _factors_of_rates(self) -> list[float]:
        """Return the factor of each of the engine's weights; 1 for embeddings and head."""
        if not self._has_own_rates:
            return [1.0] * len(self.of_engine)
        fixed = self.of_engine.spread(w.is_embedding for w in self.weights)
        matrices = self.of_engine.tensors()
        sized = [m for m, f in zip(matrices, fixed, strict=True) if not f]
        factors = iter(weight_factors(sized))
        return [1.0 if f else next(factors) for f in fixed]

    def _hypers(self, *more: float) -> list[tuple[float, ...]]:
        hypers = super()._hypers(*more)
        if not self._has_own_rates:
            return hypers
        return with_factors(hypers, self.rate_factors)

    @staticmethod
    def _hold_residuals(engine: _core.SubspaceEngine, numbers: range) -> None:
        for number in numbers:
            engine.hold_residual(number)

    # ---- Calls from the model's hooks ----

    def before_forward(self, training: bool) -> None:
        """Begin a forward of the whole model, and calibrate first if that is due."""
        super().before_forward(training)
        if self.ranks.count > 1:
            self._shared.of_others = torch_private.reduced_now() or self._shared.of_others
        if training and not self._in_flight.forked() and self._calibration.due():
            with self._hooks.backward.reserved(), self.carrier.aside():
                self._calibration.run()

    def used_again(self, weight: int) -> None:
        """Let a weight's residual wait for the sum of its gradients, even if `accumulate` is 1."""
        self._hold_residuals(self.engine, self.of_engine.numbers(weight))

    def expect_scaled_loss(self) -> None:
        """Let residuals wait for `step()`, which knows the loss scale."""
        if not self._progress.scaled_loss:
            self._hold_residuals(self.engine, range(len(self.of_engine)))
        super().expect_scaled_loss()

    def begin_backward(self) -> None:
        """Begin a backward; if `accumulate` is set, the engine may update weights while it runs."""
        self._calibration.begin_backward()
        if self._calibration.running:
            return
        super().begin_backward()
        if self._residual_at_once:
            for group in self.param_groups:
                check_group(f"{self._owner}.backward", group)
            weights = self.of_engine.tensors()
            self._early.prepare(super()._hypers(), self._hypers(self._scale), weights)

    def add_gradient(self, weight: int, gradient: torch.Tensor) -> None:
        """Compress a gradient, and keep the whole gradient for as long as its residual needs it."""
        if not self._calibration.running:
            self._progress.given.add(weight)
            self._shared.added(weight)
        matrices = self.weights[weight].matrices(gradient)
        for number, matrix in zip(self.of_engine.numbers(weight), matrices, strict=True):
            self._add_matrix(number, matrix)
            self._calibration.after_gradient()

    def add_core(self, weight: int, core: torch.Tensor, whole: bool) -> None:
        """Take a core that a fused layer made in place of a gradient; `whole`: none follows."""
        self._progress.given.add(weight)
        if whole:
            self._shared.added(weight)
        (number,) = self.of_engine.numbers(weight)
        self.engine.add_core(number, core, whole, self.device.compute())

    @property
    def calibrating(self) -> bool:
        """Return whether a calibration runs, whose gradients train nothing."""
        return self._calibration.running

    def _add_matrix(self, number: int, gradient: torch.Tensor) -> None:
        self._shared.calibrate(number, gradient)
        if self._calibration.running or not self.engine.keeps_total(number):
            self.engine.add_gradient(number, gradient, gradient, self.device.compute())
            return
        total = self._gradients.added(number, gradient)
        self.engine.add_gradient(number, gradient, total, self.device.compute())
        if not self.engine.residual_done(number):
            self._gradients.keep(number, total)

    def end_backward(self, forward_began: Any, backward_began: Any) -> None:
        """End a backward; do nothing for the backward of a calibration."""
        if not self._calibration.running:
            super().end_backward(forward_began, backward_began)

    def _end_gathering(self) -> None:
        self.engine.end_backward()
        self._shared.end_backward(self._progress.given)

    def _averages_late(self) -> bool:
        return self._shared.is_late

    def _average_gradients(self, agreed: bool = False) -> None:
        self._shared.average(self._progress.given, agreed)

    def _take_model(self, model: nn.Module, repeated: RepeatedBlocks) -> ExitStack:
        with super()._take_model(model, repeated) as undo:
            if self.ranks.count > 1:
                undo.callback(torch_private.leave_to_optimizer(model, self._names_for_ddp(model)))
            return undo.pop_all()

    def _names_for_ddp(self, model: nn.Module) -> list[str]:
        """Return all names of parameters that a DDP shall leave alone; it needs one to average."""
        ours = {id(p) for group in self.param_groups for p in group["params"]}
        others = any(p.requires_grad and id(p) not in ours for p in model.parameters())
        if self._ordinary.named and not others:
            ours.discard(id(self._ordinary.named[0][1]))  # Every forward uses first layers.
        named = model.named_parameters(remove_duplicate=False)  # DDP goes by each name.
        return [name for name, p in named if id(p) in ours]

    def _norms_later(self) -> Callable[[], list[float]]:
        shared, given, norms = self._shared, self._progress.given, super()._norms_later()

        def averaged() -> list[float]:
            shared.average(given)
            return norms()

        return averaged

    def _use_up(self) -> None:
        super()._use_up()
        self._shared.forget()

    def lose_gradient(self, weight: int) -> None:
        """Remember a lost gradient, except of a calibration, which trains nothing."""
        if not self._calibration.running or self._hooks.backward.elsewhere():
            super().lose_gradient(weight)

    def _drop(self) -> None:
        trained = self._early.trained()
        self._gradients.drop()
        self._shared.forget()
        if self.fused_linears is not None:
            self.fused_linears.bias.drop()
        super()._drop()
        self._early.warn(trained, "the gradients of a backward were dropped without step()")

    def _refuse_scaler(self) -> None:
        if self._residual_at_once and not self._progress.scaled_loss:
            raise InvalidArgument(
                "SubspaceAdamW: a GradScaler scales the gradients, but accumulate="
                f"{self.options.accumulate} lets residuals train before it unscales them; "
                "use accumulate='auto'"
            )

    # ---- EngineOptimizer ----

    def _landed(self) -> Callable[[int], None]:
        gradients, of_engine = self._gradients, self.of_engine

        def take_back(weight: int) -> None:
            for number in of_engine.numbers(weight):
                gradients.take_back(number)

        return take_back

    def _lent(self) -> Callable[[], list[torch.Tensor]]:
        gradients, stepping = self._gradients, super()._lent()
        return lambda: [*stepping(), *gradients.lent.values()]

    def _enqueue(
        self,
        weights: list[torch.Tensor],
        factor: float,
        own_factors: list[float],
        unscale: float,
        squares: float,
    ) -> tuple[bool, float, float]:
        if self._residual_at_once:
            self._early.check(super()._hypers())
        self._refuse_zeros_in_part(factor, own_factors)
        # Whole gradients ignore what you did to the norms, except a GradScaler's factor and zeros.
        of_residuals = factor if self._progress.scaled_loss else unscale
        if factor == 0:
            of_residuals = _ZERO
            self._early.warn(self._early.trained(), "gradients were zeroed before step()")
        hypers = self._hypers(self._scale)
        own = self.of_engine.spread(own_factors) if own_factors else []
        skipped, norm, clip, kept = self.engine.step(
            hypers, weights, factor, squares, of_residuals, own, self.device.compute()
        )
        self._gradients.lend(kept)
        if self.fused_linears is not None:
            self.fused_linears.bias.end_step()
        return skipped, norm, clip

    def _refuse_zeros_in_part(self, factor: float, own_factors: list[float]) -> None:
        """Refuse gradients of which some were set to 0, as residuals still train their weights."""
        if factor == 0 or 0.0 not in own_factors:
            return
        for weight, own in zip(self.weights, own_factors, strict=True):
            numbers = self.of_engine.numbers(self.weights.index(weight))
            kinds = (self.engine.describe(number)["residual"] for number in numbers)
            if own == 0 and any(kind != "none" for kind in kinds):
                raise InvalidArgument(
                    f"{self._owner}.step: the gradient of {weight.name} was zeroed and others were "
                    "not, but the residual of a weight does not follow its norm and would still "
                    "train it; freeze a part by requires_grad_(False) before the forward"
                )

    def describe(self) -> WeightTable:
        """Describe each weight; `why` is the reason for its codec. `print` shows a table."""
        described = zip(super().describe(), reasons(self), strict=True)
        return WeightTable({**costs, "why": why} for costs, why in described)

    def watch_calibration(self, watch: Callable[[int, int], None]) -> None:
        """Report the first fits of projectors: `watch(fitted, total)` is called for each.

        The calls come inside the first backward, between two weights.
        """
        self._calibration.watch = watch

    def stats(self) -> dict[str, Any]:
        """Return the numbers of the last step, including the numbers of projectors."""
        raw = self._clock.raw
        bias = raw["bias_mean"]  # Measured on gradients; without these, on sampled tokens.
        if bias is None and self.fused_linears is not None:
            bias = self.fused_linears.bias.last
        return {
            **super().stats(),
            "recalled": raw["recalled"],
            "learn_seconds": raw["learn_seconds"],
            "subspace": {
                "bias_mean": bias,
                "refreshed": raw["refreshed"],
                "residuals_kept": self._gradients.kept,
            },
        }

    def _own_state(self) -> dict[str, Any]:
        self._early.warn(self._early.trained(), "state_dict() comes before the step()")
        return engine_state(self)

    def _check_own_state(self, state_dict: dict[str, Any]) -> None:
        check_engine_state(self, state_dict)

    def _restore_own_state(self, state_dict: dict[str, Any]) -> None:
        restore_engine_state(self, state_dict)
        self._calibration.restart()
