"""Train with DeepSpeed's ZeRO-3, one rank on its CPU accelerator."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import torch
from torch import nn

from experiments.peers.trained import ADAM, weights_hash

TAG = "saved"
# DeepSpeed reads these when it is imported.
ENVIRONMENT = {
    "DS_ACCELERATOR": "cpu",
    "RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_RANK": "0",
    "LOCAL_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
}


def one_rank() -> None:
    """Set the environment of a process group of one rank."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        os.environ.update(ENVIRONMENT, MASTER_PORT=str(probe.getsockname()[1]))


def configuration(folder: Path, tuning: dict) -> dict:
    """Return DeepSpeed's own config.

    Parameters
    ----------
    folder : pathlib.Path
        Folder for states and gradients.
    tuning : dict
        Sections `zero` and `aio`, `buffer_count`, and `pipeline`; DeepSpeed chooses what is
        missing. `states` is the device that states are offloaded to, nvme or cpu; `weights` is
        the section for weights, which stay if there is none.
    """
    offload = {"device": tuning.get("states", "nvme"), "nvme_path": str(folder), "pin_memory": True}
    if "buffer_count" in tuning:
        offload["buffer_count"] = tuning["buffer_count"]
    if tuning.get("pipeline"):
        offload |= {"pipeline_read": True, "pipeline_write": True}
    zero = {"stage": 3, "offload_optimizer": offload}
    if "weights" in tuning:
        zero["offload_param"] = {"nvme_path": str(folder), "pin_memory": True, **tuning["weights"]}
    zero |= tuning.get("zero", {})
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 0.0,  # DeepSpeed's default is 1.
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {**ADAM, "betas": list(ADAM["betas"])}},
        "zero_optimization": zero,
        "aio": tuning.get("aio", {}),
    }


class Theirs:
    """Bf16 weights; fp32 masters, moments and gradients, in files or in host memory."""

    def __init__(self, model: nn.Module, folder: Path, tuning: dict) -> None:
        one_rank()
        import deepspeed

        self._deepspeed = deepspeed
        self._saves = folder / "checkpoint"
        self._engine, *_ = deepspeed.initialize(
            model=model,
            model_parameters=list(model.parameters()),
            config=configuration(folder, tuning),
        )

    def resume(self) -> int:
        """Resume from the last save; return 0 if there is none."""
        path, client = self._engine.load_checkpoint(str(self._saves))
        return 0 if path is None else client["steps"]

    def step(self, tokens: torch.Tensor) -> float:
        """Take one step."""
        loss = self._engine(input_ids=tokens, labels=tokens).loss
        self._engine.backward(loss)
        self._engine.step()
        return loss.item()

    def settle(self) -> None:
        """Do nothing: no transfer is under way after a step."""

    def save(self) -> None:
        """Save a checkpoint of DeepSpeed."""
        steps = self._engine.global_steps
        self._engine.save_checkpoint(
            str(self._saves), tag=f"{TAG}{steps}", client_state={"steps": steps}
        )

    def buffer_bytes(self) -> int:
        """Return the bytes of page-locked buffers that states pass through."""
        swapper = self._engine.optimizer.optimizer_swapper
        pool = swapper.swap_buffer_manager.all_buffers if swapper else ()
        return sum(buffer.nbytes for buffer in pool)

    def weights_hash(self) -> str:
        """Hash the trained weights."""
        weights = list(self._engine.module.parameters())
        with self._deepspeed.zero.GatheredParameters(weights):
            return weights_hash(weights)
