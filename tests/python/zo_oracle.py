"""MeZO's and LOZO's equations anew: nothing is shared with the package but how names are hashed.

    g = (L(theta + eps z) - L(theta - eps z)) / (2 eps)
    Gamma' = Gamma (1 - lr wd),   A' = fma(c, z, A) with c = -lr g / (q Gamma'),   theta = Gamma A

Noise is that of `zo_noise`. Weights are perturbed as a whole, in a copy of the model.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import torch
from sluiceway import _core
from torch import nn
from zo_noise import fma, gaussian, rademacher, to_bfloat16_at_random

Draw = Callable[[list[int], int, int, list[int], int], list[np.ndarray]]


def fp8_values(x: np.ndarray) -> np.ndarray:
    """Round to E4M3 with a power of two for each 128 in a row (kernels/fp8_image.h)."""
    flat = torch.from_numpy(x).reshape(-1)
    blocks = nn.functional.pad(flat, (0, -len(flat) % 128)).reshape(-1, 128)
    largest = torch.where(blocks.isfinite(), blocks, 0).abs().amax(1, keepdim=True)
    part, exponent = torch.frexp(largest.double() / 464)
    exponent = torch.where(part == 0.5, exponent - 1, exponent).clamp(-116, 119)
    elements = torch.ldexp(blocks.double(), -exponent).clamp(-448, 448).float()
    values = torch.ldexp(elements.to(torch.float8_e4m3fn).double(), exponent).float()
    return values.reshape(-1)[: len(flat)].reshape(x.shape).numpy()


def fp8_bytes(elements: int) -> int:
    """Bytes of an fp8 image: 16 scales for each 2,048 elements."""
    return elements + 16 * -(-elements // 2048)


def groups_of(model: nn.Module, weight_decay: float) -> list[dict]:
    trained = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
    ]


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
        draw: Draw = rademacher,
    ) -> None:
        self.model, self.groups, self.step_number = model, groups, 0
        self.eps, self.seed, self.directions, self.draw = np.float32(eps), seed, directions, draw
        self.tensors = {n: (p, names(n)) for n, p in model.named_parameters() if p.requires_grad}
        self.a = {n: p.detach().float().numpy().copy() for n, (p, _) in self.tensors.items()}
        self.gamma = [1.0] * len(groups)
        self.moved = copy.deepcopy(model)  # All of it is overwritten whenever it is measured.
        self._drawn: dict[tuple[int, int], dict[str, np.ndarray]] = {}

    def _group(self, p: nn.Parameter) -> int:
        return next(
            i for i, group in enumerate(self.groups) if any(p is q for q in group["params"])
        )

    def _draw(self, counts: dict[str, int], step: int, purpose: int) -> dict[str, np.ndarray]:
        """Draw `counts` numbers for each name, once a step."""
        if (step, purpose) not in self._drawn:
            tensors = [self.tensors[name][1] for name in counts]
            z = self.draw([*counts.values()], self.seed, step, tensors, purpose)
            self._drawn[step, purpose] = dict(zip(counts, z, strict=True))
        return self._drawn[step, purpose]

    def _z(self, name: str, direction: int) -> np.ndarray:
        counts = {name: a.size for name, a in self.a.items()}
        return self._draw(counts, self.step_number, direction)[name].reshape(self.a[name].shape)

    def _move(self, name: str, c: np.float32, direction: int, z: np.ndarray) -> None:
        self.a[name] = fma(c, z, self.a[name])

    def _theta(self, name: str) -> np.ndarray:
        gamma = np.float32(self.gamma[self._group(self.tensors[name][0])])
        return gamma * self.a[name]

    def _measured(self, name: str, theta: np.ndarray) -> np.ndarray:
        """Return the weights that are perturbed: theta, unless a subclass says otherwise."""
        return theta

    @torch.no_grad()
    def _loss(self, loss_of: Callable, theta: dict, noise: dict, sign: int) -> np.float32:
        for name, p in self.moved.named_parameters():
            if name in noise:
                p.copy_(torch.from_numpy(fma(sign * self.eps, noise[name], theta[name])))
        return np.float32(loss_of(self.moved).item())

    def step(self, loss_of: Callable[[nn.Module], torch.Tensor], lr: list[float]) -> float:
        """One step; returns the mean of all losses."""
        losses, gradients = [], []
        theta, noises = self._theta_of_all(), self._noises()
        for noise in noises:
            plus, minus = (self._loss(loss_of, theta, noise, sign) for sign in (1, -1))
            g = (plus - minus) / (self.eps + self.eps)
            finite = np.isfinite(plus) and np.isfinite(minus) and np.isfinite(g)
            gradients.append(float(g) if finite else 0.0)
            losses += [plus, minus]
        self.move(gradients, lr, noises)
        return torch.tensor(np.array(losses)).mean().item()

    def move(self, gradients: list[float], lr: list[float], noises: list[dict] | None = None):
        """One step with these g, whoever has measured them."""
        noises = self._noises() if noises is None else noises
        for index, (group, rate) in enumerate(zip(self.groups, lr, strict=True)):
            self.gamma[index] *= 1 - rate * group["weight_decay"]
        for name, (p, _) in self.tensors.items():
            index = self._group(p)
            for direction, (g, noise) in enumerate(zip(gradients, noises, strict=True)):
                c = np.float32(-(lr[index] * g) / (self.directions * self.gamma[index]))
                self._move(name, c, direction, noise[name])
            with torch.no_grad():
                p.copy_(torch.from_numpy(self._theta(name)))
        self.step_number += 1
        self._drawn.clear()

    @torch.no_grad()
    def write(self, at_random: bool) -> None:
        """Let theta be what the next steps begin from: Gamma is 1 again, and A is a new base.

        Of a weight of bfloat16 it is rounded at random, or not at all.
        """
        for name, (p, tensor) in self.tensors.items():
            self.a[name] = self._theta(name)
            if at_random and p.dtype is torch.bfloat16:
                self.a[name] = to_bfloat16_at_random(
                    self.a[name], self.seed, self.step_number, tensor, 2**31
                )
            p.copy_(torch.from_numpy(self.a[name]))
        self.gamma = [1.0] * len(self.groups)

    def _theta_of_all(self) -> dict[str, np.ndarray]:
        return {name: self._measured(name, self._theta(name)) for name in self.tensors}

    def _noises(self) -> list[dict[str, np.ndarray]]:
        """z of every weight, one dict a direction."""
        return [{name: self._z(name, d) for name in self.tensors} for d in range(self.directions)]

    @torch.no_grad()
    def gradients_in_double(self, loss_of: Callable[[nn.Module], torch.Tensor]) -> list[tuple]:
        """L(theta + eps z), L(theta - eps z) and g of each direction, but for theta in double."""
        theta, found = self._theta_of_all(), []
        moved = copy.deepcopy(self.model).double()
        for direction in range(self.directions):
            z = {name: self._z_in_double(name, direction) for name in self.tensors}
            losses = []
            for sign in (1, -1):
                for name, p in moved.named_parameters():
                    if name in z:
                        p.copy_(torch.from_numpy(theta[name] + sign * float(self.eps) * z[name]))
                losses.append(loss_of(moved).item())
            found.append((*losses, (losses[0] - losses[1]) / (2 * float(self.eps))))
        return found

    def _z_in_double(self, name: str, direction: int) -> np.ndarray:
        return self._z(name, direction).astype(np.float64)


class WriteBackOracle(Oracle):
    """Each step is written into the weights, as a new base is.

    A weight has a master of float32; or, of bfloat16, is its own `at_random`. Where there is a type
    of the `wire`, matrices of float32 are measured as images of it, those of E4M3 with scales.
    """

    at_random, wire = False, None

    def _measured(self, name: str, theta: np.ndarray) -> np.ndarray:
        if self.wire is None or theta.ndim < 2:
            return theta
        if self.wire is torch.float8_e4m3fn:
            return fp8_values(theta)
        return torch.from_numpy(theta).to(self.wire).float().numpy()

    def step(self, loss_of: Callable[[nn.Module], torch.Tensor], lr: list[float]) -> float:
        loss = super().step(loss_of, lr)
        self.write(self.at_random)
        return loss


class BasesOracle(Oracle):
    """An oracle that makes a new base, rounded stochastically, when `every` steps are pending.

    Parameters
    ----------
    every : int
    others : tuple
        Arguments of `Oracle`.
    """

    def __init__(self, *others, every: int) -> None:
        super().__init__(*others)
        self.every = every

    def step(self, loss_of: Callable[[nn.Module], torch.Tensor], lr: list[float]) -> float:
        if self.step_number > 0 and self.step_number % self.every == 0:
            self.write(at_random=True)
        return super().step(loss_of, lr)


class LowRankOracle(Oracle):
    """The same along z = U V^T of matrices, by LOZO's equations.

    No matrix ever changes: all V, and for each the sum of all c U that came with it, are kept, and
    theta is Gamma times their products added to the matrix that it began as, one by one.

    Parameters
    ----------
    rank, period : int
    others : tuple
        What `Oracle` takes; `draw` is required.
    """

    def __init__(self, *others, rank: int, period: int) -> None:
        super().__init__(*others)
        self.rank, self.period = rank, period
        self.products: dict[str, list[list[np.ndarray]]] = {name: [] for name in self.a}
        self.sums = {(name, 0): a for name, a in self.a.items()}

    def _u(self, name: str, direction: int) -> np.ndarray:
        """U^T of the next step; of a vector its z."""
        counts = {
            name: a.size if a.ndim < 2 else self.rank * a.shape[0] for name, a in self.a.items()
        }
        u = self._draw(counts, self.step_number, direction)[name]
        return u if self.a[name].ndim < 2 else u.reshape(self.rank, -1)

    def _v(self, name: str) -> np.ndarray:
        counts = {name: self.rank * a[0].size for name, a in self.a.items() if a.ndim >= 2}
        v = self._draw(counts, self.step_number // self.period, 2**32 - 1)[name]
        return np.float32(1 / np.sqrt(self.rank)) * v.reshape(self.rank, -1)

    def _plus(self, a: np.ndarray, u: np.ndarray, v: np.ndarray) -> np.ndarray:
        shape, a = a.shape, a.reshape(len(a), -1)
        for column, row in zip(u, v, strict=True):
            a = fma(column[:, None], row[None, :], a)
        return a.reshape(shape)

    def _z(self, name: str, direction: int) -> np.ndarray:
        u = self._u(name, direction)
        if self.a[name].ndim < 2:
            return u.reshape(self.a[name].shape)
        return self._plus(np.zeros_like(self.a[name]), u, self._v(name))

    def _z_in_double(self, name: str, direction: int) -> np.ndarray:
        if self.a[name].ndim < 2:
            return super()._z_in_double(name, direction)
        u, v = self.factors(name, direction)
        return (u.T @ v).reshape(self.a[name].shape)

    def factors(self, name: str, direction: int) -> tuple[np.ndarray, np.ndarray]:
        """U^T and V^T of the next step, in double."""
        u = self._u(name, direction)
        return u.astype(np.float64), self._v(name).astype(np.float64)

    def _move(self, name: str, c: np.float32, direction: int, z: np.ndarray) -> None:
        if self.a[name].ndim < 2:
            return super()._move(name, c, direction, z)
        products = self.products[name]
        if self.step_number % self.period == 0 and direction == 0:
            products.append([np.zeros((self.rank, len(z)), np.float32), self._v(name)])
        products[-1][0] = fma(c, self._u(name, direction), products[-1][0])

    def _sum(self, name: str, periods: int) -> np.ndarray:
        """Sum without Gamma after `periods` completed periods, each of which is added once."""
        if (name, periods) not in self.sums:
            before = self._sum(name, periods - 1)
            self.sums[name, periods] = self._plus(before, *self.products[name][periods - 1])
        return self.sums[name, periods]

    def _theta(self, name: str) -> np.ndarray:
        group, products = self._group(self.tensors[name][0]), self.products[name]
        if self.a[name].ndim < 2:
            return super()._theta(name)
        a = self._sum(name, max(len(products) - 1, 0))
        for u, v in products[-1:]:
            a = self._plus(a, u, v)
        return np.float32(self.gamma[group]) * a


def oracle_of(
    model: nn.Module,
    seed: int = 0,
    directions: int = 1,
    weight_decay: float = 0.0,
    draw: Draw = rademacher,
    kind: type[Oracle] = Oracle,
    **others: int,
) -> Oracle:
    """Make an oracle with ZoSgd's default groups and eps."""
    groups = groups_of(model, weight_decay)
    return kind(model, groups, 1e-3, seed, directions, _core.stable_hash, draw, **others)


def low_rank_oracle_of(
    model: nn.Module,
    rank: int,
    period: int,
    seed: int = 0,
    directions: int = 1,
    weight_decay: float = 0.0,
) -> LowRankOracle:
    """The same of low rank."""
    return oracle_of(
        model, seed, directions, weight_decay, gaussian, LowRankOracle, rank=rank, period=period
    )
