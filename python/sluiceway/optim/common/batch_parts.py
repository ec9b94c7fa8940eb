"""Parts of a batch that a block computes one after the other.

The batch is the first dimension of a block's first tensor. Whatever else has that many rows is
divided with it; the rest (rotary embeddings, a mask for all sequences) goes to every part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from sluiceway.errors import InvalidArgument


@dataclass(frozen=True)
class BatchPart:
    """Rows `first` to `last` of a batch of `rows`; all of it if it is not divided."""

    first: int
    last: int
    rows: int

    @property
    def _is_all(self) -> bool:
        return self.last - self.first == self.rows

    def divides(self, tensor: torch.Tensor) -> bool:
        """Tell whether a tensor among a block's inputs is divided."""
        return not self._is_all and tensor.dim() >= 2 and len(tensor) == self.rows

    def of(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return this part of a block's inputs."""
        return [t[self.first : self.last] if self.divides(t) else t for t in inputs]

    def of_outputs(self, gradients: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """Return this part of the gradients of what a block returns."""
        return [g if g is None or self._is_all else g[self.first : self.last] for g in gradients]


def parts_of(owner: str, inputs: Sequence[torch.Tensor], count: int) -> list[BatchPart]:
    """Divide a batch evenly into `count` parts, or into fewer if it has fewer rows.

    Raises
    ------
    InvalidArgument
        A matrix among the inputs may have a row for each sequence or for each token.
    """
    batched = inputs and inputs[0].dim() >= 2
    rows = len(inputs[0]) if batched else 1
    count = min(count, rows)
    if count <= 1:
        return [BatchPart(0, rows, rows)]
    if inputs[0].shape[1] == rows and any(t.dim() == 2 for t in inputs[1:]):
        raise InvalidArgument(
            f"{owner}: a block gets {rows} sequences of {rows} tokens and a matrix beside them, so "
            "its rows may belong to either; take another length or number of sequences, or "
            "micro_batches=1"
        )
    ends = [rows * (i + 1) // count for i in range(count)]
    return [BatchPart(a, b, rows) for a, b in zip([0, *ends], ends, strict=False)]


def refuse_sequence_first(owner: str, module: nn.Module) -> None:
    """Refuse to divide the batch of a block whose first dimension is the sequence.

    Raises
    ------
    InvalidArgument
        The text says what to do.
    """
    if any(getattr(part, "batch_first", True) is False for part in module.modules()):
        raise InvalidArgument(
            f"{owner}: {type(module).__name__} has batch_first=False, so micro_batches would "
            "divide its sequences; make it with batch_first=True, or take micro_batches=1"
        )


def joined_parts(
    owner: str, parts: Sequence[BatchPart], results: Sequence[Sequence[torch.Tensor]]
) -> list[torch.Tensor]:
    """Join what a block returned for each part.

    Raises
    ------
    InvalidArgument
        It has something that does not belong to the rows of its part.
    """
    for part, result in zip(parts, results, strict=True):
        for tensor in result:
            if tensor.dim() == 0 or len(tensor) != part.last - part.first:
                raise InvalidArgument(
                    f"{owner}: a block returns a tensor of shape {tuple(tensor.shape)} for "
                    f"{part.last - part.first} sequences, which micro_batches cannot join; take "
                    "micro_batches=1"
                )
    return [torch.cat(tensors) for tensors in zip(*results, strict=True)]


def joined_gradients(
    parts: Sequence[BatchPart],
    inputs: Sequence[torch.Tensor],
    found: Sequence[Sequence[torch.Tensor | None]],
) -> list[torch.Tensor | None]:
    """Join the gradients of a block's inputs, of which `found` has a list for each part."""
    if len(parts) == 1:
        return list(found[0])
    return [
        _joined(parts, whole, gradients)
        for whole, gradients in zip(inputs, zip(*found, strict=True), strict=True)
    ]


def _joined(
    parts: Sequence[BatchPart],
    whole: torch.Tensor,
    gradients: Sequence[torch.Tensor | None],
) -> torch.Tensor | None:
    there = [gradient for gradient in gradients if gradient is not None]
    if not there:
        return None
    if not parts[0].divides(whole):
        return torch.stack(there).sum(0) if len(there) > 1 else there[0]
    joined = torch.zeros_like(whole)
    for part, gradient in zip(parts, gradients, strict=True):
        if gradient is not None:
            joined[part.first : part.last] = gradient
    return joined
