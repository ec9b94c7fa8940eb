"""Methods that `SubspaceAdamW` does not offer yet, simulated in memory beside its own.

    sim_block, sim_learned      cores of `block_random`, and of the paper's `sparse_learned`
    sim_none                    no core
    +residual                   the rest of a gradient, beside the core, trains the weight, factored
    +momentum8                  the residual's direction has a first moment, kept in 8 bits
    +feedback                   the rest of a gradient is added to the next gradient instead
    +turns4                     every 4th step trains the core alone, the others the residual
    +orthonormal                columns of learned projectors are made orthonormal once drawn

A run's `refresh` draws new projectors after that many steps, for `sim_block` too; moments move with
them (docs/algorithm.md section 5). The equations are those of docs/algorithm.md, with a factored
second moment for a core; cores and their updates are rounded to bf16 as they cross the link. Torch
draws the projectors, which are dense. So a row of `sim_block+residual` differs from the engine's
row in the table, but should agree with it within the noise.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from experiments.fidelity.methods import WEIGHT_DECAY, Trainee, adam_direction, block_weights
from experiments.offload_codec.projectors import DRAWS, LEARN_STEPS, Pair, core_shape, generator_of
from experiments.offload_codec.simulate import rounded
from experiments.regimes.eight_bits import EightBits

CODECS = {"sim_block": "block_random", "sim_learned": "sparse_learned", "sim_none": None}
BETAS, EPS = (0.9, 0.999), 1e-8
ADAM = {"betas": BETAS, "eps": EPS}
WIRE_BYTES = 2
_RMS = 1.0  # Largest value of a direction over a factored moment.
_TINY = 1e-30


@dataclass(frozen=True)
class Lead:
    """Parsed name of a method."""

    codec: str | None
    residual: bool = False
    momentum8: bool = False
    feedback: bool = False
    orthonormal: bool = False
    turns: int = 1  # One step of these is the core's alone; 1: core and residual share all.

    @classmethod
    def of(cls, method: str) -> Lead:
        """Parse a method; raise ValueError if it is not a lead."""
        base, *options = method.split("+")
        known = {"residual", "momentum8", "feedback", "orthonormal"}
        chosen: dict[str, Any] = {name: True for name in options if name in known}
        for name in options:
            if name.startswith("turns"):
                chosen["turns"] = int(name.removeprefix("turns"))
            elif name not in known:
                raise ValueError(f"{method}: there is no +{name}, expected {sorted(known)}, turnsK")
        if base not in CODECS:
            raise ValueError(f"{method}: there is no {base}, expected one of {sorted(CODECS)}")
        found = cls(CODECS[base], **chosen)
        if found.feedback and (found.residual or found.codec is None):
            raise ValueError(f"{method}: feedback needs a core, and replaces the residual")
        if (found.momentum8 or found.turns > 1) and not found.residual:
            raise ValueError(f"{method}: momentum8 and turns need +residual")
        return found

    @property
    def projects(self) -> bool:
        """Tell whether columns are orthonormal, so that the scale of orthonormal codecs applies."""
        return self.codec == "block_random" or self.orthonormal


def is_lead(method: str) -> bool:
    """Tell whether a method is simulated."""
    return method.startswith("sim_")


@contextlib.contextmanager
def lead_trainee(model: nn.Module, method: str, ratio: float, lr: float, seed: int,
                 refresh: dict[str, Any] | None) -> Iterator[Trainee]:  # fmt: skip
    """Do what methods.trainee() does, for a simulated method."""
    lead = Lead.of(method)
    optimizer = LeadOptimizer(model, lead, ratio, lr, seed, refresh["every"] if refresh else None)
    trained = [p for p in model.parameters() if p.requires_grad]
    yield Trainee(model, optimizer, trained, *bytes_of(model, lead, ratio))


def bytes_of(model: nn.Module, lead: Lead, ratio: float) -> tuple[int, int]:
    """Bytes on the device beside the weights, and over the link per step, both ways."""
    state = link = 0
    for _, p in block_weights(model):
        state += 4 * sum(p.shape) * lead.residual
        state += EightBits.bytes_of(p.numel()) * lead.momentum8 + 4 * p.numel() * lead.feedback
        if lead.codec is not None:
            core = math.prod(core_shape(lead.codec, ratio, *p.shape))
            link += 2 * WIRE_BYTES * core // lead.turns
    return state, link


class LeadOptimizer(torch.optim.Optimizer):
    """Trains cores and vectors with AdamW, and the rest of a gradient as a lead says."""

    def __init__(self, model: nn.Module, lead: Lead, ratio: float, lr: float, seed: int,
                 every: int | None) -> None:  # fmt: skip
        super().__init__([p for p in model.parameters() if p.requires_grad], {"lr": lr})
        self._lead, self._ratio, self._seed, self._every = lead, ratio, seed, every
        self._names = {p: name for name, p in block_weights(model)}

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Update every weight that has a gradient."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                state["t"] = state.get("t", 0) + 1
                p.mul_(1 - group["lr"] * WEIGHT_DECAY)
                if p in self._names:
                    self._step_matrix(p, state, group["lr"])
                else:
                    p.sub_(group["lr"] * adam_direction(state, p.grad, ADAM, state["t"]))

    def _step_matrix(self, p: torch.Tensor, state: dict[str, Any], lr: float) -> None:
        lead, left = self._lead, p.grad
        is_turn = state["t"] % lead.turns == 0
        if lead.feedback:
            left = left + state.get("left", 0.0)
        if lead.codec is not None and is_turn:
            pair = self._pair(p, left, state)
            core = pair.compress(left)
            crossed = rounded(core)
            left = left - pair.decompress(crossed if lead.feedback else core)
            of_core = state.setdefault("core", {})
            of_core["t"] = of_core.get("t", 0) + 1
            scale = math.sqrt(p.numel() / core.numel()) if lead.projects else 1.0
            p.sub_(lr * scale * pair.decompress(rounded(_factored_adam(of_core, crossed))))
        if lead.feedback:
            state["left"] = left
        elif lead.residual and not (lead.turns > 1 and is_turn):
            p.sub_(lr * self._residual(state.setdefault("residual", {}), left))

    def _residual(self, state: dict[str, Any], left: torch.Tensor) -> torch.Tensor:
        state["t"] = t = state.get("t", 0) + 1
        direction = left / (_factored_root(state, left) + EPS)
        direction = _clipped(direction)
        if not self._lead.momentum8:
            return direction
        kept = state.get("m")
        first = (1 - BETAS[0]) * direction
        if kept is not None:
            first = first + BETAS[0] * kept.values()
        state["m"] = EightBits(first)
        return first / (1 - BETAS[0] ** t)

    def _pair(self, p: torch.Tensor, g: torch.Tensor, state: dict[str, Any]) -> Pair:
        old: Pair | None = state.get("pair")
        steps = state.get("core", {}).get("t", 0)
        if old is not None and (self._every is None or steps % self._every):
            return old
        generator = generator_of(self._seed, self._names[p], state["t"])
        new = DRAWS[self._lead.codec](g, self._ratio, generator, LEARN_STEPS)
        if self._lead.orthonormal:
            new = Pair(*(torch.linalg.qr(side).Q for side in new))
        if old is not None:
            transport(state["core"], new.p.T @ old.p, old.q.T @ new.q)
        state["pair"] = new
        return new


def transport(state: dict[str, torch.Tensor], a: torch.Tensor, b: torch.Tensor) -> None:
    """Move a core's moments to the basis of other projectors (docs/algorithm.md section 5)."""
    state["m"] = a @ state["m"] @ b
    mean = state["rows"].mean().clamp(min=_TINY)
    rows, cols = a.square() @ state["rows"], b.square().T @ state["cols"]
    state["rows"], state["cols"] = rows * cols.mean() / mean, cols * rows.mean() / mean


def _factored_root(state: dict[str, Any], g: torch.Tensor) -> torch.Tensor:
    """Root of the unbiased second moment, from the means of rows and columns."""
    squares, beta = g.square(), BETAS[1]
    for name, mean in (("rows", squares.mean(1)), ("cols", squares.mean(0))):
        state[name] = beta * state.get(name, torch.zeros_like(mean)) + (1 - beta) * mean
    whole = torch.outer(state["rows"], state["cols"]) / state["rows"].mean().clamp(min=_TINY)
    return (whole / (1 - beta ** state["t"])).sqrt()


def _factored_adam(state: dict[str, Any], s: torch.Tensor) -> torch.Tensor:
    root = _factored_root(state, s)
    state["m"] = BETAS[0] * state.get("m", torch.zeros_like(s)) + (1 - BETAS[0]) * s
    return _clipped(state["m"] / (1 - BETAS[0] ** state["t"]) / (root + EPS))


def _clipped(direction: torch.Tensor) -> torch.Tensor:
    return direction / max(1.0, direction.square().mean().sqrt().item() / _RMS)
