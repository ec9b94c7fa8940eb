"""Count the activation bytes that the quickstart's model keeps for backward, fused and unfused.

A linear layer keeps its input X, T x n, which layers that read the same input share. A fused layer
keeps X Q, T x round(f n), which layers that share Q share. With e bytes an element, T tokens, and
sums over the inputs of linear layers that nothing else keeps:

    bytes saved = e T (sum (n - round(f n)) - sum of round(f n) over the inputs that stay)

Four layers measure their bias in each step. In the first step these are q, k, v and o of the first
block, and 256 tokens of their inputs are kept as well. An input stays if something else keeps it:
the input of o_proj is the output of attention, which attention keeps for its own backward. The
product in front of down_proj does not stay; its factors do.
"""

from __future__ import annotations

import sluiceway as sw
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from experiments.harness import REPOSITORY

MODEL = REPOSITORY / "experiments/quickstart/model"
TOKENS, RATIO = (4, 256), 0.5
ALONE = ("q_proj", "gate_proj", "down_proj")  # The first layer of each input that is dropped,
STAYS = ("o_proj",)  # and of each input that stays.
MEASURED = tuple(f"layers.0.self_attn.{name}_proj" for name in "qkvo")


def saved_bytes(model: nn.Module) -> int:
    """Bytes of storages that one forward and loss keep for the backward, without parameters."""
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage
        return tensor

    ids = torch.randint(0, 256, TOKENS, generator=torch.Generator().manual_seed(0))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(input_ids=ids, labels=ids).loss
    total = sum(storage.nbytes() for storage in kept.values())
    loss.backward()
    model.zero_grad()
    return total


def formula(model: nn.Module, ratio: float) -> int:
    """Bytes that fusing saves, by the formula above."""

    def columns(ends: tuple[str, ...]) -> list[int]:
        return [one.in_features for name, one in model.named_modules() if name.endswith(ends)]

    less = sum(n - round(ratio * n) for n in columns(ALONE))
    more = sum(round(ratio * n) for n in columns(STAYS))
    measured = 256 * sum(columns(MEASURED))
    return 4 * (TOKENS[0] * TOKENS[1] * (less - more) - measured)


def memory_rows() -> list[dict]:
    """Measure the bytes kept with hooks, and fused with and without sharing of inputs."""
    rows = []
    with_hooks = 0
    for way, options in {
        "hooks": {},
        "fused": {"fused": True, "share_inputs": True},
        "fused, a Q for each layer": {"fused": True},
    }.items():
        model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
        options = {"codec": "block_random", "ratio": RATIO, "residual": "none", **options}
        with sw.SubspaceAdamW(model, **options):
            found = saved_bytes(model)
        with_hooks = with_hooks or found
        expected = with_hooks - (formula(model, RATIO) if way == "fused" else 0)
        rows.append({"way": way, "bytes": found, "formula": expected})
    return rows
