"""Projectors of the simulation: P and Q as dense matrices, by the product's own definitions.

    block_random    groups of BLOCK rows, each turned by a random block with orthonormal columns
    svd             leading singular directions of one gradient, by a randomised range finder
    sparse_learned  NNZ nonzeros a row at random positions, values learned on one gradient

The product's optimizer keeps its projectors to itself and hands out only cores. So torch's
generator draws these: the same distributions, other draws. Sizes are the product's: round(f m)
columns of P, round(f n) of Q, by groups for blocks. Only `sparse_learned`, which is the paper's
unchanged, has columns that are not orthonormal.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from typing import NamedTuple

import torch

BLOCK = 32
NNZ = 4
EXTRA_DIRECTIONS, POWER_ITERATIONS = 8, 2  # Extra columns and rounds of the range finder.
LEARN_STEPS, LEARN_RATE, LEARN_BETA = 100, 0.1, 1e-4


class Pair(NamedTuple):
    """P is m x dm, Q is n x dn."""

    p: torch.Tensor
    q: torch.Tensor

    def compress(self, g: torch.Tensor) -> torch.Tensor:
        """S = P^T G Q."""
        return self.p.T @ g @ self.q

    def decompress(self, s: torch.Tensor) -> torch.Tensor:
        """P S Q^T."""
        return self.p @ s @ self.q.T


# Arguments: the current gradient, f, a generator, and the number of learning steps.
Draw = Callable[[torch.Tensor, float, torch.Generator, int], Pair]


def generator_of(seed: int, name: str, step: int) -> torch.Generator:
    """Generator for a weight at a step: equal arguments give equal projectors."""
    return torch.Generator().manual_seed(zlib.crc32(f"{seed} {name} {step}".encode()))


def kept(ratio: float, rows: int) -> int:
    """Return the number of columns for `rows` rows."""
    return min(rows, max(1, math.floor(ratio * rows + 0.5)))


def core_shape(method: str, ratio: float, rows: int, cols: int) -> tuple[int, int]:
    """Return rows and columns of S for a gradient of that shape."""
    if method == "block_random":
        return sum(_columns(rows, ratio)), sum(_columns(cols, ratio))
    most = min(rows, cols) if method == "svd" else max(rows, cols)
    return min(kept(ratio, rows), most), min(kept(ratio, cols), most)


def _groups(rows: int) -> list[int]:
    return [BLOCK] * (rows // BLOCK) + [rows % BLOCK] * (rows % BLOCK > 0)


def _columns(rows: int, ratio: float) -> list[int]:
    return [kept(ratio, size) for size in _groups(rows)]


def _blocks(rows: int, ratio: float, generator: torch.Generator) -> torch.Tensor:
    sides = zip(_groups(rows), _columns(rows, ratio), strict=True)
    drawn = [torch.randn(size, cols, generator=generator) for size, cols in sides]
    return torch.block_diag(*(torch.linalg.qr(x).Q for x in drawn))


def block_random(g: torch.Tensor, ratio: float, generator: torch.Generator, _: int) -> Pair:
    """Draw block projectors; only the gradient's shape is used."""
    return Pair(_blocks(g.shape[0], ratio, generator), _blocks(g.shape[1], ratio, generator))


def svd(g: torch.Tensor, ratio: float, generator: torch.Generator, _: int) -> Pair:
    """Return the leading singular directions of both sides."""
    dm, dn = core_shape("svd", ratio, *g.shape)
    wide = min(*g.shape, max(dm, dn) + EXTRA_DIRECTIONS)
    base = torch.linalg.qr(g @ torch.randn(g.shape[1], wide, generator=generator)).Q
    for _ in range(POWER_ITERATIONS):
        base = torch.linalg.qr(g @ torch.linalg.qr(g.T @ base).Q).Q
    u, _, vt = torch.linalg.svd(base.T @ g, full_matrices=False)
    return Pair((base @ u)[:, :dm].contiguous(), vt[:dn].T.contiguous())


def _pattern(rows: int, cols: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Positions of the nonzeros as a matrix of 0 and 1, and their values of +-1/sqrt(r)."""
    nnz = min(NNZ, cols)
    places = torch.rand(rows, cols, generator=generator).topk(nnz, dim=1).indices
    mask = torch.zeros(rows, cols).scatter_(1, places, 1.0)
    signs = torch.randint(0, 2, (rows, cols), generator=generator) * 2.0 - 1
    return mask, mask * signs / math.sqrt(nnz)


def relative_bias(g: torch.Tensor, pair: Pair) -> torch.Tensor:
    """|P P^T G Q Q^T - G| / |G|, without forming the difference."""
    core = pair.compress(g)
    whole = g.square().sum()
    both = (pair.p.T @ pair.p) @ core @ (pair.q.T @ pair.q)
    squares = (both * core).sum() - 2 * core.square().sum() + whole
    return (squares.clamp(min=0) / whole + 1e-12).sqrt()


def sparse_learned(g: torch.Tensor, ratio: float, generator: torch.Generator, steps: int) -> Pair:
    """Draw positions, then learn values on `g` for `steps` steps of Adam; the best values stay."""
    shape = core_shape("sparse_learned", ratio, *g.shape)
    sides = [_pattern(side, cols, generator) for side, cols in zip(g.shape, shape, strict=True)]
    masks = [mask for mask, _ in sides]
    values = [value.requires_grad_(True) for _, value in sides]
    adam = torch.optim.Adam(values, lr=LEARN_RATE)
    best, found = math.inf, Pair(*(v.detach().clone() for v in values))
    for step in range(steps + 1):
        with torch.enable_grad():
            pair = Pair(*values)
            bias = relative_bias(g, pair)
            objective = bias + LEARN_BETA * (pair.p.norm() + pair.q.norm())
        if bias.item() < best:
            best, found = bias.item(), Pair(*(v.detach().clone() for v in values))
        if step == steps:
            break
        gradients = torch.autograd.grad(objective, values)
        for value, gradient, mask in zip(values, gradients, masks, strict=True):
            value.grad = gradient * mask
        adam.step()
    return found


DRAWS: dict[str, Draw] = {
    "block_random": block_random,
    "svd": svd,
    "sparse_learned": sparse_learned,
}
ORTHONORMAL = ("block_random", "svd")
