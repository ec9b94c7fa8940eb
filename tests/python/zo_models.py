"""Models small enough for an oracle in plain Python, and what is done with them."""

from __future__ import annotations

import sluiceway
import torch
from torch import nn
from torch.nn import functional


class ZoBlock(nn.Module):
    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 13)
        self.down = nn.Linear(13, width, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.dropout(self.down(functional.gelu(self.up(self.norm(x)))))


class ZoDecoder(nn.Module):
    """Embedding, blocks, norm, and a head that is tied to the embedding."""

    def __init__(self, blocks: int = 3, width: int = 7, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, width)
        self.layers = nn.ModuleList(ZoBlock(width, dropout) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def decoder(seed: int = 0, **changes: object) -> ZoDecoder:
    torch.manual_seed(seed)
    return ZoDecoder(**changes)


def zo_ids(step: int, rows: int = 3) -> torch.Tensor:
    """Tokens that are a function of `step` alone."""
    return torch.randint(0, 11, (rows, 9), generator=torch.Generator().manual_seed(step))


def zo_loss(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """Compute the loss of the next token."""
    return functional.cross_entropy(model(ids)[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())


class Table(nn.Module):
    """Returns a part of its own weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 5))

    def forward(self, rows: int) -> torch.Tensor:
        return self.weight[:rows]


class Gate(nn.Module):
    """Has a weight of its own around a child, and a list that nobody calls."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(5))
        self.inner = nn.Linear(5, 5)
        self.biases = nn.ParameterList([torch.randn(5), torch.randn(5)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale + torch.tanh(self.inner(x) + self.biases[0]) * self.biases[1]


class Anything(nn.Module):
    """A model without blocks: attention, a layer that runs twice, a head with a borrowed weight."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.embed = Table(), nn.Embedding(7, 5)
        self.attention = nn.MultiheadAttention(5, 1, batch_first=True)
        self.twice, self.gate, self.norm = nn.Linear(5, 5), Gate(), nn.LayerNorm(5)
        self.last = nn.Linear(5, 5)
        self.frozen = nn.Linear(5, 5).requires_grad_(False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids) + self.table(ids.shape[1])
        x = x + self.attention(x, x, x, need_weights=False)[0]
        x = self.twice(torch.tanh(self.twice(x)))
        x = self.last.forward(self.frozen(self.norm(self.gate(x))))
        return functional.linear(x, self.embed.weight)


def anything() -> Anything:
    torch.manual_seed(3)
    return Anything()


def anythings_loss(model: nn.Module, step: int) -> torch.Tensor:
    ids = torch.randint(0, 7, (3, 6), generator=torch.Generator().manual_seed(step))
    penalty = 0.01 * model.norm.weight.square().sum()
    return functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten()) + penalty


def computing_in_float32(model: nn.Module) -> nn.Module:
    """Let a model compute in float32 with its own weights, also after a deep copy."""
    embed = model.embed
    embed.forward = lambda ids: functional.embedding(ids, embed.weight).float()
    for linear in (model.head, *(m for block in model.layers for m in (block.up, block.down))):
        linear.forward = lambda x, m=linear: functional.linear(x, m.weight.float(), m.bias)
    return model


def of_dtype(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The same with its matrices in another type, what is tied too, and products in float32."""
    for p in model.parameters():
        p.data = p.data.to(dtype) if p.dim() >= 2 else p.data
    return computing_in_float32(model)


# Of a run whose log is looked at.
OPTIONS = {"lr": 0.02, "weight_decay": 0.5, "directions": 2, "seed": 5}


def on_host(model: nn.Module, **options: object) -> sluiceway.ZoSgd:
    return sluiceway.ZoSgd(model, tier="host", **options)


def own_memory(model: nn.Module) -> list[torch.Tensor]:
    """Copies of what lies in the parameters, which nobody else may read between steps."""
    with torch._C.DisableTorchFunctionSubclass():
        return [p.detach().clone() for p in model.parameters()]


def zo_train(opt: sluiceway.ZoSgd, model: nn.Module, steps: range) -> list[float]:
    """The loss of each step; its tokens follow from its number."""
    return [opt.step(lambda: zo_loss(model, zo_ids(s))).item() for s in steps]  # noqa: B023


def same(state: dict[str, torch.Tensor], model: nn.Module) -> bool:
    expected = model.state_dict()
    assert state.keys() == expected.keys()
    return all(torch.equal(state[name], expected[name]) for name in expected)
