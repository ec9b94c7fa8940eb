"""MeZO's equations anew: nothing is shared with the package but the numbers that come out.

    g = (L(theta + eps z) - L(theta - eps z)) / (2 eps)
    Gamma' = Gamma (1 - lr wd),   A' = fma(c, z, A) with c = -lr g / (q Gamma'),   theta = Gamma A

Noise is philox4x32-10 and the Rademacher rule of kernels/noise.h in Python's own integers. Weights
are perturbed as a whole, in a copy of the model.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

M0, M1, W0, W1 = 0xD2511F53, 0xCD9E8D57, 0x9E3779B9, 0xBB67AE85
MASK = 0xFFFFFFFF


def philox(counter: tuple[int, ...], key: tuple[int, int]) -> tuple[int, ...]:
    """Ten rounds [Salmon 2011]."""
    c, k = counter, key
    for _ in range(10):
        p0, p1 = M0 * c[0], M1 * c[2]
        c = ((p1 >> 32) ^ c[1] ^ k[0], p1 & MASK, (p0 >> 32) ^ c[3] ^ k[1], p0 & MASK)
        k = ((k[0] + W0) & MASK, (k[1] + W1) & MASK)
    return c


def rademacher(count: int, seed: int, step: int, tensor: int, purpose: int) -> np.ndarray:
    """z of the first `count` elements."""
    halves = (seed & MASK, seed >> 32)
    key = philox((step & MASK, step >> 32, purpose, 0), halves)[:2]
    words: dict[int, tuple[int, ...]] = {}
    z = np.empty(count, np.float32)
    for i in range(count):
        word = 64 * (i // 2048) + 16 * (i % 2048 // 512) + i % 16
        block = 16 * (word // 64) + word % 16
        if block not in words:
            counter = (block & MASK, block >> 32, tensor & MASK, tensor >> 32)
            words[block] = philox(counter, key)
        bits = words[block][word % 64 // 16]
        z[i] = -1.0 if bits >> (31 - i // 16 % 32) & 1 else 1.0
    return z


def fma(a: np.float32, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """a x + y, rounded once.

    The product of two float32 is exact in float64, their sum with a third is not: what it loses is
    found exactly, and makes its last bit odd, so that rounding to float32 cannot err twice.
    """
    product = np.float64(a) * x.astype(np.float64)
    other = y.astype(np.float64)
    total = product + other
    back = total - product
    lost = (product - (total - back)) + (other - back)
    bits = total.view(np.int64)
    even = (lost != 0) & (bits & 1 == 0)
    outwards = (lost > 0) == (total > 0)
    odd = np.where(even, np.where(outwards, bits + 1, bits - 1), bits).view(np.float64)
    return odd.astype(np.float32)


class Oracle:
    """A model that is trained by the equations, in memory.

    Parameters
    ----------
    model : torch.nn.Module
        Is changed.
    groups : list of dict
        params, weight_decay.
    names : callable
        The number that names a tensor in its noise.
    draw : callable, optional
        Another z; takes what `rademacher` takes.
    """

    def __init__(
        self,
        model: nn.Module,
        groups: list[dict],
        eps: float,
        seed: int,
        directions: int,
        names: Callable[[str], int],
        draw: Callable[..., np.ndarray] = rademacher,
    ) -> None:
        self.model, self.groups, self.step_number = model, groups, 0
        self.eps, self.seed, self.directions, self.draw = np.float32(eps), seed, directions, draw
        self.tensors = {n: (p, names(n)) for n, p in model.named_parameters() if p.requires_grad}
        self.a = {n: p.detach().float().numpy().copy() for n, (p, _) in self.tensors.items()}
        self.gamma = [1.0] * len(groups)

    def _group(self, p: nn.Parameter) -> int:
        return next(
            i for i, group in enumerate(self.groups) if any(p is q for q in group["params"])
        )

    def _z(self, name: str, direction: int) -> np.ndarray:
        p, tensor = self.tensors[name]
        z = self.draw(p.numel(), self.seed, self.step_number, tensor, direction)
        return z.reshape(tuple(p.shape))

    def _theta(self, name: str) -> np.ndarray:
        gamma = np.float32(self.gamma[self._group(self.tensors[name][0])])
        return gamma * self.a[name]

    @torch.no_grad()
    def _loss(self, loss_of: Callable, noise: dict, sign: int) -> np.float32:
        moved = copy.deepcopy(self.model)
        for name, p in moved.named_parameters():
            if name in noise:
                p.copy_(torch.from_numpy(fma(sign * self.eps, noise[name], self._theta(name))))
        return np.float32(loss_of(moved).item())

    def step(self, loss_of: Callable[[nn.Module], torch.Tensor], lr: list[float]) -> float:
        """One step; returns the mean of all losses."""
        losses, gradients, noises = [], [], []
        for direction in range(self.directions):
            noise = {name: self._z(name, direction) for name in self.tensors}
            plus, minus = (self._loss(loss_of, noise, sign) for sign in (1, -1))
            g = (plus - minus) / (self.eps + self.eps)
            finite = np.isfinite(plus) and np.isfinite(minus) and np.isfinite(g)
            gradients.append(float(g) if finite else 0.0)
            losses += [plus, minus]
            noises.append(noise)
        for index, (group, rate) in enumerate(zip(self.groups, lr, strict=True)):
            self.gamma[index] *= 1 - rate * group["weight_decay"]
        for name, (p, _) in self.tensors.items():
            index = self._group(p)
            for g, noise in zip(gradients, noises, strict=True):
                c = np.float32(-(lr[index] * g) / (self.directions * self.gamma[index]))
                self.a[name] = fma(c, noise[name], self.a[name])
            with torch.no_grad():
                p.copy_(torch.from_numpy(self._theta(name)))
        self.step_number += 1
        return torch.tensor(np.array(losses)).mean().item()
