"""Tiny language models whose experts are 3-D parameters, in both layouts."""

from __future__ import annotations

import copy

import torch
from torch import nn
from transformers import AutoModelForCausalLM, GptOssConfig, MixtralConfig, Qwen3MoeConfig

EXPERTS = 4
SHAPE = {
    "vocab_size": 64,
    "hidden_size": 256,
    "intermediate_size": 256,
    "moe_intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "num_local_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 128,
}
KINDS = {
    "mixtral": MixtralConfig(**SHAPE),  # (E, out, in)
    "qwen3_moe": Qwen3MoeConfig(**SHAPE),
    "gpt_oss": GptOssConfig(**SHAPE, rope_scaling={"rope_type": "default"}),  # (E, in, out)
}


def language_model(kind: str, implementation: str = "grouped_mm") -> nn.Module:
    """One of `KINDS`, its experts computed in one of transformers' ways."""
    config = copy.deepcopy(KINDS[kind])
    config._experts_implementation = implementation
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).train()


def tokens_of(step: int, rows: int = 4, length: int = 12) -> torch.Tensor:
    """Tokens that are a function of `step`."""
    generator = torch.Generator().manual_seed(step)
    return torch.randint(0, SHAPE["vocab_size"], (rows, length), generator=generator)


def loss_of_tokens(model: nn.Module, step: int) -> torch.Tensor:
    tokens = tokens_of(step)
    return model(input_ids=tokens, labels=tokens).loss
