"""Models that are small and still have what breaks optimizers: norms, biases, several linears."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

WIDTH = 256  # 256 x 256 is the smallest square weight that is compressed.


class Block(nn.Module):
    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, width)
        self.down = nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(functional.gelu(self.up(self.norm(x))))


class Stack(nn.Module):
    """Blocks between a small input layer and a small head, trained to fit random targets."""

    def __init__(self, blocks: int = 2, width: int = WIDTH) -> None:
        super().__init__()
        self.enter = nn.Linear(16, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.leave = nn.Linear(width, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.enter(x)
        for block in self.blocks:
            x = block(x)
        return self.leave(x)


class Checkpointed(Stack):
    reentrant = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.enter(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return self.leave(x)


class CheckpointedReentrant(Checkpointed):
    reentrant = True


class Tied(Stack):
    """The second block uses the weight of the first, inside checkpointed segments too."""

    def __init__(self, reentrant: bool | None = None) -> None:
        super().__init__()
        self.blocks[1].up.weight = self.blocks[0].up.weight
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.enter(x)
        for block in self.blocks:
            if self.reentrant is None:
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=self.reentrant)
        return self.leave(x)


class Bare(nn.Module):
    """Compressed weights and nothing else, so that no ordinary gradient tells of anything."""

    def __init__(self, layers: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers))

    def forward(self, x: torch.Tensor, skipped: int | None = None) -> torch.Tensor:
        x = functional.pad(x, (0, WIDTH - x.shape[1]), value=0.1)
        for number, layer in enumerate(self.layers):
            x = x if number == skipped else x + torch.tanh(layer(x))
        return x[:, :8]


def make(kind: type[nn.Module] = Stack, seed: int = 0, **arguments: object) -> nn.Module:
    torch.manual_seed(seed)
    return kind(**arguments)


def batch(step: int, rows: int = 24) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets that are a function of `step` alone."""
    generator = torch.Generator().manual_seed(1000 + step)
    return (
        torch.randn(rows, 16, generator=generator),
        torch.randn(rows, 8, generator=generator),
    )


def loss_of(model: nn.Module, step: int) -> torch.Tensor:
    x, y = batch(step)
    return functional.mse_loss(model(x).float(), y)


def weights_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def two_groups(model: nn.Module, lr: float) -> list[dict]:
    """Matrices with decay; vectors with none, at another rate."""
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() != 2]
    return [
        {"params": matrices, "lr": lr, "weight_decay": 0.05},
        {"params": vectors, "lr": lr / 2, "weight_decay": 0.0},
    ]


def distance(left: nn.Module, right: nn.Module) -> float:
    """Norm of the difference of all weights over the norm of `right`'s."""
    difference = sum((a - b).double().square().sum() for a, b in _pairs(left, right))
    size = sum(b.double().square().sum() for _, b in _pairs(left, right))
    return float((difference / size).sqrt())


def relative_error(
    start: Iterable[torch.Tensor], ours: Iterable[torch.Tensor], theirs: Iterable[torch.Tensor]
) -> float:
    """Norm of the difference of two updates of `start`, over the norm of the one to `theirs`."""
    rows = [[x.detach().double() for x in row] for row in zip(start, ours, theirs, strict=True)]
    difference = sum((mine - other).square().sum() for _, mine, other in rows)
    update = sum((other - old).square().sum() for old, _, other in rows)
    assert update > 0
    return float((difference / update).sqrt())


def update_error(start: nn.Module, ours: nn.Module, theirs: nn.Module) -> float:
    """`relative_error` of all parameters of two models that were trained from `start`."""
    return relative_error(start.parameters(), ours.parameters(), theirs.parameters())


def _pairs(left: nn.Module, right: nn.Module) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [
        (a.detach().float(), b.detach().float())
        for a, b in zip(left.parameters(), right.parameters(), strict=True)
    ]


def same_bits(left: nn.Module, right: nn.Module) -> bool:
    return all(
        torch.equal(a, b) for a, b in zip(left.parameters(), right.parameters(), strict=True)
    )


def elsewhere(act):
    """Run `act` in a thread of its own; return what it raised."""
    raised = []

    def run():
        try:
            act()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, name="elsewhere")
    thread.start()
    thread.join()
    return raised[0] if raised else None


def backward_that_calls(model, act, step=0):
    """A backward that calls `act` when the upper half of the model has its gradients."""
    x, y = batch(step)
    half = model.blocks[0](model.enter(x))
    half.register_hook(lambda _: act())
    functional.mse_loss(model.leave(model.blocks[1](half)), y).backward()
