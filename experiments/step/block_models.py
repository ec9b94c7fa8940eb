"""Build blocks of Llamas at their true sizes, with random weights; count how many a budget holds.

A byte model stands in for the whole one: embedding and head have 256 rows, so a step consists of
the blocks alone. A block's share of it times the layers of the shape gives the time of all blocks.
No figure includes embedding and head of the true vocabulary unless a case asks for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from sluiceway.model.folder import prepare_model, quiet_transformers
from sluiceway.model.rehearsal import Rehearsal, rehearse
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, PretrainedConfig

from experiments.harness import REPOSITORY

_ROWS = 256  # Rows of embedding and head.
_MOMENTS = 2
_ON_HOST = {
    "small": {"hidden_size": 256, "intermediate_size": 704, "num_attention_heads": 4,
              "num_key_value_heads": 2, "num_hidden_layers": 4},
    "medium": {"hidden_size": 1024, "intermediate_size": 2816, "num_attention_heads": 16,
               "num_key_value_heads": 4, "num_hidden_layers": 4},
}  # fmt: skip
SHAPES = (*_ON_HOST, "1b", "1.3b", "3b", "7b")


def shape_of(name: str) -> PretrainedConfig:
    """Return a shape's config: small and medium suit the host device, others are configs/shapes."""
    if name in _ON_HOST:
        return LlamaConfig(**_ON_HOST[name])
    return AutoConfig.from_pretrained(REPOSITORY / f"configs/shapes/llama_{name.replace('.', '_')}")


@dataclass(frozen=True)
class Case:
    """One shape with a number of tokens a step, and activations either kept or recomputed."""

    shape: str
    tokens: int
    checkpointing: bool
    sequence: int
    dtype: torch.dtype
    vocabulary: int = _ROWS

    @cached_property
    def layers(self) -> int:
        """Return the number of blocks in the whole model."""
        return shape_of(self.shape).num_hidden_layers

    @property
    def key(self) -> dict[str, object]:
        """Values that identify a row of results."""
        return {"shape": self.shape, "tokens": self.tokens, "checkpointing": self.checkpointing}

    @property
    def batch(self) -> tuple[int, int]:
        """Return the number of sequences, and the tokens of each."""
        length = min(self.sequence, self.tokens)
        return self.tokens // length, length

    def build(self, blocks: int) -> torch.nn.Module:
        """Build blocks for training on torch's default device; embedding and head are frozen."""
        quiet_transformers()
        shape = shape_of(self.shape)
        shape.num_hidden_layers, shape.vocab_size = blocks, self.vocabulary
        shape.bos_token_id = shape.eos_token_id = None
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(shape, dtype=self.dtype)
        return prepare_model(model, "frozen", self.checkpointing)

    def batch_on(self, device: torch.device) -> torch.Tensor:
        """Draw random tokens, the same each time."""
        generator = torch.Generator().manual_seed(1)
        return torch.randint(self.vocabulary, self.batch, generator=generator).to(device)

    def rehearsal(self, blocks: int) -> Rehearsal:
        """Return bytes and operations of a step in which every gradient stays until the end."""
        return rehearse(lambda: self.build(blocks), set(), *self.batch, None)

    def native_bytes(self, blocks: int) -> int:
        """Bytes of AdamW with everything on the device and moments in the weights' dtype."""
        with torch.device("meta"):
            model = self.build(blocks)
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        return self.rehearsal(blocks).peak_bytes + _MOMENTS * self.dtype.itemsize * trained

    def blocks_within(self, budget: int) -> int:
        """Return how many blocks native AdamW trains within the budget: from 0 to all."""
        one = self.native_bytes(1)
        if one > budget:
            return 0
        return min(self.layers, 1 + (budget - one) // (self.native_bytes(2) - one))


def cases(
    shapes: list[str], tokens: list[int], sequence: int, dtype: torch.dtype
) -> Iterator[Case]:
    """Yield every number of tokens of every shape, without checkpointing and then with it."""
    for checkpointing in (False, True):
        for shape in shapes:
            for count in tokens:
                yield Case(shape, count, checkpointing, sequence, dtype)
