"""Prepare the regimes' methods: those of experiments/fidelity, with additions to their names.

    +b1=0       matrices have no first moment, neither AdamW's nor a core's; norms keep theirs
    +kw         the rate of a weight times k_w = RMS(W_w) / mean RMS(W), mean over elements, at the
                start: for core and residual alike; decay stays as it was
    +decay8     the weight decay times 8: as large as that of torch's Adafactor at 8 times the rate
    +norms8     the rate of all but matrices times 8, likewise; decay stays as it was
    +norms4     times 4, the most that k_w may be
    sim_...     methods that no engine has yet: `leads.py`
    +momentum   the change that a step of a torch optimizer makes in a weight, decay with it, is
                averaged over steps; Adafactor's own b1 averages the update alone

Torch's optimizers round 16-bit weights to nearest, which loses small updates. Here they step in
f32 and their weights are rounded stochastically, as the engine rounds its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from sluiceway.optim.subspace.weight_rates import weight_factors
from torch import nn

from experiments.fidelity.methods import WEIGHT_DECAY, Trainee, block_weights, trainee
from experiments.fidelity.train_one import refresh_arguments
from experiments.regimes.leads import Lead, is_lead, lead_trainee

if TYPE_CHECKING:
    from experiments.regimes.fine_tunes import Run

TORCH = ("adamw", "adafactor")  # Optimizers of torch itself.
MOMENTUM = 0.9
NORMS = {"norms4": 4.0, "norms8": 8.0}
ADDED = ("b1=0", "kw", "momentum", "decay8", *NORMS)


def without_added(method: str) -> tuple[str, tuple[str, ...]]:
    """Return the name that `methods.py` knows, and the additions to it."""
    names = method.split("+")
    kept = [name for name in names if name not in ADDED]
    return "+".join(kept), tuple(name for name in names if name in ADDED)


def why_not(method: str, dtype: str) -> str | None:
    """Reason against a method with weights of this type; None if there is none."""
    base, added = without_added(method)
    if is_lead(base):
        Lead.of(base)  # Raises if no lead has that name.
        if added or dtype != "fp32":
            return f"{base} is simulated; it takes no additions and only fp32 weights"
        return None
    own_groups = base == "apollo" or base.startswith("lora")
    if own_groups and added:
        return f"{base} has parameter groups of its own; remove +{added[0]}"
    if own_groups and dtype != "fp32":
        return f"{base} would round its weights to nearest, expected fp32 weights"
    if "b1=0" in added and base == "adafactor":
        return "adafactor has no first moment; remove +b1=0"
    if len(rates := [name for name in added if name in NORMS]) > 1:
        return f"norms have one rate; keep one of +{' and +'.join(rates)}"
    if "momentum" in added and base not in TORCH:
        return f"+momentum needs an optimizer of torch, expected one of {', '.join(TORCH)}"
    return None


@contextlib.contextmanager
def prepared(model: nn.Module, run: Run) -> Iterator[Trainee]:
    """Make `model` ready for `run`."""
    method, added = without_added(run.method)
    engine = {"accumulate": run.accumulate, "tokens_per_step": run.tokens,
              "total_steps": run.steps, "weight_update": "stochastic"}  # fmt: skip
    refresh, groups = refresh_arguments(run.refresh), groups_of(model, added)
    if is_lead(method):
        with lead_trainee(model, method, run.ratio, run.lr, run.seed, refresh) as t:
            yield t
        return
    with trainee(model, method, run.ratio, run.lr, run.seed, refresh, groups, engine) as t:
        if "momentum" in added:
            average_steps(t.optimizer, t.trained)
            t.state_bytes += 4 * sum(p.numel() for _, p in block_weights(model))
        if "b1=0" in added and method == "adamw":
            t.state_bytes -= 4 * sum(p.numel() for _, p in block_weights(model))
        if run.dtype == "bf16" and method in TORCH:
            round_steps(t.optimizer, t.trained, run.seed)
        yield t


def groups_of(model: nn.Module, added: tuple[str, ...]) -> list[dict[str, Any]] | None:
    """Return parameter groups; None if one group is enough."""
    if not {*added} - {"momentum"}:
        return None
    decay = WEIGHT_DECAY * (8 if "decay8" in added else 1)
    factor = next((k for name, k in NORMS.items() if name in added), 1.0)
    matrices = [p for _, p in block_weights(model)]
    chosen = {id(p) for p in matrices}
    rest = [p for p in model.parameters() if p.requires_grad and id(p) not in chosen]
    groups: list[dict[str, Any]] = [{"params": matrices, "weight_decay": decay}]
    if "kw" in added:
        factors = weight_factors(matrices)
        groups = [{"params": [p], "lr_factor": k, "weight_decay": decay / k}
                  for p, k in zip(matrices, factors, strict=True)]  # fmt: skip
    if "b1=0" in added:
        groups = [{**group, "betas": (0.0, 0.999)} for group in groups]
    return [*groups, {"params": rest, "lr_factor": factor, "weight_decay": decay / factor}]


def average_steps(optimizer: torch.optim.Optimizer, trained: list[nn.Parameter],
                  beta: float = MOMENTUM) -> None:  # fmt: skip
    """Apply at every step u <- beta u + (1 - beta) (W_after - W_before); W <- W_before + u."""
    averages = [torch.zeros_like(p, dtype=torch.float32) for p in trained]
    held: list[torch.Tensor] = []

    @torch.no_grad()
    def before(*_: Any) -> None:
        held[:] = [p.detach().clone() for p in trained]

    @torch.no_grad()
    def after(*_: Any) -> None:
        for p, u, old in zip(trained, averages, held, strict=True):
            u.mul_(beta).add_(p - old, alpha=1 - beta)
            p.copy_(old + u)

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)


def round_steps(optimizer: torch.optim.Optimizer, trained: list[nn.Parameter], seed: int) -> None:
    """Make weights and gradients f32 inside `step()`, and bf16 outside."""
    random = torch.Generator().manual_seed(seed)

    @torch.no_grad()
    def before(*_: Any) -> None:
        for p in trained:
            gradient, p.grad = p.grad, None
            p.data = p.data.float()
            p.grad = None if gradient is None else gradient.float()

    @torch.no_grad()
    def after(*_: Any) -> None:
        for p in trained:
            p.grad = None
            p.data = rounded_at_random(p.data, random)

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)


def rounded_at_random(x: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    """Round each value to one of its two bf16 neighbours at random, so that the mean is x."""
    bits = x.contiguous().view(torch.int32)
    noise = torch.randint(0, 1 << 16, bits.shape, generator=random, dtype=torch.int32)
    return ((bits + noise) & ~0xFFFF).view(torch.float32).bfloat16()
