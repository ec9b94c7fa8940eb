"""ZoSgd: stochastic gradient descent without gradients, with two forward passes per direction."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, Self

import torch
from torch import nn

from sluiceway.base.undisturbed import Undisturbed
from sluiceway.config.options import refuse_unknown
from sluiceway.errors import InvalidArgument
from sluiceway.model.blocks import BlockList
from sluiceway.optim.common import torch_private
from sluiceway.optim.common.documented import documents_options
from sluiceway.optim.common.parameters import check_number
from sluiceway.optim.common.random_state import RandomState
from sluiceway.optim.common.ranks import Ranks, Together, facts_of
from sluiceway.optim.common.states import StateHooks
from sluiceway.optim.zo.access import WeightAccess
from sluiceway.optim.zo.arguments import ZoArguments
from sluiceway.optim.zo.inference import usable_later
from sluiceway.optim.zo.measurement import Measurement, perturbed_forwards
from sluiceway.optim.zo.over_ranks import facts_of_options, of_rank
from sluiceway.optim.zo.rates import (
    checked_loss,
    group_update,
    mean_of_closures,
    projected_gradient,
)
from sluiceway.optim.zo.same_inputs import SameInputs
from sluiceway.optim.zo.state import saved_frame, take_state
from sluiceway.optim.zo.tier import Closure, Training
from sluiceway.optim.zo.tiers import device_of, make_tier
from sluiceway.optim.zo.weights import TrainedWeight, trained_groups, trained_weights


@documents_options(
    ZoArguments,
    "tier", "path", "mode", "eps", "directions", "noise", "device", "budget", "seed",
)  # fmt: skip
class ZoSgd(WeightAccess, StateHooks):
    """SGD along random directions, from losses alone [MeZO, arXiv 2305.17333].

    For each direction z of a step: g = (L(theta + eps z) - L(theta - eps z)) / (2 eps), and
    theta <- theta - lr (g z + weight_decay theta), averaged over directions. The closure, or each
    closure in a list of micro-batches, is called twice per direction. These forward passes run in
    threads that meet at every block of the model, so each block is perturbed once per direction
    for all of them. All of them draw the same random numbers, for instance for dropout, and those
    of one closure must get the same inputs. A block's weights are perturbed only while the block
    runs; a term of the loss that reads weights elsewhere, for instance a penalty, must use weights
    outside of the blocks. Weights that no block reads, or several blocks, are perturbed for the
    whole step, in two copies per direction.

    With noise="lowrank", z of a matrix is U V^T with mean square 1 [LOZO, arXiv 2410.07698]. With
    tier="device" the matrix has a float32 master, and the sum of U over a period beside it. With
    the other tiers the device holds the sum and V of every period: 4 rank (m + n) bytes per matrix
    and period.

    With tier="host", weights are in host memory, page-locked for a CUDA device, and are never
    written. They are the base, from which theta is computed with a log of some tens of bytes per
    step. The model needs no list of blocks: forward passes meet at every module that reads weights.
    Layers are streamed through a ring of slots, once per step for all of them; norms and biases
    stay on the device. The order is found in the first step, which calls the first closure once
    more. Weights that the closure itself reads, or that a module reads around other modules, are
    perturbed from the base on the device. The numbers are the same as with tier="device". A
    parameter's own data is the base. A forward of the model and `evaluate()` see theta, without
    gradients; `state_dict()` of the model, `copy.deepcopy(model)` and `torch.save(model)` contain
    theta. Any other code that reads or writes elements of a parameter between steps raises
    InvalidArgument: call `theta(p)` instead. `close()` leaves theta in the parameters; without it
    they keep the base. To continue a log in `path`, use a model with the same base; `state_dict()`
    includes the log. At most 1,024 / directions steps fit on one base; with noise="lowrank" only
    the bytes of all periods are limited.

    With mode="write_back", weights in host memory are instead the masters of theta [ZO2, arXiv
    2503.12668]. A step is written into each master when it arrives for the next pass, and the
    master goes back while that pass runs; with a narrow `wire` the host writes it, and images
    cross. There are no replays and no log: no rollback, no branch, no limit of steps. A 16-bit
    parameter has a float32 master in the optimizer's state, and holds NaN, without memory, outside
    of a forward; with master="bf16" it is its own master, rounded stochastically. A forward of the
    model, `evaluate()`, `theta(p)` and `state_dict()` of optimizer and model wait until the last
    step is in all weights, and so does any read of a parameter that is its own master
    (`p.clone()`, an average of parameters). Reading a parameter that has a master beside it raises
    InvalidArgument; copies of the model contain theta.
    Without `close()`, the weights are of no single step when the optimizer is gone, and 16-bit
    parameters with a float32 master hold NaN: close the optimizer, or use `with`.

    With tier="disk", everything is as with tier="host", but the base is in `store`, which steps
    only read. The store is made from the model's weights, whose memory is then freed; an existing
    store is opened, and the model's weights are ignored. Without the log of its steps in `path`,
    training continues from the base. New bases are made as the option `consolidate` says, and by
    `consolidate()`. Steps before a new base cannot be reached, so its step is at most that of the
    last `state_dict()` that was made or loaded, if there is one. `state_dict()` of the model, and
    `close()`, which leaves theta in the parameters, hold all weights in memory; `theta(p)` holds
    one, and `close(theta=False)` leaves the weights in the store alone.

    Parameters
    ----------
    model : torch.nn.Module
        Its trainable parameters are trained. With tier="device" it needs a list of blocks, which
        decoders of transformers have.
    lr, weight_decay : float
        May be changed in `param_groups`.
    param_groups : iterable of dict, optional
        Groups in torch's form; by default one of matrices, and one of norms and biases, no decay.
    {options}

    Raises
    ------
    InvalidArgument, Unavailable, OutOfMemory, IoError, Corrupt
        The model is unchanged.
    """

    def __init__(
        self,
        model: nn.Module,
        lr: float = 1e-6,
        weight_decay: float = 0.0,
        *,
        param_groups: Iterable[dict[str, Any]] | None = None,
        **options: Any,
    ) -> None:
        self._owner = owner = type(self).__name__
        refuse_unknown(owner, options, ZoArguments.keywords())
        checked = ZoArguments.checked(owner, options)
        if not isinstance(model, nn.Module):
            raise InvalidArgument(
                f"{owner}: model is a {type(model).__name__}, expected a torch.nn.Module; pass the "
                "model itself, and parameter groups as param_groups="
            )
        groups = trained_groups(owner, model, weight_decay, param_groups)
        for group in groups:
            for key, default in (("lr", lr), ("weight_decay", weight_decay)):
                check_number(owner, key, group.get(key, default))
        weights = trained_weights(owner, model, groups)
        self.device = device_of(owner, checked, weights)
        super().__init__(groups, {"lr": lr, "weight_decay": weight_decay, "gamma": 1.0})
        ranks = Ranks(owner)
        if ranks.count > 1:
            checked = of_rank(owner, checked, ranks)
            ranks.check_alike(facts_of(model) | facts_of_options(checked, self.param_groups))
        self._training = Training(
            owner, model, weights, checked, self.device, self.param_groups, ranks
        )
        self._tier = make_tier(self._training, self.state)
        self.overflowed = False
        self._g: list[float] = []
        self._versions = self._current_versions()
        self._warned: set[str] = set()
        self._warn_of_rounded_vectors()
        self._warn_of_one_direction()
        self._follow_first_rank()

    def _follow_first_rank(self) -> None:
        """Take the first rank's log, so that all have one: a rank may join late, or come back."""
        ranks = self._training.ranks
        if ranks.count > 1 and self._logs_beside():
            state = ranks.of_first(self.state_dict() if ranks.rank == 0 else None)
            with ranks.together("load_state_dict", 0) as together:
                if ranks.rank > 0:
                    self.load_state_dict(state)
                together.every([], {})

    @property
    def options(self) -> ZoArguments:
        """Options of the optimizer, with the number of directions in use."""
        return self._training.options

    @property
    def committed_steps(self) -> int:
        """Number of steps made so far."""
        return self._tier.committed_steps

    @property
    def blocks(self) -> BlockList | None:
        """Blocks at which forward passes meet; None unless the tier is device."""
        return self._tier.blocks

    # ---- A step ----

    @usable_later
    def step(self, closure: Closure | Sequence[Closure] | None = None) -> torch.Tensor:
        """Measure every direction, and update the weights.

        Parameters
        ----------
        closure : callable, or list of them
            Each returns the loss of one batch, the same batch in each call, as a scalar; no
            gradients are kept. The loss of several closures, for instance micro-batches, is their
            mean: the float32 sum in their order, divided by their number. All begin with the same
            random numbers.

        Returns
        -------
        torch.Tensor
            Mean of all measured losses, float32, on the host.

        Raises
        ------
        InvalidArgument
            The closure cannot be measured; the weights are unchanged.
        BaseException
            Raised by the closure; the weights are unchanged.
        """
        self._training.ranks.check_same_group()
        with self._training.ranks.together("step", 2 * self.options.directions) as together:
            return self._step(closure, together)

    def _step(self, closure: Any, together: Together) -> torch.Tensor:
        closures = self._closures("step", closure)
        self._check_unchanged("step")
        self._check_trainable()
        begun, self.overflowed = RandomState.now(), False
        try:
            self._tier.begin(closures)
            losses = self._of_all_ranks(self._measure(closures), together)
            gradients = [self._gradient(plus, minus) for plus, minus in losses]
            updates = [group_update(self._owner, group, gradients) for group in self.param_groups]
            self._check_random(begun)
        except BaseException:
            begun.restore()
            self._tier.abandon()
            raise
        with self._tier.committing():
            self._tier.commit(gradients, updates, self.overflowed)
            self._versions = self._current_versions()
            self._g = gradients
        self._training.ranks.end_step()
        return torch.tensor(losses, dtype=torch.float32).mean()

    @usable_later
    def evaluate(self, closure: Closure | Sequence[Closure]) -> torch.Tensor:
        """Compute the mean loss of closures (see `step`) on the unperturbed weights.

        Weights that are not on the device cross once for all closures.
        """
        closures = self._closures("evaluate", closure)
        self._check_unchanged("evaluate")
        losses = [checked_loss(self._owner, loss) for loss in self._tier.evaluate(closures)]
        return torch.tensor(mean_of_closures(losses), dtype=torch.float32)

    def _closures(self, function: str, given: Any) -> list[Closure]:
        closures = list(given) if isinstance(given, list | tuple) else [given]
        if not closures or not all(map(callable, closures)):
            raise InvalidArgument(
                f"{self._owner}.{function}: closure is {given!r}, expected a function that returns "
                "the loss, or a list of such functions; call loss = "
                "opt.step(lambda: model(**batch).loss)"
            )
        return closures

    def _of_all_ranks(
        self, losses: list[tuple[float, float]], together: Together
    ) -> list[tuple[float, float]]:
        """Return both losses of every direction, of those that each rank has measured."""
        ranks, training = self._training.ranks, self._training
        if ranks.count == 1:
            return losses
        every = [0.0] * (2 * self.options.directions)
        for d, sides in zip(training.measured_directions, losses, strict=True):
            every[2 * d : 2 * d + 2] = sides
        groups = [(g["lr"], g["weight_decay"], g["gamma"]) for g in self.param_groups]
        same = {"the number of steps": self.committed_steps, "rates of param_groups": groups}
        rows = together.every(every, same)
        if self.options.across_ranks == "batch":
            found = [mean_of_closures(losses) for losses in zip(*rows, strict=True)]
        else:
            found = [rows[k // 2 % ranks.count][k] for k in range(len(every))]
        return list(zip(found[::2], found[1::2], strict=True))

    def _measure(self, closures: list[Closure]) -> list[tuple[float, float]]:
        """Measure the losses on both sides of every direction that is this process's."""
        directions = self._training.measured_directions
        forwards = perturbed_forwards(directions, len(closures))
        measurement = Measurement(
            self._tier.measured, self._tier, forwards, SameInputs(self._owner)
        )
        found: dict[tuple[int, int], list[float]] = {}
        with Undisturbed() as quiet, self._tier.measuring():
            results = measurement.run(closures, quiet)
        for forward, loss in zip(forwards, results, strict=True):
            found.setdefault((forward.direction, forward.side), []).append(
                checked_loss(self._owner, loss)
            )
            if isinstance(loss, torch.Tensor) and loss.dtype in (torch.float16, torch.bfloat16):
                self._warn(
                    "dtype", f"the loss is {loss.dtype}, whose rounding limits g; make it float32"
                )
        return [
            (mean_of_closures(found[d, 0]), mean_of_closures(found[d, 1]))
            for d in range(len(directions))
        ]

    def _check_random(self, begun: RandomState) -> None:
        if begun.was_drawn_from():
            self._warn(
                "random",
                "the closure draws random numbers (dropout?); all losses of a step got the same "
                "ones. Call model.eval() to train without them",
            )

    def _gradient(self, plus: float, minus: float) -> float:
        """Compute g of a direction; 0, with a warning, if it is not finite."""
        g = projected_gradient(plus, minus, self.options.eps)
        if math.isfinite(g) and math.isfinite(plus) and math.isfinite(minus):
            return g
        self.overflowed = True
        self._warn(
            "finite",
            f"losses {plus} and {minus} in step {self.committed_steps} give no finite g; this step "
            "and others like it count with g = 0. Lower lr or eps if there are many",
        )
        return 0.0

    # ---- What others do to the weights ----

    def _current_versions(self) -> list[tuple[int, int]]:
        return [
            (w.parameter.data_ptr(), torch_private.version(w.parameter))
            for w in self._training.weights
        ]

    def _changed_weights(self) -> list[TrainedWeight]:
        self._tier.rest()
        versions = zip(self._versions, self._current_versions(), strict=True)
        return [
            weight
            for weight, (was, now) in zip(self._training.weights, versions, strict=True)
            if was != now
        ]

    def _check_unchanged(self, function: str) -> None:
        for weight in self._changed_weights():
            remedy = (
                ""
                if self._logs_beside()
                else "load a state_dict() that belongs to the weights, or "
            )
            raise InvalidArgument(
                f"{self._owner}.{function}: {weight.name} was changed by other code since the last "
                f"step; {remedy}make a new optimizer"
            )

    def _logs_beside(self) -> bool:
        """Tell whether theta is computed from weights outside of the device and a log."""
        return self.options.tier != "device" and self.options.mode == "log"

    def _check_trainable(self) -> None:
        for weight in self._training.weights:
            if not weight.parameter.requires_grad:
                raise InvalidArgument(
                    f"{self._owner}.step: {weight.name} was frozen (requires_grad is False) since "
                    "the optimizer was made; make a new optimizer for the weights to train"
                )

    def _warn_of_rounded_vectors(self) -> None:
        names = [
            w.name
            for w in self._training.weights
            if w.parameter.dim() < 2 and w.parameter.dtype is not torch.float32
        ]
        if names:
            self._warn(
                "vectors",
                f"{len(names)} norms and biases (for instance {names[0]}) are not float32, and "
                f"eps = {self.options.eps} may be below their rounding, so that they do not train; "
                "matrices do. Float32 under autocast trains them, too: in a config model.dtype: "
                "fp32 with model.autocast: bf16",
            )

    def _warn_of_one_direction(self) -> None:
        options = self.options
        if (
            self._training.has_auto_directions
            and options.tier != "device"
            and options.directions == 1
        ):
            self._warn(
                "directions",
                "directions='auto' means 1 here, since neither the tokens of a forward nor the "
                "rates of this machine are known; `sluiceway plan` can choose more",
            )

    def _warn(self, about: str, text: str) -> None:
        """Warn once about each subject."""
        if about not in self._warned:
            self._warned.add(about)
            warnings.warn(f"{self._owner}: {text}", stacklevel=4)

    # ---- State ----

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raise InvalidArgument: groups are given when the optimizer is made."""
        if hasattr(self, "_training"):
            raise InvalidArgument(
                f"{self._owner}: add_param_group() is not supported; make a new optimizer with all "
                "groups in param_groups="
            )
        super().add_param_group(param_group)

    @usable_later
    def state_dict(self) -> dict[str, Any]:
        """Return the state, from which a new optimizer of the same model continues bit for bit.

        Like torch's, it holds the optimizer's own tensors: copy it to keep it during later steps.
        """
        self._tier.before_state()
        return self._saved()

    def _saved(self) -> dict[str, Any]:
        self._before_save()
        return self._changed_by("saved", super().state_dict() | saved_frame(self))

    @usable_later
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from `state_dict()`.

        With tier device, and in mode write_back, load the model's own weights first; in mode
        write_back, load 16-bit weights before you make the optimizer. With tier disk they are in a
        store, whose base must belong to the state's run and must not be later than the state. With
        tier host and a log, the model must have exactly the weights that the run began with: theta
        is computed from them and the log. Do not load `state_dict()` of the model, which holds
        theta.

        Raises
        ------
        InvalidArgument
            The state belongs to another model, to other options, or to other weights than the
            model has; nothing was changed.
        """
        if self._logs_beside():
            self._check_unchanged("load_state_dict")
        take_state(self, self._before_load(state_dict))
        self._versions = self._current_versions()
        self._after_load()

    # ---- What every optimizer of ours has ----

    def stats(self) -> dict[str, Any]:
        """Numbers of the last step: g of each direction, and the tier's counts."""
        zo = {"g": list(self._g), "directions": self.options.directions}
        ranks = self._training.ranks
        return {"zo": zo} | self._tier.stats() | ranks.stats()

    def synchronize(self) -> None:
        """Wait until all steps are applied; only a GPU may still be working after `step()`."""
        if self.device.asynchronous:
            torch.cuda.synchronize()

    @usable_later
    def close(self, *, theta: bool = True) -> None:
        """Turn the model into an ordinary one with the trained weights; idempotent.

        With `theta=False`, parameters stay in their state between steps: empty for tier disk.
        """
        self._tier.close(theta)
        self._versions = self._current_versions()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
