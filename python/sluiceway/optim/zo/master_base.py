"""Masters in host memory, which are the parameters' own data if the type is the same."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn

from sluiceway import _core
from sluiceway.errors import InvalidArgument
from sluiceway.optim.zo.base import absent
from sluiceway.optim.zo.device_weights import MASTER
from sluiceway.optim.zo.tier import Training
from sluiceway.optim.zo.weights import TrainedWeight


class MasterBase:
    """Keeps masters in host memory, page-locked for a CUDA device.

    If a parameter is the image of its master, rounded to 16 bits, it holds NaN, without memory,
    while nothing reads it.

    Parameters
    ----------
    training : Training
    state : dict
        The optimizer's state, which holds the masters of such parameters.

    Raises
    ------
    InvalidArgument
        The type of masters is impossible for a parameter.
    """

    log_folder: str | os.PathLike | None = None

    def __init__(self, training: Training, state: dict[Any, Any]) -> None:
        self._of, self._state = training, state
        self._masters: dict[int, torch.Tensor] = {}
        self._was_on = {id(w.parameter): w.parameter.device for w in training.weights}
        for weight in training.weights:
            if training.options.master == "bf16" and weight.parameter.dtype is torch.float16:
                raise InvalidArgument(
                    f"{training.owner}: {weight.name} is float16, expected bfloat16 or float32 for "
                    "master='bf16'; leave master out"
                )

    def take(self) -> None:
        """Make the masters one after the other."""
        for weight in self._of.weights:
            p = weight.parameter
            own = not self.has_image(p)
            if self._of.device.asynchronous:
                whole = p.detach() if own else p.detach().to("cpu", torch.float32)
                master = _core.page_locked_copy(whole, self._of.device.compute())
            else:
                master = p.data if own else p.detach().to(torch.float32)
            self._masters[id(p)] = master
            if not own:
                self._state[p] = {MASTER: master}
            p.data = master if own else absent(p)

    def put_back(self) -> None:
        """Undo `take` as far as it went; without a step in it, a master rounds back exactly."""
        for weight in self._of.weights:
            p = weight.parameter
            if (master := self._masters.pop(id(p), None)) is not None:
                p.data = master.to(self._was_on[id(p)], p.dtype)
                self._state.pop(p, None)

    def has_image(self, p: torch.Tensor) -> bool:
        """Tell whether a parameter is only the image of its master."""
        return p.dtype is not torch.float32 and self._of.options.master == "fp32"

    def held(self) -> list[tuple[str, torch.Tensor, int, torch.Tensor]]:
        """List the engine's arguments for each weight."""
        return [
            (w.name, self._masters[id(w.parameter)], w.group, _like(w)) for w in self._of.weights
        ]

    def of(self, p: nn.Parameter) -> torch.Tensor:
        """Return the master of a parameter."""
        return self._masters[id(p)]

    def number(self, p: nn.Parameter) -> int:
        """Return -1: masters are not in an arena."""
        return -1

    def give(self, p: nn.Parameter, theta: torch.Tensor) -> None:
        """Put theta into a parameter that is an image; others get their own master."""
        p.data = theta if self.has_image(p) else self.of(p)
        torch.autograd.graph.increment_version(p)

    @property
    def tensor_bytes(self) -> int:
        """Bytes of all masters, which are tensors of the host."""
        return sum(master.nbytes for master in self._masters.values())

    def memory(self) -> dict[str, int]:
        """Bytes of all masters, in host or pinned memory."""
        return {"pinned" if self._of.device.asynchronous else "host": self.tensor_bytes}

    def close(self) -> None:
        """Do nothing: parameters or the optimizer own the masters."""


def _like(weight: TrainedWeight) -> torch.Tensor:
    p = weight.parameter
    return torch.empty((), dtype=p.dtype).expand(p.shape)
