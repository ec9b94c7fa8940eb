"""Twins that one library trains, with ours and with torch's AdamW, over a link that is slow."""

from __future__ import annotations

from collections.abc import Callable

import sluiceway as sw
import torch
from small_models import relative_error, weights_of
from torch import nn
from torch.utils.data import Dataset
from twins import LR, identity

STEPS = 8
TOLERANCE = 1e-5
# A weight of 256 x 256 needs 5 ms each way, the whole forward of a model here some 5 ms: whoever
# reads a weight without waiting for it reads the last step's.
LINK = sw.Link(d2h_gbps=0.05, h2d_gbps=0.05)

Drive = Callable[[nn.Module, torch.optim.Optimizer], None]


def freeze_as(opt: sw.SubspaceAdamW, model: nn.Module) -> None:
    """Freeze in a twin what our optimizer leaves out by default."""
    for name, _ in opt.frozen:
        model.get_parameter(name).requires_grad_(False)


def native(model: nn.Module, **arguments: object) -> torch.optim.AdamW:
    """Make the optimizer that users would have without ours."""
    trained = [p for p in model.parameters() if p.requires_grad]
    return torch.optim.AdamW(trained, lr=LR, foreach=False, **arguments)


def _what_the_loss_sees(name: str, weight: torch.Tensor) -> torch.Tensor:
    """Leave out the bias of attention's keys: its gradient is zero but for rounding.

    Softmax does not see it, and Adam makes a whole step of any rounding.
    """
    if name.endswith(("key.bias", "k_proj.bias")):
        return weight[:0]
    if name.endswith(("c_attn.bias", "in_proj_bias")):
        queries, _, values = weight.chunk(3)
        return torch.cat((queries, values))
    return weight


def seen_weights(model: nn.Module) -> list[torch.Tensor]:
    """Copies of all weights that a loss depends on; wrappers may change their names."""
    return [_what_the_loss_sees(name, w) for name, w in weights_of(model).items()]


def error_of_update(before: list[torch.Tensor], ours: nn.Module, theirs: nn.Module) -> float:
    """`relative_error` of all weights that a loss depends on."""
    return relative_error(before, seen_weights(ours), seen_weights(theirs))


def disagreement(
    make_model: Callable[[], nn.Module],
    drive: Drive,
    ours_of: Callable[..., torch.optim.Optimizer] = identity,
    **arguments: object,
) -> float:
    """Train twins by `drive(model, optimizer)`; return the relative error of our update."""
    ours, theirs = make_model(), make_model()
    before = seen_weights(ours)
    with ours_of(ours, **{"link": LINK, **arguments}) as opt:
        freeze_as(opt, theirs)
        torch.manual_seed(1)  # Of dropout.
        drive(ours, opt)
        opt.synchronize()
    torch.manual_seed(1)
    drive(theirs, native(theirs))
    return error_of_update(before, ours, theirs)


def check_row(
    record_property: Callable[[str, object], None],
    row: str,
    error: float,
    tolerance: float = TOLERANCE,
) -> None:
    """Leave the figure for the table of libraries, and hold it against the tolerance."""
    record_property("compat_row", row)
    record_property("compat_error", error)
    assert error <= tolerance


def loop(loss: Callable[[nn.Module, int], torch.Tensor]) -> Drive:
    """The usual five lines, over batches that are a function of their number."""

    def drive(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for step in range(STEPS):
            loss(model, step).backward()
            optimizer.step()
            optimizer.zero_grad()

    return drive


# ---- Sequences for a language model ----


class Tokens(Dataset):
    """Sequences that are a function of their index alone."""

    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(0, 64, (24,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens.clone()}


def batch_of(step: int, rows: int = 2) -> dict[str, torch.Tensor]:
    """A few sequences at once."""
    chosen = [Tokens()[rows * step + row] for row in range(rows)]
    return {key: torch.stack([one[key] for one in chosen]) for key in chosen[0]}


def language_loss(model: nn.Module, step: int) -> torch.Tensor:
    return model(**batch_of(step)).loss
