"""Weights in host memory, never written to, and what the log makes of them.

theta = float(Gamma) (base + sum of c z)

Where noise is of low rank the engine has summed that up, in factors on the device, and makes theta.
"""

from __future__ import annotations

import contextlib
import hashlib
import weakref
from typing import Any

import torch
from torch import nn

from sluiceway import _core
from sluiceway.optim.open_model.copied_hook import NothingWhenCopied
from sluiceway.optim.zo.host.logged_engine import LoggedEngine
from sluiceway.optim.zo.tier import Training
from sluiceway.optim.zo.weights import TrainedWeight


class BaseWeights:
    """The own data of parameters, which `state_dict()` of the model does not show.

    Parameters
    ----------
    training : Training
    engine : LoggedEngine
    """

    def __init__(self, training: Training, engine: LoggedEngine) -> None:
        self._of, self._engine = training, engine
        self._base = {id(w.parameter): w.parameter.data for w in training.weights}
        self._weight_of = {id(w.parameter): w for w in training.weights}
        self._on_device: dict[int, torch.Tensor] = {}  # Of what is perturbed in each step.
        self._tied: tuple[Any, dict[int, torch.Tensor]] = (lambda: None, {})
        self._hooks = [
            module.register_state_dict_post_hook(_StateHook(self, module))
            for module in training.model.modules()
            if any(map(self.has, module._parameters.values()))
        ]

    def has(self, p: nn.Parameter | None) -> bool:
        """Whether it is one of ours."""
        return id(p) in self._base

    def of(self, p: nn.Parameter) -> torch.Tensor:
        """The base."""
        return self._base[id(p)]

    def theta(self, p: nn.Parameter) -> torch.Tensor:
        """A copy on the device."""
        return self._made(p, self._brought(p))

    def theta_on_host(self, p: nn.Parameter) -> torch.Tensor:
        """A copy in host memory."""
        if self._is_low_rank:
            return self.theta(p).cpu()
        return self._made(p, self.of(p))

    def theta_in(self, state: dict[str, Any], p: nn.Parameter) -> torch.Tensor:
        """As `theta_on_host`; one tensor for all names of a parameter in one `state_dict()`."""
        if len(self._weight_of[id(p)].modules) == 1:
            return self.theta_on_host(p)
        made_for, made = self._tied
        if made_for() is not state:
            made = {}
            with contextlib.suppress(TypeError):  # A plain dict, which the caller has given.
                self._tied = (weakref.ref(state, lambda _: made.clear()), made)
        if id(p) not in made:
            made[id(p)] = self.theta_on_host(p)
        return made[id(p)]

    @property
    def nbytes(self) -> int:
        """Of all bases."""
        return sum(base.nbytes for base in self._base.values())

    def neighbours(
        self, weight: TrainedWeight, direction: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """theta + eps z and theta - eps z of the next step, on the device."""
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
        """NaN for who reads a weight that is not there: no base is taken for theta."""
        device = torch.device("cpu" if self._of.device.name == "host" else self._of.device.name)
        return {
            key: torch.full((1,), torch.nan, dtype=base.dtype, device=device).expand(base.shape)
            for key, base in self._base.items()
        }

    def give_theta(self) -> None:
        """Let the parameters themselves be theta, and `state_dict()` be theirs."""
        for handle in self._hooks:
            handle.remove()
        with torch.no_grad():
            for weight in self._of.weights:
                weight.parameter.copy_(self.theta_on_host(weight.parameter))

    def _brought(self, p: nn.Parameter) -> torch.Tensor:
        if not self._of.device.asynchronous:
            return self.of(p)
        return self.of(p).to(self._of.device.name, non_blocking=True)

    def _made(self, p: nn.Parameter, base: torch.Tensor) -> torch.Tensor:
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
    """Lets `state_dict()` of a module hold theta; does nothing for a copy of the module."""

    def __init__(self, weights: BaseWeights, module: nn.Module) -> None:
        self._weights, self._module = weakref.ref(weights), weakref.ref(module)

    def __call__(self, called: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
        weights = self._weights()
        if weights is None or called is not self._module():
            return
        for name, p in called._parameters.items():
            if weights.has(p) and prefix + name in state:
                state[prefix + name] = weights.theta_in(state, p)


def hash_of(weights: list[TrainedWeight]) -> bytes:
    """What tells a base from any other; 16 bytes."""
    digest = hashlib.blake2b(digest_size=16)
    for weight in weights:
        p = weight.parameter.detach().cpu()
        digest.update(f"{weight.name} {p.dtype} {tuple(p.shape)} ".encode())
        digest.update(_core.bits_checksum(p).to_bytes(8, "little"))
    return digest.digest()
