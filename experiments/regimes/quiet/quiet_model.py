"""Make quiet steps: a random Llama reads one batch again and again, so gradients have no noise.

Embedding and head are frozen, as in the subspace engine; model and batch are drawn from the seed.
"""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY, LENGTH = 4096, 256
LOOKS = (1, 3, 5, 7, 9, 11, 12)  # Steps whose losses are reported.


def random_llama(hidden: int, layers: int, seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    heads = hidden // 64
    model = LlamaForCausalLM(
        LlamaConfig(
            hidden_size=hidden,
            intermediate_size=int(2.7 * hidden) // 16 * 16,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=heads,
            vocab_size=VOCABULARY,
            max_position_embeddings=2 * LENGTH,
        )
    )
    for ends in (model.get_input_embeddings(), model.get_output_embeddings()):
        ends.weight.requires_grad_(False)
    return model


def one_batch(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + 1)
    return torch.randint(0, VOCABULARY, (2, LENGTH), generator=generator)


def losses(model, optimizer, batch: torch.Tensor) -> list[float]:
    """Return the losses at LOOKS, each measured before its step."""
    found = []
    for _ in range(LOOKS[-1]):
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(round(loss.item(), 4))
    return [found[step - 1] for step in LOOKS]
