"""AdamW on the device for ordinary parameters: norms, biases, small weights."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import torch

from sluiceway import _core
from sluiceway.errors import InvalidArgument
from sluiceway.machine.device_ops import DeviceOps
from sluiceway.optim.common import torch_private


def gradient_norms(gradients: Sequence[torch.Tensor], order: float = 2.0) -> torch.Tensor:
    """Return each gradient's norm in float64 on the host, not finite only if the gradient is not.

    The norms are computed in float32, and again in float64 if squares overflow, from 1.8e19 on.
    Each time waits once for the device.
    """
    if not gradients:
        return torch.zeros(0, dtype=torch.float64)

    def taken(dtype: torch.dtype) -> torch.Tensor:
        # One kernel for many gradients, as one each would take longer to launch than to run.
        return torch.stack(torch_private.norms_of(list(gradients), order, dtype)).cpu()

    norms = taken(torch.float32)
    return norms.double() if norms.isfinite().all() else taken(torch.float64)


_MOMENTS = ("exp_avg", "exp_avg_sq")


class OrdinaryParameters:
    """Parameters that keep ordinary gradients until `step()`.

    Their names key the stochastic rounding of bf16 parameters. A dtype or a layout that the kernel
    does not take raises InvalidArgument.
    """

    def __init__(
        self,
        parameters: list[tuple[str, torch.Tensor]],
        seed: int,
        owner: str,
        device: DeviceOps,
    ) -> None:
        for name, p in parameters:
            if p.dtype not in (torch.float32, torch.bfloat16) or not p.is_contiguous():
                raise InvalidArgument(
                    f"{owner}: {name} is {p.dtype} with strides {tuple(p.stride())}, "
                    "expected contiguous float32 or bfloat16; convert or freeze it"
                )
        self.named = parameters
        self._seed, self._owner, self._device = seed, owner, device

    def sum_squares(self) -> float:
        """Return the sum of squares of all gradients; not finite if one of them is not."""
        norms = gradient_norms([p.grad for _, p in self.named if p.grad is not None])
        return norms.square().sum().item()

    def updates(
        self, groups: list[dict[str, Any]], states: Mapping[Any, Any]
    ) -> list[tuple[str, torch.Tensor, dict[str, Any]]]:
        """Return name, parameter and hyperparameters of each parameter that has a gradient.

        If the kernel cannot take a parameter, its gradient or its state, this raises
        InvalidArgument before anything is changed.
        """
        group_of = {id(p): group for group in groups for p in group["params"]}
        found = []
        for name, p in self.named:
            if p.grad is None:
                continue
            self._check(name, p, states.get(p) or {})
            group = group_of[id(p)]
            beta1, beta2 = group["betas"]
            hyper = {key: float(group[key]) for key in ("lr", "eps", "weight_decay")}
            found.append((name, p, {**hyper, "beta1": float(beta1), "beta2": float(beta2)}))
        return found

    def _check(self, name: str, p: torch.Tensor, state: Mapping[str, Any]) -> None:
        moments = [(key, state[key]) for key in _MOMENTS if key in state]
        for what, found in [(".grad", p.grad), ("", p), *((f"'s {k}", m) for k, m in moments)]:
            if found.layout != torch.strided or found.shape != p.shape:
                raise InvalidArgument(
                    f"{self._owner}.step: {name}{what} is {tuple(found.shape)} and {found.layout}, "
                    f"expected {tuple(p.shape)} and dense; make it so and call step() again"
                )
            if found is not p.grad and not found.is_contiguous():
                raise InvalidArgument(
                    f"{self._owner}.step: {name}{what} has strides {tuple(found.stride())}, "
                    "expected contiguous memory; make it contiguous() and call step() again"
                )

    def step(
        self,
        updates: list[tuple[str, torch.Tensor, dict[str, Any]]],
        states: MutableMapping[Any, Any],
        factor: float,
    ) -> None:
        """Make one AdamW step on `factor` times each gradient: unscaling and clipping in one.

        `updates` is the result of `updates()`. The states, step, exp_avg and exp_avg_sq, are
        created if empty.
        """
        compute = self._device.compute()
        for name, p, hyper in updates:
            state = states[p]
            if not state:
                state["step"] = 0
                for moment in _MOMENTS:
                    state[moment] = torch.zeros(p.shape, device=p.device, dtype=torch.float32)
            state["step"] += 1
            _core.adam_step(
                name,
                p,
                p.grad.contiguous(),
                *(state[moment] for moment in _MOMENTS),
                factor=factor,
                step=state["step"],
                seed=self._seed,
                compute=compute,
                **hyper,
            )
            torch.autograd.graph.increment_version(p)
