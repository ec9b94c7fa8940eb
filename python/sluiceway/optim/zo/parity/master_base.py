"""Masters in host memory: the own data of parameters where these are of the master's type."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn

from sluiceway import _core
from sluiceway.errors import InvalidArgument
from sluiceway.optim.zo.host.base import absent
from sluiceway.optim.zo.tier import Training
from sluiceway.optim.zo.weights import MASTER, TrainedWeight


class MasterBase:
    """Page-locked for a CUDA device.

    A parameter that is its image, rounded to 16 bits, is NaN without memory while nothing reads it.

    Parameters
    ----------
    training : Training
    state : dict
        The optimizer's: the master of such a parameter is there.

    Raises
    ------
    InvalidArgument
        Masters are to be of a type that a parameter cannot have.
    """

    log_folder: str | os.PathLike | None = None

    def __init__(self, training: Training, state: dict[Any, Any]) -> None:
        self._of, self._state = training, state
        self._masters: dict[int, torch.Tensor] = {}
        self._was_on = {id(w.parameter): w.parameter.device for w in training.weights}
        for weight in training.weights:
            if training.options.master == "bf16" and weight.parameter.dtype is torch.float16:
                raise InvalidArgument(
                    f"{training.owner}: master is bf16 and {weight.name} is float16, expected "
                    "bfloat16 or float32; leave master out"
                )

    def take(self) -> None:
        """Make one master after the other."""
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
        """Undo `take`, as far as it went: an image of what no step was written into is exact."""
        for weight in self._of.weights:
            p = weight.parameter
            if (master := self._masters.pop(id(p), None)) is not None:
                p.data = master.to(self._was_on[id(p)], p.dtype)
                self._state.pop(p, None)

    def has_image(self, p: torch.Tensor) -> bool:
        """Whether a parameter is not its own master."""
        return p.dtype is not torch.float32 and self._of.options.master == "fp32"

    def held(self) -> list[tuple[str, torch.Tensor, int, torch.Tensor]]:
        """What the engine is told of each weight."""
        return [
            (w.name, self._masters[id(w.parameter)], w.group, _like(w)) for w in self._of.weights
        ]

    def of(self, p: nn.Parameter) -> torch.Tensor:
        """The master itself."""
        return self._masters[id(p)]

    def number(self, p: nn.Parameter) -> int:
        """In no arena."""
        return -1

    def give(self, p: nn.Parameter, theta: torch.Tensor) -> None:
        """Into a parameter that is an image; others have it."""
        p.data = theta if self.has_image(p) else self.of(p)
        torch.autograd.graph.increment_version(p)

    @property
    def tensor_bytes(self) -> int:
        """All of them."""
        return sum(master.nbytes for master in self._masters.values())

    def memory(self) -> dict[str, int]:
        """All of them."""
        return {"pinned" if self._of.device.asynchronous else "host": self.tensor_bytes}

    def close(self) -> None:
        """They are the parameters', or the optimizer's."""


def _like(weight: TrainedWeight) -> torch.Tensor:
    p = weight.parameter
    return torch.empty((), dtype=p.dtype).expand(p.shape)
