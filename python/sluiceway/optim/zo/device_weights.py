"""Weights in device memory that zeroth-order training updates.

    theta = float(Gamma) A,   A += c z,   c = -lr g / (q Gamma)

A is float32. It is the parameter itself if that is float32 and Gamma is 1. Otherwise A is a master
beside the parameter, which is its image, rounded to nearest. Rounding 16-bit weights themselves
stochastically in every step would need no master, but it loses information for good, and no log of
scalars could reproduce the weights.

Matrices that zeroth-order training moves along low-rank directions [LOZO, arXiv 2410.07698].

    z = U V^T,   theta = float(Gamma) (A + M V^T),   M += c U,   c = -lr g / (q Gamma)

For a matrix of m x n weights, U is m x rank and drawn for each step and direction; V is n x rank
and drawn for each period of `period` steps. Elements of U are standard Gaussian, and elements of V
have variance 1 / rank, so elements of z have mean 0 and mean square 1, like elementwise noise.
LOZO's own eps is ours / sqrt(rank), and its g U V^T / rank is our g z.

A, in float32, changes only at the end of a period, when M V^T is added to it and M is reset to 0.
This adds no rounding, since A + M V^T is a sum that begins with A (kernels/low_rank.h). After every
step the parameter is the image of theta.

Tensors hold U and V transposed. Norms and biases have elementwise noise of the same family.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from sluiceway import _core
from sluiceway.optim.zo.rates import as_float
from sluiceway.optim.zo.tier import Training
from sluiceway.optim.zo.weights import MASTER, TrainedWeight

SUM = "low_rank_sum"  # M of the current period.
_OF_V = 2**32 - 1  # Purpose in the noise key of V, whose step is the period; others: directions.

Factors = tuple[torch.Tensor, torch.Tensor]


class DeviceWeights:
    """Computes A, theta and both neighbours of theta.

    Parameters
    ----------
    training : Training
    state : dict
        The optimizer's state, which holds the masters.
    """

    def __init__(self, training: Training, state: dict[Any, Any]) -> None:
        self._options, self._device, self._state = training.options, training.device, state

    def neighbours(
        self, weight: TrainedWeight, gamma: float, step: int, direction: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute theta + eps z and theta - eps z in the parameter's dtype."""
        p, options = weight.parameter.detach(), self._options
        plus, minus = torch.empty_like(p), torch.empty_like(p)
        _core.perturb(
            self._a_of(weight), plus, minus, [], gamma, options.eps, options.family, options.seed,
            step, weight.tensor, direction, compute=self._device.compute(),
        )  # fmt: skip
        return plus, minus

    def prepare(self, weight: TrainedWeight, gamma_after: float) -> None:
        """Make the master if the parameter cannot be A any more."""
        p = weight.parameter
        if MASTER not in self._state.get(p, {}) and needs_master(p, gamma_after):
            self._state[p] = {MASTER: p.detach().to(torch.float32, copy=True)}

    def update(
        self, weight: TrainedWeight, gamma_after: float, step: int, scales: list[float]
    ) -> None:
        """Add c z of each direction to A, and write the new theta into the parameter."""
        a, p = self._a_of(weight), weight.parameter
        self._add(a, weight, step, scales)
        if a.data_ptr() != p.data_ptr():
            self.round(weight, gamma_after, step + 1)
        torch.autograd.graph.increment_version(p)

    def _add(
        self, sums: torch.Tensor, weight: TrainedWeight, step: int, scales: list[float]
    ) -> None:
        """Add c times the noise of each direction of a step to a tensor."""
        seed, compute = self._options.seed, self._device.compute()
        pending = [(seed, step, weight.tensor, d, c) for d, c in enumerate(scales)]
        _core.materialise(sums, sums, pending, 1.0, self._options.family, compute=compute)

    def round(self, weight: TrainedWeight, gamma: float, step: int) -> None:
        """Write theta before `step` into the parameter."""
        compute, family = self._device.compute(), self._options.family
        out = weight.parameter.detach()
        _core.materialise(self._a_of(weight), out, [], gamma, family, compute=compute)

    def state_shapes(self, p: torch.Tensor) -> dict[str, tuple[int, ...]]:
        """Shapes of the tensors in a parameter's state, if it has a state."""
        return {MASTER: tuple(p.shape)}

    def _a_of(self, weight: TrainedWeight) -> torch.Tensor:
        p = weight.parameter
        return self._state.get(p, {}).get(MASTER, p.detach())


def needs_master(p: torch.Tensor, gamma: float) -> bool:
    """Tell whether a parameter cannot be A itself when Gamma has this value."""
    return p.dtype is not torch.float32 or gamma != 1.0


class LowRankWeights(DeviceWeights):
    """Computes the same, and M, for matrices with low-rank noise; vectors have elementwise noise.

    Parameters
    ----------
    training : Training
    state : dict
        The optimizer's state, which holds A and M of each matrix.
    """

    def __init__(self, training: Training, state: dict[Any, Any]) -> None:
        super().__init__(training, state)
        self._rank, self._period = training.options.rank, training.options.period
        self._v: dict[str, tuple[int, torch.Tensor]] = {}  # V by name, with its period.

    def neighbours(
        self, weight: TrainedWeight, gamma: float, step: int, direction: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute theta + eps z and theta - eps z in the parameter's dtype."""
        p = weight.parameter.detach()
        if p.dim() < 2:
            return super().neighbours(weight, gamma, step, direction)
        plus, minus = torch.empty_like(p), torch.empty_like(p)
        factors = self._draw_u(weight, step, direction), self._v_of(weight, step)
        _core.perturb_low_rank(
            self._a_of(weight).flatten(1), plus.flatten(1), minus.flatten(1),
            self._pending(weight, step), gamma, self._options.eps, factors,
            compute=self._device.compute(),
        )  # fmt: skip
        return plus, minus

    def prepare(self, weight: TrainedWeight, gamma_after: float) -> None:
        """Make A and M of a weight, unless they exist."""
        p = weight.parameter
        if p.dim() < 2:
            super().prepare(weight, gamma_after)
        elif MASTER not in self._state.get(p, {}):
            master = p.detach().to(torch.float32, copy=True)
            self._state[p] = {MASTER: master, SUM: master.new_zeros(self._rank, len(p))}

    def update(
        self, weight: TrainedWeight, gamma_after: float, step: int, scales: list[float]
    ) -> None:
        """Add c U of each direction to M, and write the new theta into the parameter."""
        p = weight.parameter
        if p.dim() < 2:
            return super().update(weight, gamma_after, step, scales)
        a, m = self._state[p][MASTER], self._state[p][SUM]
        self._add(m, weight, step, scales)
        if (step + 1) % self._period == 0:
            a, product = a.flatten(1), (m, self._v_of(weight, step))
            _core.materialise_low_rank(a, a, product, 1.0, compute=self._device.compute())
            m.zero_()
        self.round(weight, gamma_after, step + 1)
        torch.autograd.graph.increment_version(p)

    def round(self, weight: TrainedWeight, gamma: float, step: int) -> None:
        """Write theta before `step` into the parameter."""
        p = weight.parameter
        if p.dim() < 2:
            return super().round(weight, gamma, step)
        _core.materialise_low_rank(
            self._state[p][MASTER].flatten(1), p.detach().flatten(1), self._pending(weight, step),
            gamma, compute=self._device.compute(),
        )  # fmt: skip

    def state_shapes(self, p: torch.Tensor) -> dict[str, tuple[int, ...]]:
        """Shapes of the tensors in a parameter's state, if it has a state."""
        shapes = super().state_shapes(p)
        return shapes if p.dim() < 2 else {**shapes, SUM: (self._rank, len(p))}

    # ---- Factors ----

    def _draw_u(self, weight: TrainedWeight, step: int, direction: int) -> torch.Tensor:
        """Draw U^T of a direction."""
        p = weight.parameter
        u = torch.empty(self._rank, len(p), device=p.device)
        _core.draw_noise(
            u, self._options.family, self._options.seed, step, weight.tensor, direction,
            compute=self._device.compute(),
        )  # fmt: skip
        return u

    def _v_of(self, weight: TrainedWeight, step: int) -> torch.Tensor:
        """Return V^T of the period that contains `step`."""
        period, p = step // self._period, weight.parameter
        drawn, v = self._v.get(weight.name, (None, None))
        if drawn != period:
            v = torch.zeros(self._rank, p.detach().flatten(1).shape[1], device=p.device)
            scale = as_float(1 / math.sqrt(self._rank))
            _core.materialise(
                v, v, [(self._options.seed, period, weight.tensor, _OF_V, scale)], 1.0,
                self._options.family, compute=self._device.compute(),
            )  # fmt: skip
            self._v[weight.name] = period, v
        return v

    def _pending(self, weight: TrainedWeight, step: int) -> Factors | None:
        """Return M and V before `step`; None at the beginning of a period, where M is 0."""
        state = self._state.get(weight.parameter, {})
        if step % self._period == 0 or SUM not in state:
            return None
        return state[SUM], self._v_of(weight, step)
