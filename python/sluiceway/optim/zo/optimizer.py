"""ZoSgd: stochastic gradient descent without gradients, from two forward passes a direction."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Iterable
from typing import Any, Self

import torch
from torch import nn

from sluiceway import _core
from sluiceway.config.engines.zo import ZoOptions
from sluiceway.config.options import refuse_unknown
from sluiceway.errors import InvalidArgument
from sluiceway.machine.device_ops import DeviceOps, device_ops
from sluiceway.model.blocks import BlockList, find_blocks, weights_by_block
from sluiceway.model.targets import check_storage
from sluiceway.optim.documented import takes
from sluiceway.optim.hyperparameters import check_number, groups_of_model
from sluiceway.optim.open_model.ownership import refuse_taken
from sluiceway.optim.zo.arguments import ZoArguments
from sluiceway.optim.zo.low_rank import LowRankWeights
from sluiceway.optim.zo.measurement import Measurement
from sluiceway.optim.zo.random_state import RandomState
from sluiceway.optim.zo.rates import (
    as_float,
    checked_loss,
    group_update,
    projected_gradient,
)
from sluiceway.optim.zo.same_inputs import SameInputs
from sluiceway.optim.zo.state import check_state, restore_state, saved_frame
from sluiceway.optim.zo.weights import Noise, PerturbedWeight, ResidentWeights, check_weight


@takes(ZoArguments)
class ZoSgd(torch.optim.Optimizer):
    """SGD along random directions, from losses alone [MeZO, arXiv 2305.17333].

    For each direction z of a step: g = (L(theta + eps z) - L(theta - eps z)) / (2 eps), and
    theta <- theta - lr (g z + weight_decay theta), of the mean over directions. The closure is
    called twice a direction, in two threads that meet at every block of the model, so that a block
    is perturbed once for both. Both draw the same random numbers, dropout masks for one, and have
    to be given the same inputs. While a block is not running, its weights are not perturbed: what
    reads them elsewhere in the closure, a penalty for one, belongs outside of the blocks.

    Where noise is lowrank, z of a matrix is U V^T with mean square 1 [LOZO, arXiv 2410.07698]; it
    has a float32 master, and U summed up for a period beside it.

    Parameters
    ----------
    model : torch.nn.Module
        Has a list of blocks, as decoders of transformers have; its trainable parameters are taken.
    lr, weight_decay : float
        Mutable in `param_groups`.
    param_groups : iterable of dict, optional
        As torch's; default is a group of all matrices, and one of norms and biases without decay.
    {options}

    Raises
    ------
    InvalidArgument, Unavailable
        Nothing was changed.
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
        self.options = ZoArguments.checked(owner, options)
        if not isinstance(model, nn.Module):
            raise InvalidArgument(
                f"{owner}: model is a {type(model).__name__}, expected a torch.nn.Module, as its "
                "blocks are needed; pass the model, and groups by param_groups="
            )
        self._model, self.blocks = model, find_blocks(owner, model)
        groups = _groups(owner, model, weight_decay, param_groups)
        for group in groups:
            for key, default in (("lr", lr), ("weight_decay", weight_decay)):
                check_number(owner, key, group.get(key, default))
        self._weights = _weights(owner, model, self.blocks, groups)
        self.device = device_ops(
            owner, self.options.device, [(w.name, w.parameter) for w in self._weights]
        )
        super().__init__(groups, {"lr": lr, "weight_decay": weight_decay, "gamma": 1.0})
        self._resident = _resident(self.options, self.device, self.state)
        self.committed_steps = 0
        self.overflowed = False
        self._g: list[float] = []
        self._versions = self._current_versions()
        self._warned: set[str] = set()
        self._warn_of_rounded_vectors()

    # ---- A step ----

    def step(self, closure: Callable[[], Any] | None = None) -> torch.Tensor:
        """Measure every direction, and move the weights.

        Parameters
        ----------
        closure : callable
            Returns the loss of one batch, always the same, as a scalar; no gradients are kept.

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
        if not callable(closure):
            raise InvalidArgument(
                f"{self._owner}.step: closure is {closure!r}, expected a function that returns the "
                "loss; call loss = opt.step(lambda: model(**batch).loss)"
            )
        self._check_unchanged()
        begun, self.overflowed = RandomState.now(), False
        try:
            losses = self._measure(closure, begun)
            gradients = [self._gradient(plus, minus) for plus, minus in losses]
            updates = [group_update(self._owner, group, gradients) for group in self.param_groups]
        except BaseException:
            begun.restore()
            raise
        self._apply(updates)
        self._g = gradients
        return torch.tensor(losses, dtype=torch.float32).mean()

    def _measure(self, closure: Callable[[], Any], begun: RandomState) -> list[tuple[float, float]]:
        inputs = SameInputs(self._owner)
        losses = []
        for direction in range(self.options.directions):
            begun.restore()
            measurement = Measurement(
                self._owner, self._model, self.blocks, self._weights,
                lambda w, d=direction: self._neighbours(w, d), inputs, direction,
            )  # fmt: skip
            plus, minus = measurement.run(closure)
            for loss in (plus, minus):
                checked_loss(self._owner, loss)
            if isinstance(plus, torch.Tensor) and plus.dtype in (torch.float16, torch.bfloat16):
                self._warn(
                    "dtype", f"the loss is {plus.dtype}, whose rounding is that of g; make it float"
                )
            losses.append((checked_loss(self._owner, plus), checked_loss(self._owner, minus)))
        if not torch.equal(torch.get_rng_state(), begun.torch_cpu):
            self._warn(
                "random",
                "the closure draws random numbers (dropout?); all losses of a step were given the "
                "same ones. Call model.eval() to train without",
            )
        return losses

    def _neighbours(
        self, weight: PerturbedWeight, direction: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        gamma = as_float(self._group_of[id(weight.parameter)]["gamma"])
        return self._resident.neighbours(
            weight, gamma, self.options.eps, self.committed_steps, direction
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

    def _apply(self, updates: list[Any]) -> None:
        of_group = {id(g): update for g, update in zip(self.param_groups, updates, strict=True)}
        found = [(w, of_group[id(self._group_of[id(w.parameter)])]) for w in self._weights]
        for weight, update in found:  # The only part that can run out of memory comes first.
            self._resident.prepare(weight, update.gamma)
        for weight, update in found:
            self._resident.update(
                weight, as_float(update.gamma), self.committed_steps, update.scales
            )
        for group, update in zip(self.param_groups, updates, strict=True):
            group["gamma"] = update.gamma
        self.committed_steps += 1
        self._versions = self._current_versions()

    @property
    def _group_of(self) -> dict[int, dict[str, Any]]:
        return {id(p): group for group in self.param_groups for p in group["params"]}

    # ---- What others do to the weights ----

    def _current_versions(self) -> list[tuple[int, int]]:
        return [(w.parameter.data_ptr(), w.parameter._version) for w in self._weights]

    def _check_unchanged(self) -> None:
        for weight, was, now in zip(
            self._weights, self._versions, self._current_versions(), strict=True
        ):
            if was != now:
                raise InvalidArgument(
                    f"{self._owner}.step: {weight.name} was changed by others since the last step, "
                    "expected the weights that the steps so far have made; load a state_dict() "
                    "of theirs, or make a new optimizer"
                )

    def _warn_of_rounded_vectors(self) -> None:
        names = [
            w.name
            for w in self._weights
            if w.parameter.dim() < 2 and w.parameter.dtype is not torch.float32
        ]
        if names:
            self._warn(
                "vectors",
                f"{len(names)} norms and biases ({names[0]} for one) are not float32, and eps = "
                f"{self.options.eps} may be below their rounding; keep them in float32",
            )

    def _warn(self, about: str, text: str) -> None:
        """Once for each thing that it is about."""
        if about not in self._warned:
            self._warned.add(about)
            warnings.warn(f"{self._owner}: {text}", stacklevel=4)

    # ---- State ----

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Only while it is made."""
        if hasattr(self, "_resident"):
            raise InvalidArgument(
                f"{self._owner}: add_param_group after it was made, expected all groups by "
                "param_groups=; make a new optimizer"
            )
        super().add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """What a new optimizer of the same model goes on from, bit for bit."""
        return super().state_dict() | saved_frame(self)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from `state_dict()`; the model's own weights are to be loaded before.

        Raises
        ------
        InvalidArgument
            It is of another model, or of other options; nothing was changed.
        """
        check_state(self, state_dict)
        restore_state(self, state_dict)
        for weight in self._weights:
            if weight.parameter in self.state:
                gamma = as_float(self._group_of[id(weight.parameter)]["gamma"])
                self._resident.round(weight, gamma, self.committed_steps)
                torch.autograd.graph.increment_version(weight.parameter)
        self._versions = self._current_versions()

    # ---- What every optimizer of ours has ----

    def stats(self) -> dict[str, Any]:
        """Of the last step: g of each direction."""
        return {"zo": {"g": list(self._g), "directions": self.options.directions}}

    def synchronize(self) -> None:
        """Steps are applied when `step()` returns; on a GPU, when this does."""
        if self.device.asynchronous:
            torch.cuda.synchronize()

    def close(self) -> None:
        """Nothing to free: between steps the model is as any other."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _resident(
    options: ZoOptions, device: DeviceOps, state: dict[Any, Any]
) -> ResidentWeights | LowRankWeights:
    noise = Noise(options.family, options.seed)
    if options.noise == "lowrank":
        return LowRankWeights(noise, options.rank, options.period, device, state)
    return ResidentWeights(noise, device, state)


def _groups(
    owner: str, model: nn.Module, weight_decay: float, given: Iterable[dict[str, Any]] | None
) -> list[dict[str, Any]]:
    """Those that are given, or matrices, and vectors without decay."""
    if given is not None:
        groups = groups_of_model(owner, model, given)
        wanted = [{**g, "params": [p for p in g["params"] if p.requires_grad]} for g in groups]
    else:
        trained = [p for p in model.parameters() if p.requires_grad]
        wanted = [
            {"params": [p for p in trained if p.dim() >= 2], "weight_decay": weight_decay},
            {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
        ]
    wanted = [group for group in wanted if group["params"]]
    if not wanted:
        raise InvalidArgument(
            f"{owner}: {type(model).__name__} has no trainable parameter, expected at least one; "
            "call requires_grad_(True)"
        )
    return wanted


def _weights(
    owner: str, model: nn.Module, found: BlockList, groups: list[dict[str, Any]]
) -> list[PerturbedWeight]:
    """Every parameter of the groups, once, with the one block that reads it."""
    wanted = {id(p) for group in groups for p in group["params"]}
    weights = []
    for name, p, block in weights_by_block(model, found):
        if id(p) not in wanted:
            continue
        check_weight(owner, name, p)
        weights.append(PerturbedWeight(name, p, block, _core.stable_hash(name)))
    check_storage(owner, [(w.name, w.parameter) for w in weights])
    refuse_taken(owner, [(w.name, w.parameter) for w in weights])
    return weights
