"""Weights, text and rates, which are the same for every side."""

from __future__ import annotations

import hashlib
import pydoc_data.topics
from collections.abc import Iterable

import torch
from torch import nn

# Hidden width, width of the MLP, layers.
SIZES = {
    "3M": (256, 704, 4),
    "25M": (512, 1376, 8),
    "55M": (640, 1728, 11),
    "110M": (768, 2048, 16),
}
TOKENS = 256  # Tokens of a step: one sequence.
ADAM = {"lr": 1e-4, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}


def build_model(size: str) -> nn.Module:
    """Build a Llama of bytes with random bf16 weights, the same in every process.

    Parameters
    ----------
    size : str
        A key of SIZES.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    hidden, intermediate, layers = SIZES[size]
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        max_position_embeddings=TOKENS,
        use_cache=False,
    )
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)  # Makes no copy in fp32, which would be the peak.
    try:
        return LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(torch.float32)


def batch(step: int) -> torch.Tensor:
    """Return bytes of English prose, the same for a step in every process."""
    text = "\n".join(pydoc_data.topics.topics.values()).encode()
    start = step * TOKENS % (len(text) - TOKENS)
    return torch.frombuffer(bytearray(text[start : start + TOKENS]), dtype=torch.uint8).long()[None]


def weights_hash(weights: Iterable[torch.Tensor]) -> str:
    """Hash all bits of the weights."""
    digest = hashlib.sha256()
    for weight in weights:
        digest.update(weight.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
