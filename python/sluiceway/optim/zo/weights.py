"""The weights that zeroth-order training moves, as they lie in the device's memory.

    theta = float(Gamma) A,   A += c z,   c = -lr g / (q Gamma)

A is float32. It is the parameter itself while that is float32 and Gamma is 1, and else a master
beside it, of which the parameter is the image, rounded to nearest. Rounding the 16-bit weights
themselves at random in every step would need no master, but what is lost so is never found again,
and no log of scalars could give the same weights back.
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
    modules: list[nn.Module]  # That have it.
    tensor: int  # What names it in the key of its noise.


@dataclass(frozen=True)
class Noise:
    """From whose directions z comes."""

    family: str
    seed: int


class ResidentWeights:
    """A, theta and both neighbours of theta.

    Parameters
    ----------
    noise : Noise
    device : DeviceOps
    state : dict
        The optimizer's: the master of a parameter is there, where it has one.
    """

    def __init__(self, noise: Noise, device: DeviceOps, state: dict[Any, Any]) -> None:
        self._noise, self._device, self._state = noise, device, state

    def neighbours(
        self, weight: TrainedWeight, gamma: float, eps: float, step: int, direction: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """theta + eps z and theta - eps z, of the parameter's dtype."""
        p = weight.parameter.detach()
        plus, minus = torch.empty_like(p), torch.empty_like(p)
        _core.perturb(
            self._a_of(weight), plus, minus, [], gamma, eps, self._noise.family, self._noise.seed,
            step, weight.tensor, direction, compute=self._device.compute(),
        )  # fmt: skip
        return plus, minus

    def prepare(self, weight: TrainedWeight, gamma_after: float) -> None:
        """Make the master, if the parameter cannot be A any more."""
        p = weight.parameter
        if MASTER not in self._state.get(p, {}) and needs_master(p, gamma_after):
            self._state[p] = {MASTER: p.detach().to(torch.float32, copy=True)}

    def update(
        self, weight: TrainedWeight, gamma_after: float, step: int, scales: list[float]
    ) -> None:
        """A += sum of c z, one a direction, and theta of it."""
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
        """What the state of a parameter holds, if it has any."""
        return {MASTER: tuple(p.shape)}

    def _a_of(self, weight: TrainedWeight) -> torch.Tensor:
        p = weight.parameter
        return self._state.get(p, {}).get(MASTER, p.detach())


def needs_master(p: torch.Tensor, gamma: float) -> bool:
    """Whether a parameter cannot be A itself, once Gamma is this."""
    return p.dtype is not torch.float32 or gamma != 1.0


def check_weight(owner: str, name: str, p: torch.Tensor) -> None:
    """Refuse a parameter that the kernels do not take.

    Raises
    ------
    InvalidArgument
        It is named.
    """
    if p.dtype not in _DTYPES or p.layout is not torch.strided or not p.is_contiguous():
        strides = tuple(p.stride()) if p.layout is torch.strided else p.layout
        raise InvalidArgument(
            f"{owner}: {name} is {p.dtype} with strides {strides}, expected contiguous float32, "
            "bfloat16 or float16; convert or freeze it"
        )
