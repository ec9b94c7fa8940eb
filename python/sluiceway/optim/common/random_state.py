"""States of all random generators that a model may draw from."""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class RandomState:
    """States of the generators of torch, each GPU in use, Python and numpy."""

    torch_cpu: torch.Tensor
    torch_cuda: list[torch.Tensor]
    python: tuple
    numpy: Any

    @classmethod
    def now(cls) -> RandomState:
        """Capture the present states."""
        numpy = sys.modules.get("numpy")
        return cls(
            torch.get_rng_state(),
            torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],
            random.getstate(),
            numpy.random.get_state() if numpy is not None else None,
        )

    def was_drawn_from(self) -> bool:
        """Tell whether one of torch's generators was used since."""
        now = RandomState.now()
        pairs = zip(self.torch_cuda, now.torch_cuda, strict=False)
        return not torch.equal(self.torch_cpu, now.torch_cpu) or any(
            not torch.equal(was, found) for was, found in pairs
        )

    def restore(self) -> None:
        """Restore the generators to these states."""
        torch.set_rng_state(self.torch_cpu)
        if self.torch_cuda:
            torch.cuda.set_rng_state_all(self.torch_cuda)
        random.setstate(self.python)
        if self.numpy is not None:
            sys.modules["numpy"].random.set_state(self.numpy)
