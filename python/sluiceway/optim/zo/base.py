"""The base of a run: weights that no step writes to, in host memory or on disk."""

from __future__ import annotations

import os
from typing import Any, Protocol

import torch
from torch import nn


class Base(Protocol):
    """Storage of the base; each tier that streams weights has its own.

    Attributes
    ----------
    log_folder : path-like or None
        Folder of the log; None makes a temporary log, deleted with the optimizer.
    tensor_bytes : int
        Bytes of the base that are in tensors of the host.
    """

    log_folder: str | os.PathLike | None

    @property
    def tensor_bytes(self) -> int: ...

    def engine_arguments(self) -> dict[str, Any]:
        """Return the compiled engine's arguments that describe the base."""

    def take(self) -> None:
        """Move the weights into the base, and put parameters into their state between steps."""

    def of(self, p: nn.Parameter) -> torch.Tensor:
        """Return the base of a parameter in host memory."""

    def number(self, p: nn.Parameter) -> int:
        """Number of a parameter in the engine's arena, or -1."""

    def give(self, p: nn.Parameter, theta: torch.Tensor) -> None:
        """Put theta into a parameter for good."""

    def memory(self) -> dict[str, int]:
        """Peak bytes of the base by tier."""

    def identity(self) -> dict[str, Any]:
        """Return the entries of a saved state that identify the base."""

    def check_saved(self, saved: dict[str, Any]) -> None:
        """Check that a saved state belongs to this base.

        Raises
        ------
        InvalidArgument
            It belongs to another base; the text names both.
        """

    def close(self) -> None:
        """Free the base's resources."""


def absent(p: torch.Tensor, device: torch.device | str = "cpu") -> torch.Tensor:
    """Return NaN in a parameter's shape but with one element of memory, for an absent weight."""
    return torch.full((), torch.nan, dtype=p.dtype, device=device).expand(p.shape)
