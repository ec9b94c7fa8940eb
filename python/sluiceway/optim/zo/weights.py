"""Weights in device memory that zeroth-order training updates.

    theta = float(Gamma) A,   A += c z,   c = -lr g / (q Gamma)

A is float32. It is the parameter itself if that is float32 and Gamma is 1. Otherwise A is a master
beside the parameter, which is its image, rounded to nearest. Rounding 16-bit weights themselves
stochastically in every step would need no master, but it loses information for good, and no log of
scalars could reproduce the weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from sluiceway import _core
from sluiceway.errors import InvalidArgument
from sluiceway.machine.device_ops import DeviceOps

MASTER = "master"
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class TrainedWeight:
    """One trained parameter, tied or not."""

    name: str
    parameter: nn.Parameter
    group: int
    modules: list[nn.Module]  # Modules that have the parameter.
    tensor: int  # Identifies the weight in the key of its noise.


@dataclass(frozen=True)
class Noise:
    """Family and seed of the noise that directions z are drawn from."""

    family: str
    seed: int


class ResidentWeights:
    """Computes A, theta and both neighbours of theta.

    Parameters
    ----------
    noise : Noise
    device : DeviceOps
    state : dict
        The optimizer's state, which holds the masters.
    """

    def __init__(self, noise: Noise, device: DeviceOps, state: dict[Any, Any]) -> None:
        self._noise, self._device, self._state = noise, device, state

    def neighbours(
        self, weight: TrainedWeight, gamma: float, eps: float, step: int, direction: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute theta + eps z and theta - eps z in the parameter's dtype."""
        p = weight.parameter.detach()
        plus, minus = torch.empty_like(p), torch.empty_like(p)
        _core.perturb(
            self._a_of(weight), plus, minus, [], gamma, eps, self._noise.family, self._noise.seed,
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
        seed, compute = self._noise.seed, self._device.compute()
        pending = [(seed, step, weight.tensor, d, c) for d, c in enumerate(scales)]
        _core.materialise(a, a, pending, 1.0, self._noise.family, compute=compute)
        if a.data_ptr() != p.data_ptr():
            self.round(weight, gamma_after, step + 1)
        torch.autograd.graph.increment_version(p)

    def round(self, weight: TrainedWeight, gamma: float, _step: int) -> None:
        """Write theta into the parameter."""
        compute, family = self._device.compute(), self._noise.family
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


def check_weight(owner: str, name: str, p: torch.Tensor) -> None:
    """Check that the kernels support a parameter.

    Raises
    ------
    InvalidArgument
        They do not; the text names the parameter.
    """
    if p.dtype not in _DTYPES or p.layout is not torch.strided or not p.is_contiguous():
        strides = tuple(p.stride()) if p.layout is torch.strided else p.layout
        raise InvalidArgument(
            f"{owner}: {name} is {p.dtype} with strides {strides}, expected contiguous float32, "
            "bfloat16 or float16; convert or freeze it"
        )
