"""Projects an input once, and keeps it once, for several layers that have the same Q."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass

import torch

from sluiceway.machine.device_ops import Made
from sluiceway.optim.common import torch_private


@dataclass
class _Projected:
    """A projected input, and the number of layers that have not asked for it yet."""

    of: weakref.ref[torch.Tensor]
    version: int
    dtype: torch.dtype
    rows: Made
    left: int

    def fits(self, x: torch.Tensor, dtype: torch.dtype) -> bool:
        """Return whether it was projected from this very input, which has not changed since."""
        return self.of() is x and self.version == torch_private.version(x) and self.dtype == dtype


class SharedInput:
    """The last input of the layers that share a Q.

    It frees the projected input when the input itself is freed, or when all layers have asked.
    """

    def __init__(self) -> None:
        self._layers = 0
        self._last: _Projected | None = None

    def join(self) -> None:
        """Count one more layer."""
        self._layers += 1

    def projected(
        self, x: torch.Tensor, dtype: torch.dtype, project: Callable[[], torch.Tensor]
    ) -> torch.Tensor:
        """Return the result of `project` for this input and `dtype`, computed once."""
        last = self._last  # Another thread may replace it.
        if last is None or not last.fits(x, dtype):
            of = weakref.ref(x, self._forget)
            rows = Made(project())
            self._last = last = _Projected(of, torch_private.version(x), dtype, rows, self._layers)
        last.left -= 1
        if last.left <= 0:
            self._forget(last.of)
        return last.rows.take()

    def _forget(self, of: weakref.ref[torch.Tensor]) -> None:
        if self._last is not None and self._last.of is of:
            self._last = None
