"""An optimizer beside an oracle, step by step: a schedule, decay, g = 0 in two ways, the same bits.

The losses of a step are a function of its number, so all who follow one oracle from its beginning
find the same: `shared_oracle` makes its steps once, however many optimizers are held against them.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from zo_models import computing_in_float32, decoder, of_dtype, zo_ids, zo_loss
from zo_oracle import Oracle, oracle_of

STEPS = 200  # Of a schedule, on which the rates of each step depend.


class SharedOracle:
    """Steps of an oracle that are kept, for whoever follows them from the first one again.

    Attributes
    ----------
    model : torch.nn.Module
        Has the weights of the last step that was asked for.
    """

    def __init__(self, oracle: Oracle) -> None:
        self.model, self._oracle = copy.deepcopy(oracle.model), oracle
        self._begun = [p.detach().clone() for p in oracle.model.parameters()]
        self._made: list[tuple[list[float], float, list[torch.Tensor]]] = []
        self._next = 0

    def from_the_beginning(self) -> SharedOracle:
        self._next = 0
        self._let_be(self._begun)
        return self

    def step(self, loss_of: Callable[[nn.Module], torch.Tensor], lr: list[float]) -> float:
        """The mean of all losses, which is that of `loss_of` if this step is a new one."""
        if self._next == len(self._made):
            loss = self._oracle.step(loss_of, lr)
            theta = [p.detach().clone() for p in self._oracle.model.parameters()]
            self._made.append((lr, loss, theta))
        rates, loss, theta = self._made[self._next]
        assert rates == lr
        self._next += 1
        self._let_be(theta)
        return loss

    @torch.no_grad()
    def _let_be(self, theta: list[torch.Tensor]) -> None:
        for p, value in zip(self.model.parameters(), theta, strict=True):
            p.copy_(value)


@functools.cache
def _shared(
    kind: type[Oracle],
    seed: int,
    directions: int,
    weight_decay: float,
    dtype: torch.dtype,
) -> SharedOracle:
    model = decoder() if dtype is torch.float32 else of_dtype(decoder(), dtype)
    return SharedOracle(oracle_of(model, seed, directions, weight_decay, kind=kind))


def shared_oracle(
    kind: type[Oracle] = Oracle,
    seed: int = 0,
    directions: int = 1,
    weight_decay: float = 0.0,
    dtype: torch.dtype = torch.float32,
) -> SharedOracle:
    """Return a shared oracle of `decoder()` for `follow` with `STEPS`; one follows it at a time."""
    shared = _shared(kind, seed, directions, weight_decay, dtype)
    return shared.from_the_beginning()


def follow(
    opt: torch.optim.Optimizer,
    model: nn.Module,
    oracle: Oracle | SharedOracle,
    steps: int = STEPS,
    every: int = 1,
    looked: Callable[[int], None] = lambda step: None,
) -> None:
    """Train both, on a schedule, with g = 0 in two ways, to the same bits.

    Parameters
    ----------
    every : int
        After so many steps, and the last, weights are looked at; losses always are.
    looked : callable
        What is done then, with the number of the step.
    """
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps)
    begun = {name: p.detach().clone() for name, p in oracle.model.named_parameters()}
    images = any(p.dtype is not torch.float32 for p in begun.values())
    computing = computing_in_float32 if images else lambda m: m
    for step in range(steps):
        ids, rates = zo_ids(step), [group["lr"] for group in opt.param_groups]
        factor = 0.0 if step == 5 else float("nan") if step == 9 else 1.0
        if step == 9:
            with pytest.warns(UserWarning, match="no finite g"):
                found = opt.step(lambda: factor * zo_loss(model, ids))  # noqa: B023
        else:
            found = opt.step(lambda: factor * zo_loss(model, ids))  # noqa: B023
        expected = oracle.step(lambda m: factor * zo_loss(computing(m), ids), rates)  # noqa: B023
        assert np.array_equal(found.item(), expected, equal_nan=True), step
        schedule.step()
        if (step + 1) % every and step + 1 < steps:
            continue
        theta = model.state_dict()
        for name, q in oracle.model.named_parameters():
            assert theta[name].dtype is q.dtype
            assert torch.equal(theta[name], q), (step, name)
        looked(step)
    assert not any(torch.equal(theta[name], p) for name, p in begun.items())
