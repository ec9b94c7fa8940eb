"""Models with every kind of parameter, trained by OffloadAdamW on a link that is slow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import sluiceway as sw
import torch
from small_models import make, update_error
from torch import nn
from torch.nn import functional

SLOW = sw.Link(d2h_gbps=0.02, h2d_gbps=0.02)  # 16,384 elements take 3 ms each way.
LR = 1e-3
CHUNK = 16 << 10  # 4096 elements: some tensors have chunks of their own, others share.


class Words(nn.Module):
    """An embedding tied to the head, norms, biases, a scalar, and a layer that nobody calls."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(96, 64)
        self.up = nn.Linear(64, 160)
        self.norm = nn.LayerNorm(160)
        self.down = nn.Linear(160, 64, bias=False)
        self.unused = nn.Linear(5, 3)
        self.gain = nn.Parameter(torch.tensor(1.5))
        self.shift = nn.Parameter(torch.zeros(1))
        self.empty = nn.Parameter(torch.zeros(0, 3))
        self.head = nn.Linear(64, 96, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.embed(words)
        x = x + self.gain * self.down(functional.gelu(self.norm(self.up(x)))) + self.shift
        return self.head(x)


def loss_of(model: nn.Module, step: int) -> torch.Tensor:
    """A function of `step` alone."""
    words = torch.randint(0, 96, (6, 9), generator=torch.Generator().manual_seed(step))
    logits = model(words[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1).float(), words[:, 1:].flatten())


def words(seed: int = 0, dtype: torch.dtype = torch.float32) -> Words:
    return make(Words, seed).to(dtype)


def offload(model: nn.Module, folder: Path | None = None, **arguments: object) -> sw.OffloadAdamW:
    """Make an OffloadAdamW in host memory, or on disk if a folder is given."""
    where = {} if folder is None else {"tier": "disk", "path": folder}
    return sw.OffloadAdamW(
        model, **{"lr": LR, "weight_decay": 0.05, "chunk": CHUNK, **where, **arguments}
    )


def native(model: nn.Module, **arguments: object) -> torch.optim.AdamW:
    arguments = {"params": model.parameters(), "lr": LR, "weight_decay": 0.05, **arguments}
    return torch.optim.AdamW(**arguments, foreach=False)


def run(model: nn.Module, opt: torch.optim.Optimizer, steps: int, first: int = 0) -> None:
    for step in range(first, first + steps):
        loss_of(model, step).backward()
        opt.step()
        opt.zero_grad()


def run_scaled(
    model: nn.Module,
    opt: torch.optim.Optimizer,
    steps: int,
    loss_at: Callable[[nn.Module, int], torch.Tensor] = loss_of,
) -> None:
    """Train with a scaler that skips the third step, and with torch's clipping."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
    for step in range(steps):
        loss = loss_at(model, step)
        scaler.scale(loss * float("inf") if step == 2 else loss).backward()
        scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()


Drive = Callable[[nn.Module, torch.optim.Optimizer], None]


def error_of(
    drive: Drive,
    groups: Callable[[nn.Module], list] | None = None,
    model: Callable[[], nn.Module] = words,
    **arguments: object,
) -> float:
    """Difference of our update from torch's, relative to its size."""
    ours, theirs = model(), model()
    theirs_of = {} if groups is None else {"params": groups(theirs)}
    drive(theirs, native(theirs, **theirs_of))
    ours_of = {} if groups is None else {"param_groups": groups(ours)}
    with offload(ours, link=SLOW, **ours_of, **arguments) as opt:
        drive(ours, opt)
    return update_error(model(), ours, theirs)


def train_counting(
    model: nn.Module,
    opt: sw.OffloadAdamW,
    loss_at: Callable[[int], torch.Tensor],
    steps: int,
    backwards: int,
) -> list[float]:
    """Train with torch's clipping; return the losses, and put the bytes into `opt.crossed`."""
    losses, opt.crossed = [], {"d2h": 0, "h2d": 0}
    for step in range(steps):
        for part in range(backwards):
            loss = loss_at(backwards * step + part)
            loss.backward()
            losses.append(loss.item())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        opt.step()
        opt.zero_grad()
        for way in opt.crossed:
            opt.crossed[way] += opt.stats()["bytes"][way]
    return losses


def peak_of_backward(
    opt: sw.OffloadAdamW, loss_at: Callable[[int], torch.Tensor], steps: int = 2
) -> int:
    """Bytes of the device that forward and backward of the last step take beside what is there."""
    for step in range(steps):
        opt.device.reset_peak()
        before = opt.device.allocated_bytes()
        loss_at(step).backward()
        peak = opt.device.peak_bytes() - before
        opt.step()
        opt.zero_grad()
    return peak
