"""Parts of a batch that a block computes one after the other.

The batch is the first dimension of the block's hidden states, the first tensor that needs a
gradient. Tensors beside it with a row for each sequence (masks, positions) are divided with it; the
rest (rotary embeddings, a mask for all sequences) goes to every part.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from sluiceway.errors import InvalidArgument

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)


class BatchParts:
    """Ranges of rows, and which of a block's inputs are divided.

    Parameters
    ----------
    owner : str
        The optimizer's name, for errors.
    inputs : sequence of torch.Tensor
        The tensors that a block is called with.
    others : sequence
        What else it is called with.
    count : int
        Parts; there are fewer if the batch has fewer rows.

    Attributes
    ----------
    ranges : list of tuple of int
        First and last row of each part.

    Raises
    ------
    InvalidArgument
        An input may have a row for each sequence, but it is not known.
    """

    def __init__(
        self, owner: str, inputs: Sequence[torch.Tensor], others: Sequence[Any], count: int
    ) -> None:
        self._owner = owner
        wide = [t for t in inputs if t.dim() >= 2]
        hidden = next((t for t in wide if t.requires_grad), wide[0] if wide else None)
        rows = 1 if hidden is None else len(hidden)
        count = max(1, min(count, rows))
        ends = [rows * (i + 1) // count for i in range(count)]
        self.ranges = list(zip([0, *ends[:-1]], ends, strict=True))
        self._divided = [False] * len(inputs)
        if count > 1:
            self._divided = [self._divides(tensor, hidden) for tensor in inputs]
            self._refuse_others(others)

    def __len__(self) -> int:
        return len(self.ranges)

    def _divides(self, tensor: torch.Tensor, hidden: torch.Tensor) -> bool:
        """Tell whether a tensor has a row for each sequence of the hidden states."""
        rows, length = hidden.shape[:2]
        if tensor is hidden:
            return True
        if tensor.dim() < 2 or len(tensor) != rows:
            return False
        if tensor.dim() == 2:
            known = rows != length
        else:
            is_mask = tensor.dim() == 4 and tensor.shape[2] in (1, length)
            known = is_mask or tensor.shape[1] == length or tensor.shape[-1] == hidden.shape[-1]
        if not known:
            raise InvalidArgument(
                f"{self._owner}: a block gets {rows} sequences of {length} tokens, and beside them "
                f"a tensor of shape {tuple(tensor.shape)}, whose rows may belong to something "
                "else; take another length or number of sequences, or micro_batches=1"
            )
        return True

    def _refuse_others(self, others: Sequence[Any]) -> None:
        for value in others:
            if not isinstance(value, _PLAIN):
                raise InvalidArgument(
                    f"{self._owner}: a block gets a {type(value).__name__}, which micro_batches "
                    "cannot divide; take micro_batches=1"
                )

    def of(self, inputs: Sequence[torch.Tensor], part: int) -> list[torch.Tensor]:
        """Return one part of a block's inputs."""
        first, last = self.ranges[part]
        return [
            tensor[first:last] if divided else tensor
            for tensor, divided in zip(inputs, self._divided, strict=True)
        ]

    def of_outputs(
        self, gradients: Sequence[torch.Tensor | None], part: int
    ) -> Sequence[torch.Tensor | None]:
        """Return one part of the gradients of what a block returns."""
        if len(self) == 1:
            return gradients
        first, last = self.ranges[part]
        return [None if g is None else g[first:last] for g in gradients]

    def joined(self, results: Sequence[Sequence[torch.Tensor]]) -> list[torch.Tensor]:
        """Join what a block returned for each part.

        Raises
        ------
        InvalidArgument
            It has something that does not belong to the rows of its part.
        """
        for (first, last), result in zip(self.ranges, results, strict=True):
            for tensor in result:
                if tensor.dim() == 0 or len(tensor) != last - first:
                    raise InvalidArgument(
                        f"{self._owner}: a block returns a tensor of shape {tuple(tensor.shape)} "
                        f"for {last - first} sequences, which micro_batches cannot join; take "
                        "micro_batches=1"
                    )
        return [torch.cat(tensors) for tensors in zip(*results, strict=True)]

    def joined_gradients(
        self, inputs: Sequence[torch.Tensor], found: Sequence[Sequence[torch.Tensor | None]]
    ) -> list[torch.Tensor | None]:
        """Join the gradients of a block's inputs, of which `found` has a list for each part."""
        if len(self) == 1:
            return list(found[0])
        return [
            self._joined(whole, divided, gradients)
            for whole, divided, gradients in zip(
                inputs, self._divided, zip(*found, strict=True), strict=True
            )
        ]

    def _joined(
        self, whole: torch.Tensor, divided: bool, gradients: Sequence[torch.Tensor | None]
    ) -> torch.Tensor | None:
        there = [gradient for gradient in gradients if gradient is not None]
        if not there:
            return None
        if not divided:
            return sum(there[1:], start=there[0])
        joined = torch.zeros_like(whole)
        for (first, last), gradient in zip(self.ranges, gradients, strict=True):
            if gradient is not None:
                joined[first:last] = gradient
        return joined


def refuse_sequence_first(owner: str, modules: Iterable[nn.Module]) -> None:
    """Refuse to divide the batches of blocks whose first dimension is the sequence.

    Raises
    ------
    InvalidArgument
        The text says what to do.
    """
    for module in modules:
        if any(getattr(part, "batch_first", True) is False for part in module.modules()):
            raise InvalidArgument(
                f"{owner}: {type(module).__name__} has batch_first=False, so micro_batches would "
                "divide its sequences; make it with batch_first=True, or take micro_batches=1"
            )
