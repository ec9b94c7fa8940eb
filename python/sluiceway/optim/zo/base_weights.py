"""Computes theta from a base that no step writes to and the updates in the log.

theta = float(Gamma) (base + sum of c z)

With low-rank noise the engine has summed the updates in factors on the device, and computes theta.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import Any

import torch
from torch import nn

from sluiceway import _core
from sluiceway.optim.common import torch_private
from sluiceway.optim.common.model_hooks import NothingWhenCopied
from sluiceway.optim.zo.base import Base, absent
from sluiceway.optim.zo.logged_engine import LoggedEngine
from sluiceway.optim.zo.tier import Training
from sluiceway.optim.zo.weights import TrainedWeight


class BaseWeights:
    """Computes theta of parameters, and puts it into `state_dict()` of the model.

    Parameters
    ----------
    training : Training
    engine : LoggedEngine
    base : Base
    """

    def __init__(self, training: Training, engine: LoggedEngine, base: Base) -> None:
        self._of, self._engine, self._base = training, engine, base
        self._weight_of = {id(w.parameter): w for w in training.weights}
        self._on_device: dict[int, torch.Tensor] = {}  # Bases of weights perturbed in each step.
        self._tied: tuple[Any, dict[int, torch.Tensor]] = (lambda: None, {})
        self._given: set[int] = set()  # Parameters that hold theta, if giving was interrupted.
        self._hooks = [
            module.register_state_dict_post_hook(_StateHook(self, module))
            for module in training.model.modules()
            if any(map(self.has, torch_private.held_parameters(module).values()))
        ]

    def has(self, p: nn.Parameter | None) -> bool:
        """Tell whether a parameter is one of the streamed ones."""
        return id(p) in self._weight_of

    @property
    def owner(self) -> str:
        """The optimizer's name, for errors."""
        return self._of.owner

    def name_of(self, p: nn.Parameter) -> str:
        """The parameter's name in the model."""
        return self._weight_of[id(p)].name

    def settle(self, p: nn.Parameter) -> bool:
        """Return False: the parameter's own memory holds the base, not theta."""
        return False

    def forget(self) -> None:
        """Drop copies of the old base, since there is a new one."""
        self._on_device = {}

    def theta(self, p: nn.Parameter) -> torch.Tensor:
        """Compute theta of a parameter on the device."""
        return self.made(p, self._brought(p))

    def theta_on_host(self, p: nn.Parameter) -> torch.Tensor:
        """Compute theta of a parameter in host memory."""
        if self._is_low_rank:
            return self.theta(p).cpu()
        return self.made(p, self._base.of(p))

    def theta_in(self, state: dict[str, Any], p: nn.Parameter) -> torch.Tensor:
        """Return `theta_on_host`, once for all names of a parameter in one `state_dict()`."""
        if len(self._weight_of[id(p)].modules) == 1:
            return self.theta_on_host(p)
        made_for, made = self._tied
        if made_for() is not state:
            made = {}
            with contextlib.suppress(TypeError):  # The caller passed a plain dict.
                self._tied = (weakref.ref(state, lambda _: made.clear()), made)
        if id(p) not in made:
            made[id(p)] = self.theta_on_host(p)
        return made[id(p)]

    def neighbours(
        self, weight: TrainedWeight, direction: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute theta + eps z and theta - eps z of the next step on the device."""
        p, options = weight.parameter, self._of.options
        base = self._on_device.get(id(p))
        if base is None:
            base = self._on_device[id(p)] = self._brought(p)
        plus, minus = torch.empty_like(base), torch.empty_like(base)
        if self._is_low_rank:
            self._engine.get().low_rank_neighbours(
                weight.name, direction, base, plus, minus, self._of.device.compute()
            )
            return plus, minus
        pending, gamma = self._pending(weight)
        _core.perturb(
            base, plus, minus, pending, gamma, options.eps, options.family, options.seed,
            self._engine.get().next_step, weight.tensor, direction,
            compute=self._of.device.compute(),
        )  # fmt: skip
        return plus, minus

    def poison(self) -> dict[int, torch.Tensor]:
        """NaN for parameters that no module reads at present, so that no base passes for theta."""
        device = "cpu" if self._of.device.name == "host" else self._of.device.name
        return {key: absent(w.parameter, device) for key, w in self._weight_of.items()}

    def close(self) -> None:
        """Remove the hooks, so that `state_dict()` shows the parameters' own data."""
        for handle in self._hooks:
            handle.remove()

    def give_theta(self) -> None:
        """Put theta into the parameters themselves."""
        with torch.no_grad():
            for weight in self._of.weights:
                p = weight.parameter
                if id(p) not in self._given:
                    theta = self.theta_on_host(p)
                    self._given.add(id(p))
                    self._base.give(p, theta)

    def _brought(self, p: nn.Parameter) -> torch.Tensor:
        if not self._of.device.asynchronous:
            return self._base.of(p)
        return self._base.of(p).to(self._of.device.name, non_blocking=True)

    def made(self, p: nn.Parameter, base: torch.Tensor) -> torch.Tensor:
        """Compute theta of the last step where `base` lies."""
        weight, out = self._weight_of[id(p)], torch.empty_like(base)
        compute = self._of.device.compute() if base.is_cuda else _core.Stream.host()
        if self._is_low_rank:
            self._engine.get().low_rank_theta(weight.name, base, out, compute)
            return out
        pending, gamma = self._pending(weight)
        _core.materialise(base, out, pending, gamma, self._of.options.family, compute=compute)
        return out

    @property
    def _is_low_rank(self) -> bool:
        return self._of.options.noise == "lowrank"

    def _pending(self, weight: TrainedWeight) -> tuple[list[tuple], float]:
        updates, gamma = self._engine.get().pending(weight.group)
        tensor = weight.tensor
        return [(seed, step, tensor, d, scale) for seed, step, d, scale in updates], gamma


class _StateHook(NothingWhenCopied):
    """Puts theta into `state_dict()` of a module; does nothing for a copy of the module."""

    def __init__(self, weights: BaseWeights, module: nn.Module) -> None:
        self._weights, self._module = weakref.ref(weights), weakref.ref(module)

    def __call__(self, called: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
        weights = self._weights()
        if weights is None or called is not self._module():
            return
        for name, p in torch_private.held_parameters(called).items():
            if weights.has(p) and prefix + name in state:
                state[prefix + name] = weights.theta_in(state, p)
