"""AdamW on the device for what is not compressed: norms, biases, small weights."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import torch

from sluiceway import _core
from sluiceway.errors import InvalidArgument


class OrdinaryParameters:
    """Parameters that keep ordinary gradients until `step()`.

    Parameters
    ----------
    parameters : list of (str, torch.Tensor)
        Names key the stochastic rounding of bf16 parameters.
    seed : int
    owner : str
        The optimizer's name, for errors.

    Raises
    ------
    InvalidArgument
        A parameter has a dtype or a layout that the kernel does not take.
    """

    def __init__(self, parameters: list[tuple[str, torch.Tensor]], seed: int, owner: str) -> None:
        for name, p in parameters:
            if p.dtype not in (torch.float32, torch.bfloat16) or not p.is_contiguous():
                raise InvalidArgument(
                    f"{owner}: {name} is {p.dtype} with strides {tuple(p.stride())}, "
                    "expected contiguous float32 or bfloat16; convert or freeze it"
                )
        self.named = parameters
        self._seed = seed

    def sum_squares(self) -> float:
        """Of all gradients; not finite if one of them is not."""
        norms = [
            torch.linalg.vector_norm(p.grad, dtype=torch.float32)
            for _, p in self.named
            if p.grad is not None
        ]
        return torch.stack(norms).double().square().sum().item() if norms else 0.0

    def step(
        self, groups: list[dict[str, Any]], states: MutableMapping[Any, Any], factor: float
    ) -> None:
        """One AdamW step on `factor` times each gradient; parameters without one stay.

        Parameters
        ----------
        groups : list of dict
            torch's parameter groups: lr, betas, eps, weight_decay.
        states : mapping
            torch's state by parameter: step, exp_avg, exp_avg_sq; begun here.
        factor : float
            Unscaling and clipping in one number.
        """
        group_of = {id(p): group for group in groups for p in group["params"]}
        for name, p in self.named:
            if p.grad is None:
                continue
            group, state = group_of[id(p)], states[p]
            if not state:
                state["step"] = 0
                state["exp_avg"] = torch.zeros_like(p, dtype=torch.float32)
                state["exp_avg_sq"] = torch.zeros_like(p, dtype=torch.float32)
            state["step"] += 1
            beta1, beta2 = group["betas"]
            _core.adam_step(
                name,
                p,
                p.grad.contiguous(),
                state["exp_avg"],
                state["exp_avg_sq"],
                factor=factor,
                step=state["step"],
                lr=float(group["lr"]),
                beta1=float(beta1),
                beta2=float(beta2),
                eps=float(group["eps"]),
                weight_decay=float(group["weight_decay"]),
                seed=self._seed,
            )
            torch.autograd.graph.increment_version(p)
