"""A base in host memory, which is the parameters' own data."""

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
    """Keeps the base in host memory, page-locked for a CUDA device.

    Parameters
    ----------
    training : Training
    """

    def __init__(self, training: Training) -> None:
        self._of, self.log_folder = training, training.options.path
        self._hash = _hash_of(training.weights)
        self._base: dict[int, torch.Tensor] = {}

    def engine_arguments(self) -> dict[str, Any]:
        """Return the hash that identifies the base."""
        return {"base_hash": self._hash}

    def take(self) -> None:
        """Move the parameters to the base one after the other."""
        for weight in self._of.weights:
            p = weight.parameter
            if self._of.device.asynchronous:
                p.data = _core.page_locked_copy(p.detach(), self._of.device.compute())
            self._base[id(p)] = p.data

    def of(self, p: nn.Parameter) -> torch.Tensor:
        """Return the base tensor itself; before `take`, the parameter's own data."""
        return self._base[id(p)] if id(p) in self._base else p.detach()

    def number(self, p: nn.Parameter) -> int:
        """Return -1: the base is not in an arena."""
        return -1

    def give(self, p: nn.Parameter, theta: torch.Tensor) -> None:
        """Overwrite the base with theta, and make it the parameter's data."""
        p.data = self.of(p)  # Two interrupts may have left other data there.
        p.copy_(theta)

    @property
    def tensor_bytes(self) -> int:
        """Bytes of the whole base, all of which are tensors."""
        return sum(base.nbytes for base in self._base.values())

    def memory(self) -> dict[str, int]:
        """Bytes of the whole base, in host or pinned memory."""
        return {"pinned" if self._of.device.asynchronous else "host": self.tensor_bytes}

    def identity(self) -> dict[str, Any]:
        """Return the hash of the base."""
        return {"base": self._hash.hex()}

    def check_saved(self, saved: dict[str, Any]) -> None:
        """Raise InvalidArgument if a saved state has another hash."""
        if saved["base"] != self._hash.hex():
            raise InvalidArgument(
                f"load_state_dict: the state has the base {saved['base']}, expected the model's, "
                f"{self._hash.hex()}; load the weights that the state's run began with"
            )

    def close(self) -> None:
        """Do nothing: the parameters own the base."""


def _hash_of(weights: list[TrainedWeight]) -> bytes:
    """Return the 16-byte hash that identifies a base."""
    digest = hashlib.blake2b(digest_size=16)
    for weight in weights:
        p = weight.parameter.detach().cpu()
        digest.update(f"{weight.name} {p.dtype} {tuple(p.shape)} ".encode())
        digest.update(_core.bits_checksum(p).to_bytes(8, "little"))
    return digest.digest()
