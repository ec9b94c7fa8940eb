"""Numbers kept in 8 bits each: a sign and 127 squares, with the largest of each block beside them.

A moment that is averaged over steps loses what is small where levels are evenly spaced; squares of
evenly spaced ones are dense near zero. The levels are not those of any other 8-bit optimizer.
"""

from __future__ import annotations

import torch
from torch.nn.functional import pad

BLOCK = 256
_LEVELS = 127


class EightBits:
    """A tensor that was rounded to nearest, on the scale of the roots.

    Parameters
    ----------
    x : torch.Tensor
        Of any shape; what is smaller than 1.6e-5 of the largest of its block may become 0.
    """

    def __init__(self, x: torch.Tensor) -> None:
        self._shape = x.shape
        blocks = pad(x.flatten(), (0, -x.numel() % BLOCK)).view(-1, BLOCK)
        self._largest = blocks.abs().amax(1, keepdim=True)
        share = blocks / self._largest.clamp(min=torch.finfo(x.dtype).tiny)
        self._codes = (share.sign() * share.abs().sqrt() * _LEVELS).round().to(torch.int8)

    @staticmethod
    def bytes_of(count: int) -> int:
        """Bytes of `count` values, with an f32 for each block."""
        return count + 4 * -(-count // BLOCK)

    def values(self) -> torch.Tensor:
        """Return the stored values."""
        share = self._codes.to(self._largest.dtype) / _LEVELS
        whole = (share.sign() * share.square() * self._largest).flatten()
        return whole[: self._shape.numel()].view(self._shape)
