"""Where the base of a run lies: weights that no step writes to."""

from __future__ import annotations

import os
from typing import Any, Protocol

import torch
from torch import nn


class Base(Protocol):
    """What tiers that stream weights differ in.

    Attributes
    ----------
    log_folder : path-like or None
        Where the log is; None: it goes with the optimizer.
    tensor_bytes : int
        What of the base is in tensors of the host.
    """

    log_folder: str | os.PathLike | None

    @property
    def tensor_bytes(self) -> int: ...

    def engine_arguments(self) -> dict[str, Any]:
        """What the compiled engine is told of it."""

    def take(self) -> None:
        """Take the weights; parameters are left as they are to be between steps."""

    def of(self, p: nn.Parameter) -> torch.Tensor:
        """The base of a parameter, in host memory."""

    def number(self, p: nn.Parameter) -> int:
        """Its number in the engine's arena, or -1."""

    def give(self, p: nn.Parameter, theta: torch.Tensor) -> None:
        """Leave theta in a parameter."""

    def memory(self) -> dict[str, int]:
        """The most bytes that it has taken, by tier."""

    def identity(self) -> dict[str, Any]:
        """What a saved state says of it."""

    def check_saved(self, saved: dict[str, Any]) -> None:
        """Refuse a saved state of a base that this one is not.

        Raises
        ------
        InvalidArgument
            Both are named.
        """

    def close(self) -> None:
        """Let go of it."""


def absent(p: torch.Tensor, device: torch.device | str = "cpu") -> torch.Tensor:
    """NaN for whoever reads a weight that is not there, in one element of memory."""
    return torch.full((), torch.nan, dtype=p.dtype, device=device).expand(p.shape)
