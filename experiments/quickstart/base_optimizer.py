"""Train the base model's matrices with Muon, in fp32 and in batches of equal shapes.

torch.optim.Muon orthogonalises in bf16, which is slow on processors without bf16 matrix
instructions; here all matrices of one shape go through one batched fp32 product.
"""

from __future__ import annotations

from collections import defaultdict

import torch

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # Newton-Schulz quintic of Jordan et al., 2024.


def orthogonalise(batch: torch.Tensor, rounds: int = 5) -> torch.Tensor:
    """Push the singular values of each matrix [count, rows, columns] towards one."""
    a, b, c = COEFFICIENTS
    tall = batch.shape[1] > batch.shape[2]
    x = batch.transpose(1, 2) if tall else batch
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(rounds):
        gram = x @ x.transpose(1, 2)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.transpose(1, 2) if tall else x


class BatchedMuon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised; the step has RMS 0.2 lr whatever the shape."""

    def __init__(self, params, lr: float, momentum: float = 0.95, weight_decay: float = 0.0):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            by_shape = defaultdict(list)
            for p in group["params"]:
                if p.grad is not None:
                    by_shape[tuple(sorted(p.shape))].append(p)
            for members in by_shape.values():
                self._step_shape(members, group)

    def _step_shape(self, members: list[torch.nn.Parameter], group: dict) -> None:
        directions = []
        for p in members:
            state = self.state[p]
            if not state:
                state["momentum"] = torch.zeros_like(p)
            state["momentum"].lerp_(p.grad, 1 - group["momentum"])
            nesterov = p.grad.lerp(state["momentum"], group["momentum"])
            directions.append(nesterov.T if p.shape[0] > p.shape[1] else nesterov)
        updates = orthogonalise(torch.stack(directions))
        for p, update in zip(members, updates, strict=True):
            p.mul_(1 - group["lr"] * group["weight_decay"])
            scale = 0.2 * max(p.shape) ** 0.5
            p.add_(update.T if p.shape[0] > p.shape[1] else update, alpha=-group["lr"] * scale)
