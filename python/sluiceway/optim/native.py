"""Plain `torch.optim.AdamW` with the methods that the training loop calls on every engine."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

from sluiceway.optim.common.ordinary import gradient_norms


class NativeAdamW(torch.optim.AdamW):
    """AdamW on the device, without compression and without traffic over a link.

    Parameters
    ----------
    params : iterable of torch.nn.Parameter
        The parameters to train.
    max_norm : float or None
        Clip the global norm of the gradients to this, as `clip_grad_norm_` does.
    fused : bool
        Use torch's fused kernel.
    """

    def __init__(
        self, params: Iterable[torch.nn.Parameter], max_norm: float | None, fused: bool, **adam: Any
    ) -> None:
        super().__init__(params, fused=fused, foreach=False if fused else None, **adam)
        # GradScaler must unscale before step(), where the norm is taken.
        self._step_supports_amp_scaling = False
        self._max_norm = max_norm
        self._norm: float | None = None
        self.overflowed = False

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update the parameters, or skip the step if the norm of the gradients is not finite."""
        gradients = [
            p.grad for group in self.param_groups for p in group["params"] if p.grad is not None
        ]
        self._norm = torch.nn.utils.get_total_norm(gradients).item()
        if not math.isfinite(self._norm):  # Perhaps only the squares overflowed.
            self._norm = gradient_norms(gradients).norm().item()
        self.overflowed = not math.isfinite(self._norm)
        loss = None
        if not self.overflowed:
            if self._max_norm is not None and self._norm > self._max_norm:
                for gradient in gradients:
                    gradient.mul_(self._max_norm / (self._norm + 1e-6))
            loss = super().step(closure)
        return loss

    def synchronize(self) -> None:
        """Wait for the GPU; on a CPU `step()` has applied everything when it returns."""
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.synchronize()

    def stats(self) -> dict[str, Any]:
        """Return the engine's fields of a line of metrics.jsonl, for the last step."""
        return {"grad_norm": self._norm}

    def close(self) -> None:
        """Do nothing, as there is nothing to free."""
