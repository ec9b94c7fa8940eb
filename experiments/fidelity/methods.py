"""Ways of training that the experiment compares, as (parameters to train, optimizer)."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from sluiceway.optim.subspace.optimizer import SubspaceAdamW
from torch import nn

WEIGHT_DECAY = 0.01
CODECS = ("svd", "block_random", "block_pca", "sparse_random", "sparse_learned", "count_sketch",
          "galore", "topk_columns", "none")  # fmt: skip
OPTIONS = {
    "residual": {"residual": "factored"},
    "sign": {"residual": "sign"},
    "unclipped": {"_residual_max_rms": math.inf},  # Adafactor's clip is left out.
    "factored_v": {"second_moment": "factored"},  # The core's second moment.
    # Cores without gradients; then steps between two gradients of a weight, for its residual.
    "fused": {"fused": True, "share_inputs": True},
    **{f"every{k}": {"residual_every": k} for k in (2, 4, 8)},
}


@dataclass
class Trainee:
    """A model made ready for one method."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    trained: list[nn.Parameter]
    state_bytes: int | None = None  # Bytes on the device beyond the weights; None: not counted.
    link_bytes: int = 0  # Bytes over the link in a step, both ways.


def block_weights(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """The matrices that codecs compress."""
    return [(n, p) for n, p in model.named_parameters() if p.dim() == 2 and p.requires_grad]


@contextlib.contextmanager
def trainee(model: nn.Module, method: str, ratio: float, lr: float, seed: int,
            refresh: dict[str, Any] | None = None, groups: list[dict[str, Any]] | None = None,
            engine: dict[str, Any] | None = None) -> Iterator[Trainee]:  # fmt: skip
    """Prepare `model` for `method`.

    Parameters
    ----------
    method : str
        adamw, adafactor, lora8, lora32, apollo, or a codec of CODECS with any of OPTIONS, as in
        `svd+residual+factored_v`; `none+residual` is the residual alone.
    ratio : float
        f of the codecs; a core is f m x f n.
    groups : list of dict, optional
        Parameter groups in place of one with all that is trained; LoRA and APOLLO have their own.
    engine : dict, optional
        More options of SubspaceAdamW.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    matrices = sum(p.numel() for _, p in block_weights(model))
    if method == "adamw":
        optimizer = torch.optim.AdamW(groups or trained, lr=lr, weight_decay=WEIGHT_DECAY)
        yield Trainee(model, optimizer, trained, 8 * matrices)
    elif method == "adafactor":
        sides = sum(sum(p.shape) for _, p in block_weights(model))
        optimizer = torch.optim.Adafactor(groups or trained, lr=lr, beta2_decay=-0.8,
                                          eps=(None, 1e-3), weight_decay=WEIGHT_DECAY)  # fmt: skip
        yield Trainee(model, optimizer, trained, 4 * sides)
    elif method.startswith("lora"):
        yield _lora(model, int(method.removeprefix("lora")), lr)
    elif method == "apollo":
        yield _apollo(model, trained, ratio, lr, seed)
    else:
        more = {"accumulate": 1, "param_groups": groups, **(engine or {})}
        with _subspace(model, method, ratio, lr, seed, refresh, more) as optimizer:
            costs = optimizer.describe()
            link = sum(c["d2h_bytes"] + c["h2d_bytes"] for c in costs)
            yield Trainee(model, optimizer, trained, sum(c["device_bytes"] for c in costs), link)


def _subspace(model, method, ratio, lr, seed, refresh, more) -> SubspaceAdamW:
    from sluiceway import Refresh

    codec, *chosen = method.split("+")
    options = {"residual": "none", "second_moment": "full", "weight_rates": "equal"}
    for name in chosen:
        options |= OPTIONS[name]
    names = [n for n, _ in block_weights(model)]
    return SubspaceAdamW(
        model,
        lr=lr,
        weight_decay=WEIGHT_DECAY,
        codec="sparse_random" if codec == "count_sketch" else codec,
        nnz=1 if codec == "count_sketch" else 4,
        ratio=ratio,
        refresh=Refresh(**refresh) if refresh else None,
        target=names,
        seed=seed,
        norm_mode="exact",
        **options,
        **more,
    )


def _lora(model: nn.Module, rank: int, lr: float) -> Trainee:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear")
    norms = [p for p in model.parameters() if p.requires_grad and p.dim() == 1]
    adapted = get_peft_model(model, config)
    for p in norms:
        p.requires_grad_(True)  # Every other method trains them too.
    trained = [p for p in adapted.parameters() if p.requires_grad]
    size = sum(p.numel() for p in trained if p.dim() == 2)
    optimizer = torch.optim.AdamW(trained, lr=lr, weight_decay=WEIGHT_DECAY)
    return Trainee(adapted, optimizer, trained, 16 * size)


class Apollo(torch.optim.Optimizer):
    """Gradient scaled by channel, factors from AdamW in a random subspace [arXiv 2412.05270].

    R = P G with Gaussian P of r rows along the shorter side, redrawn every 200 steps; the update is
    G times |AdamW(R)| / |R| per channel of the longer side, its norm kept from growing by more than
    1.01 a step; vectors get AdamW.
    """

    def __init__(self, params, lr: float, ratio: float, seed: int, every: int = 200) -> None:
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.999), "eps": 1e-8})
        self._ratio, self._every = ratio, every
        self._generator = torch.Generator().manual_seed(seed)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._step(p, group)

    def _step(self, p: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[p]
        state["t"] = t = state.get("t", 0) + 1
        tall = p.dim() == 2 and p.shape[0] > p.shape[1]
        g = p.grad.t() if tall else p.grad
        low = g
        if p.dim() == 2:
            rank = max(1, round(self._ratio**2 * g.shape[0]))
            if (t - 1) % self._every == 0:
                state["p"] = torch.randn(rank, g.shape[0], generator=self._generator) / rank**0.5
            low = state["p"] @ g
        direction = adam_direction(state, low, group, t)
        if p.dim() == 2:
            factors = direction.norm(dim=0) / (low.norm(dim=0) + 1e-12)
            direction = g * factors
            norm = direction.norm()
            limit = 1.01 * state.get("norm", float("inf"))
            direction = direction * (limit / norm) if norm > limit else direction
            state["norm"] = min(float(norm), limit)
        p.mul_(1 - group["lr"] * WEIGHT_DECAY)
        p.add_(direction.t() if tall else direction, alpha=-group["lr"])


def adam_direction(state: dict, g: torch.Tensor, group: dict, t: int) -> torch.Tensor:
    """AdamW's step t without rate and decay; `group` has betas and eps, moments are in `state`."""
    beta1, beta2 = group["betas"]
    m = state.setdefault("m", torch.zeros_like(g)).lerp_(g, 1 - beta1)
    v = state.setdefault("v", torch.zeros_like(g)).mul_(beta2).addcmul_(g, g, value=1 - beta2)
    return (m / (1 - beta1**t)) / ((v / (1 - beta2**t)).sqrt() + group["eps"])


def _apollo(model: nn.Module, trained: list, ratio: float, lr: float, seed: int) -> Trainee:
    size = sum(
        2 * max(1, round(ratio**2 * min(p.shape))) * max(p.shape) for _, p in block_weights(model)
    )
    return Trainee(model, Apollo(trained, lr, ratio, seed), trained, 4 * size)
