"""Write byte-level Llamas with random weights, wider and deeper than the quickstart's."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from experiments.quickstart.byte_tokenizer import VOCABULARY_SIZE, write_tokenizer

SEQUENCE = 256  # The longest sequence, in tokens.
# Hidden size, width of the MLP, layers and heads, by millions of parameters.
SHAPES = {55: (640, 1728, 11, 10), 154: (1024, 2816, 12, 16)}


def write_model(folder: Path, millions: int) -> Path:
    """Save one of `SHAPES`, with its tokenizer, as a transformers folder."""
    hidden, intermediate, layers, heads = SHAPES[millions]
    torch.manual_seed(11)
    shape = LlamaConfig(vocab_size=VOCABULARY_SIZE, hidden_size=hidden,
                        intermediate_size=intermediate, num_hidden_layers=layers,
                        num_attention_heads=heads, num_key_value_heads=heads,
                        max_position_embeddings=SEQUENCE, tie_word_embeddings=True,
                        bos_token_id=256, eos_token_id=256, pad_token_id=256)  # fmt: skip
    LlamaForCausalLM(shape).save_pretrained(folder)
    write_tokenizer(folder, SEQUENCE)
    return folder
