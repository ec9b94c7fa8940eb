"""A language model of the family that users bring, with tied embeddings, and tokens for it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import LlamaConfig, LlamaForCausalLM

EMBEDDINGS = "model.embed_tokens.weight"


def small_llama(**changes: object) -> LlamaForCausalLM:
    torch.manual_seed(0)
    shape = {
        "vocab_size": 64, "hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 64,
        "tie_word_embeddings": True, **changes,
    }  # fmt: skip
    return LlamaForCausalLM(LlamaConfig(**shape))


def tokens(step: int, rows: int = 2) -> torch.Tensor:
    """Sequences that are a function of `step` alone."""
    return torch.randint(0, 64, (rows, 24), generator=torch.Generator().manual_seed(step))


def train(
    model: LlamaForCausalLM, optimizers: Sequence[torch.optim.Optimizer], steps: int = 8
) -> LlamaForCausalLM:
    """Train with several optimizers, each of which has some of the parameters."""
    for step in range(steps):
        model(input_ids=tokens(step), labels=tokens(step)).loss.backward()
        for opt in optimizers:
            opt.step()
        for opt in optimizers:
            opt.zero_grad()
    return model
