"""The base in host memory: the own data of parameters."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import nn

from sluiceway import _core
from sluiceway.errors import InvalidArgument
from sluiceway.optim.zo.tier import Training
from sluiceway.optim.zo.weights import TrainedWeight


class HostBase:
    """Page-locked for a CUDA device.

    Parameters
    ----------
    training : Training
    """

    def __init__(self, training: Training) -> None:
        self._of, self.log_folder = training, training.options.path
        self._hash = _hash_of(training.weights)
        self._base: dict[int, torch.Tensor] = {}

    def engine_arguments(self) -> dict[str, Any]:
        """The hash tells the base from any other."""
        return {"base_hash": self._hash}

    def take(self) -> None:
        """Move one parameter after the other."""
        for weight in self._of.weights:
            p = weight.parameter
            if self._of.device.asynchronous:
                p.data = _core.page_locked_copy(p.detach(), self._of.device.compute())
            self._base[id(p)] = p.data

    def of(self, p: nn.Parameter) -> torch.Tensor:
        """The tensor itself, which is the parameter's own until it is taken."""
        return self._base[id(p)] if id(p) in self._base else p.detach()

    def number(self, p: nn.Parameter) -> int:
        """In no arena."""
        return -1

    def give(self, p: nn.Parameter, theta: torch.Tensor) -> None:
        """Over the base."""
        p.data = self.of(p)  # Two interrupts may have left something else there.
        p.copy_(theta)

    @property
    def tensor_bytes(self) -> int:
        """All of it."""
        return sum(base.nbytes for base in self._base.values())

    def memory(self) -> dict[str, int]:
        """All of it."""
        return {"pinned" if self._of.device.asynchronous else "host": self.tensor_bytes}

    def identity(self) -> dict[str, Any]:
        """Its hash."""
        return {"base": self._hash.hex()}

    def check_saved(self, saved: dict[str, Any]) -> None:
        """Refuse another hash."""
        if saved["base"] != self._hash.hex():
            raise InvalidArgument(
                f"load_state_dict: is of the base {saved['base']}, expected {self._hash.hex()}, "
                "that of the model; load the weights that its run began with"
            )

    def close(self) -> None:
        """It is the parameters'."""


def _hash_of(weights: list[TrainedWeight]) -> bytes:
    """What tells a base from any other; 16 bytes."""
    digest = hashlib.blake2b(digest_size=16)
    for weight in weights:
        p = weight.parameter.detach().cpu()
        digest.update(f"{weight.name} {p.dtype} {tuple(p.shape)} ".encode())
        digest.update(_core.bits_checksum(p).to_bytes(8, "little"))
    return digest.digest()
