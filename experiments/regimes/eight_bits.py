"""Keep numbers in 8 bits each: a sign and 127 squares, with the largest of each block beside them.

With evenly spaced levels, a moment that is averaged over steps loses its small values. Squares of
evenly spaced levels are dense near zero. No other 8-bit optimizer has the same levels.
"""

from __future__ import annotations

import torch
from torch.nn.functional import pad

BLOCK = 256
_LEVELS = 127


class EightBits:
    """A tensor rounded to the nearest level, on the scale of square roots.

    Parameters
    ----------
    x : torch.Tensor
        Tensor of any shape; values below 1.6e-5 of the largest in their block may become 0.
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
