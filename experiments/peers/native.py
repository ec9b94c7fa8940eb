"""Train with torch alone: AdamW over masters in memory, FSDP2, or no optimizer at all."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from experiments.peers.theirs import one_rank
from experiments.peers.trained import ADAM, weights_hash


class Forgotten:
    """Forward and backward alone; gradients are dropped as soon as they exist.

    The difference to another side is the cost of that side's optimizer.
    """

    def __init__(self, model: nn.Module, folder: Path, tuning: dict) -> None:
        self._model = model
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(self._drop)

    @staticmethod
    def _drop(parameter: torch.Tensor) -> None:
        parameter.grad = None

    def step(self, tokens: torch.Tensor) -> float:
        """Run forward and backward, and train nothing."""
        loss = self._model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        return loss.item()

    def settle(self) -> None:
        """Do nothing: no transfer is under way."""

    def buffer_bytes(self) -> int:
        """Return 0: there are no buffers."""
        return 0

    def weights_hash(self) -> str:
        """Hash the trained weights."""
        return weights_hash(self._model.parameters())


class Native(Forgotten):
    """torch.optim.AdamW, fused, over fp32 masters of bf16 weights."""

    def __init__(self, model: nn.Module, folder: Path, tuning: dict) -> None:
        self._model = model
        self._weights = list(model.parameters())
        self._masters = [weight.detach().float() for weight in self._weights]
        self._optimizer = torch.optim.AdamW(self._masters, fused=True, **ADAM)

    def step(self, tokens: torch.Tensor) -> float:
        """Take one step."""
        loss = super().step(tokens)
        for master, weight in zip(self._masters, self._weights, strict=True):
            master.grad = weight.grad.float()
            weight.grad = None
        self._optimizer.step()
        with torch.no_grad():
            for master, weight in zip(self._masters, self._weights, strict=True):
                weight.copy_(master)
                master.grad = None
        return loss


class Sharded(Forgotten):
    """FSDP2 with CPU offload on one rank of gloo: fp32 weights, which blocks gather as bf16."""

    def __init__(self, model: nn.Module, folder: Path, tuning: dict) -> None:
        from torch.distributed import init_process_group
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

        one_rank()
        init_process_group("gloo")
        options = {
            "mesh": init_device_mesh("cpu", (1,)),
            "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16),
            "offload_policy": CPUOffloadPolicy(pin_memory=False),
        }
        self._model = model.float()
        for block in model.model.layers:
            fully_shard(block, **options)
        fully_shard(model, **options)
        self._optimizer = torch.optim.AdamW(model.parameters(), fused=True, **ADAM)

    def step(self, tokens: torch.Tensor) -> float:
        """Take one step."""
        loss = super().step(tokens)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return loss

    def weights_hash(self) -> str:
        """Hash the trained weights."""
        return weights_hash(weight.to_local() for weight in self._model.parameters())
