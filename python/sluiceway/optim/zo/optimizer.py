"""ZoSgd: stochastic gradient descent without gradients, from two forward passes a direction."""

from __future__ import annotations

import inspect
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
from sluiceway.optim.common.documented import takes
from sluiceway.optim.common.parameters import check_number
from sluiceway.optim.common.states import StateHooks
from sluiceway.optim.zo.arguments import ZoArguments
from sluiceway.optim.zo.halves.measurement import Measurement
from sluiceway.optim.zo.halves.random_state import RandomState
from sluiceway.optim.zo.halves.same_inputs import SameInputs
from sluiceway.optim.zo.halves.units import measuring_halves
from sluiceway.optim.zo.host.host_tier import HostTier
from sluiceway.optim.zo.inference import usable_later
from sluiceway.optim.zo.logged_steps import LoggedSteps
from sluiceway.optim.zo.parity.parity_tier import ParityTier
from sluiceway.optim.zo.parity.snapshots import Snapshots
from sluiceway.optim.zo.rates import (
    checked_loss,
    group_update,
    mean_of_closures,
    projected_gradient,
)
from sluiceway.optim.zo.selection import trained_groups, trained_weights
from sluiceway.optim.zo.state import saved_frame, take_state
from sluiceway.optim.zo.tier import Closure, Training
from sluiceway.optim.zo.tiers import device_of, make_tier
from sluiceway.optim.zo.weights import TrainedWeight


@takes(ZoArguments)
class ZoSgd(LoggedSteps, Snapshots, StateHooks):
    """SGD along random directions, from losses alone [MeZO, arXiv 2305.17333].

    For each direction z of a step: g = (L(theta + eps z) - L(theta - eps z)) / (2 eps), and
    theta <- theta - lr (g z + weight_decay theta), of the mean over directions. The closure, or
    each of a list of micro-batches, is called twice a direction, in threads that meet at every
    block of the model, so that a block is perturbed once a direction for all of them. All draw the
    same random numbers, dropout masks for one, and those of one closure have to be given the same
    inputs. While a block is not running, its weights are not perturbed: what reads them elsewhere
    in the closure, a penalty for one, belongs outside of the blocks. What no block reads, or
    several do, is perturbed for the whole step, in two copies a direction.

    Where noise is lowrank, z of a matrix is U V^T with mean square 1 [LOZO, arXiv 2410.07698]. With
    tier="device" it has a float32 master, and U summed up for a period beside it; with the others
    the sum and V of every period, on the device: 4 rank (m + n) bytes a matrix and period. With
    tier="device" and perturb="activations" linear layers are not perturbed in copies: eps (x V) U^T
    is added to what they return, which is the same but for its rounding.

    With tier="host" weights are in host memory, page-locked for a CUDA device, and nothing writes
    to them: they are the base, and a log of some tens of bytes a step says what theta is. No list
    of blocks is needed. Halves meet at every module that reads weights, and layers are streamed
    through a ring of slots, each once for all halves; norms and biases stay on the device. In which
    order is seen in the first step, which calls the first closure once more. Weights that a module
    reads around others it calls, or the closure itself, are perturbed from the base instead, on the
    device. The numbers are those of tier="device". A parameter's own data is the base, which is not
    to be changed: a forward of the model and `evaluate()` find theta, without gradients, and
    `state_dict()` of the model holds it; what else looks at a parameter, a copy of the model for
    one, sees the base. `close()` leaves theta in the parameters, and who drops the optimizer
    unclosed is left with the base. A log in `path` goes on with a model of the same base, and
    `state_dict()` has it. At most 1,024 / directions steps fit on one base, but with noise
    lowrank, where only the bytes of all periods are a limit.

    With mode="parity" weights in host memory are the masters of theta instead [ZO2, arXiv
    2503.12668]: a step is written into them, each as it arrives for the next pass, and goes back
    while that runs; with a narrow `wire` the host writes it, and images cross. Nothing is replayed,
    and there is no log: no rollback, no branch, no limit of steps. A parameter of 16 bits has a
    float32 master, in the optimizer's state, and is NaN without memory outside of a forward; or it
    is its own with master="bf16", rounded at random. A forward of the model, `evaluate()`,
    `theta(p)` and `state_dict()`, the model's too, wait until the last step is in all weights. What
    reads a parameter itself (`p.clone()`, a copy of the model, an average of parameters) does not,
    and finds an older step in most: call `state_dict()` before. Who drops the optimizer unclosed
    is left with weights of no single step, and, of 16 bits with a float32 master, with NaN: close
    it, or use `with`.

    With tier="disk" it is the same with the base in `store`, which a step only reads: it is made of
    the model's weights, whose memory is free then, or opened if it is there, whatever the model's
    weights are. Without the log of its steps in `path` it goes on from the base. New bases are made
    as `consolidate` says, and by `consolidate()`. Nothing leads back from one to steps before; so
    it is at most of the last `state_dict()` that was made or loaded, if there is one.
    `state_dict()` of the model, and `close()`, which leaves theta in the parameters, have all
    weights in memory; `theta(p)` has one, and `close(theta=False)` leaves them in the store alone.

    Parameters
    ----------
    model : torch.nn.Module
        With tier="device" it has a list of blocks, as decoders of transformers have; its trainable
        parameters are taken.
    lr, weight_decay : float
        Mutable in `param_groups`.
    param_groups : iterable of dict, optional
        As torch's; default is a group of all matrices, and one of norms and biases without decay.
    {options}

    Raises
    ------
    InvalidArgument, Unavailable, OutOfMemory, IoError, Corrupt
        The model is as it was.
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
        refuse_unknown(owner, options, inspect.signature(ZoSgd.__init__).parameters)
        checked = ZoArguments.checked(owner, options)
        if not isinstance(model, nn.Module):
            raise InvalidArgument(
                f"{owner}: model is a {type(model).__name__}, expected a torch.nn.Module, as its "
                "blocks are needed; pass the model, and groups by param_groups="
            )
        groups = trained_groups(owner, model, weight_decay, param_groups)
        for group in groups:
            for key, default in (("lr", lr), ("weight_decay", weight_decay)):
                check_number(owner, key, group.get(key, default))
        weights = trained_weights(owner, model, groups)
        self.device = device_of(owner, checked, weights)
        super().__init__(groups, {"lr": lr, "weight_decay": weight_decay, "gamma": 1.0})
        self._of = Training(owner, model, weights, checked, self.device, self.param_groups)
        self._tier = make_tier(self._of, self.state)
        self.overflowed = False
        self._g: list[float] = []
        self._versions = self._current_versions()
        self._warned: set[str] = set()
        self._warn_of_rounded_vectors()
        self._warn_of_one_direction()

    @property
    def options(self) -> ZoArguments:
        """What it was made with, and the directions that it has."""
        return self._of.options

    @property
    def committed_steps(self) -> int:
        """Steps that were made."""
        return self._tier.committed_steps

    @property
    def blocks(self) -> BlockList | None:
        """What halves meet at, of tier device."""
        return self._tier.blocks

    # ---- A step ----

    @usable_later
    def step(self, closure: Closure | Sequence[Closure] | None = None) -> torch.Tensor:
        """Measure every direction, and move the weights.

        Parameters
        ----------
        closure : callable, or list of them
            Each returns the loss of one batch, always the same, as a scalar; no gradients are kept.
            Of several, micro-batches for one, the loss is their mean: in float32, the sum in their
            order, divided by their number. All begin with the same random numbers.

        Returns
        -------
        torch.Tensor
            The mean of all losses that were measured, of float32, on the host.

        Raises
        ------
        InvalidArgument
            The closure cannot be measured; the weights are as before.
        BaseException
            What the closure raised; the weights are as before.
        """
        closures = self._closures("step", closure)
        self._check_unchanged("step")
        self._check_trainable()
        begun, self.overflowed = RandomState.now(), False
        try:
            self._tier.begin(closures)
            losses = self._measure(closures)
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
        return torch.tensor(losses, dtype=torch.float32).mean()

    @usable_later
    def evaluate(self, closure: Closure | Sequence[Closure]) -> torch.Tensor:
        """The mean loss of closures, as `step` says it, on the weights as they are.

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
                f"{self._owner}.{function}: closure is {given!r}, expected a function, or a "
                "list of some, each of which returns the loss; call loss = "
                "opt.step(lambda: model(**batch).loss)"
            )
        return closures

    def _measure(self, closures: list[Closure]) -> list[tuple[float, float]]:
        """The loss of both sides of every direction."""
        halves = measuring_halves(self.options.directions, len(closures))
        measurement = Measurement(self._tier.measured, self._tier, halves, SameInputs(self._owner))
        found: dict[tuple[int, int], list[float]] = {}
        with Undisturbed() as quiet, self._tier.measuring():
            results = measurement.run(closures, quiet)
        for half, loss in zip(halves, results, strict=True):
            found.setdefault((half.direction, half.side), []).append(
                checked_loss(self._owner, loss)
            )
            if isinstance(loss, torch.Tensor) and loss.dtype in (torch.float16, torch.bfloat16):
                self._warn(
                    "dtype", f"the loss is {loss.dtype}, whose rounding is that of g; make it float"
                )
        return [
            (mean_of_closures(found[d, 0]), mean_of_closures(found[d, 1]))
            for d in range(self.options.directions)
        ]

    def _check_random(self, begun: RandomState) -> None:
        if begun.was_drawn_from():
            self._warn(
                "random",
                "the closure draws random numbers (dropout?); all losses of a step were given the "
                "same ones. Call model.eval() to train without",
            )

    def _gradient(self, plus: float, minus: float) -> float:
        """g of a direction; 0 where it has none."""
        g = projected_gradient(plus, minus, self.options.eps)
        if math.isfinite(g) and math.isfinite(plus) and math.isfinite(minus):
            return g
        self.overflowed = True
        self._warn(
            "finite",
            f"losses {plus} and {minus} in step {self.committed_steps} give no finite g; the step "
            "counts with g = 0, and so will others. Lower lr or eps if there are many",
        )
        return 0.0

    # ---- What others do to the weights ----

    def _current_versions(self) -> list[tuple[int, int]]:
        return [
            (w.parameter.data_ptr(), torch_private.version(w.parameter)) for w in self._of.weights
        ]

    def _changed_weights(self) -> list[TrainedWeight]:
        self._tier.rest()
        versions = zip(self._versions, self._current_versions(), strict=True)
        return [
            weight
            for weight, (was, now) in zip(self._of.weights, versions, strict=True)
            if was != now
        ]

    def _check_unchanged(self, function: str) -> None:
        for weight in self._changed_weights():
            raise InvalidArgument(
                f"{self._owner}.{function}: {weight.name} was changed by others since the last "
                "step, expected the weights that the steps so far have made; load a "
                "state_dict() of theirs, or make a new optimizer"
            )

    def _check_trainable(self) -> None:
        for weight in self._of.weights:
            if not weight.parameter.requires_grad:
                raise InvalidArgument(
                    f"{self._owner}.step: {weight.name} was frozen (requires_grad is False) since "
                    "the optimizer was made, expected all of its weights to be trained; make a "
                    "new optimizer of those that are to be"
                )

    def _warn_of_rounded_vectors(self) -> None:
        names = [
            w.name
            for w in self._of.weights
            if w.parameter.dim() < 2 and w.parameter.dtype is not torch.float32
        ]
        if names:
            self._warn(
                "vectors",
                f"{len(names)} norms and biases ({names[0]} for one) are not float32, and eps = "
                f"{self.options.eps} may be below their rounding; keep them in float32",
            )

    def _warn_of_one_direction(self) -> None:
        options = self.options
        if self._of.has_auto_directions and options.tier != "device" and options.directions == 1:
            self._warn(
                "directions",
                "directions are auto and 1, as neither the tokens of a forward nor the rates of "
                "this machine are known here; `sluiceway plan` says how many hide what crosses",
            )

    def _warn(self, about: str, text: str) -> None:
        """Once for each thing that it is about."""
        if about not in self._warned:
            self._warned.add(about)
            warnings.warn(f"{self._owner}: {text}", stacklevel=4)

    # ---- State ----

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Only while it is made."""
        if hasattr(self, "_of"):
            raise InvalidArgument(
                f"{self._owner}: add_param_group after it was made, expected all groups by "
                "param_groups=; make a new optimizer"
            )
        super().add_param_group(param_group)

    @usable_later
    def state_dict(self) -> dict[str, Any]:
        """What a new optimizer of the same model goes on from, bit for bit.

        As torch's it has the optimizer's own tensors: who keeps it while steps go on copies it.
        """
        if isinstance(self._tier, ParityTier):
            self._tier.check_between_steps("state_dict")
            self._tier.flush()  # The masters of torch's part are the tier's own.
        return self._saved()

    def _saved(self) -> dict[str, Any]:
        self._before_save()
        return self._changed_by("saved", super().state_dict() | saved_frame(self))

    @usable_later
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from `state_dict()`.

        With tier device and in mode parity the model's own weights are to be loaded before, in mode
        parity those of 16 bits before the optimizer is made; those of tier disk are in its store,
        whose base is to be of the state's run, and of no later step.
        With tier host and a log the model is to have the weights that its run began with, and
        theirs alone: the log makes theta of them, and what `state_dict()` of the model holds is
        that theta.

        Raises
        ------
        InvalidArgument
            It is of another model, of other options, or of weights that this model does not have
            (any more); nothing was changed.
        """
        if isinstance(self._tier, HostTier):
            self._check_unchanged("load_state_dict")
        take_state(self, self._before_load(state_dict))
        self._versions = self._current_versions()
        self._after_load()

    # ---- What every optimizer of ours has ----

    def stats(self) -> dict[str, Any]:
        """Of the last step: g of each direction, and what the tier counts."""
        zo = {"g": list(self._g), "directions": self.options.directions}
        return {"zo": zo} | self._tier.stats()

    def synchronize(self) -> None:
        """Steps are applied when `step()` returns; on a GPU, when this does."""
        if self.device.asynchronous:
            torch.cuda.synchronize()

    @usable_later
    def close(self, *, theta: bool = True) -> None:
        """Leave the model as any other, with the weights that the steps have made; idempotent.

        With `theta=False` parameters stay as they are between steps: of tier disk, empty.
        """
        self._tier.close(theta)
        self._versions = self._current_versions()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
