"""Fused layers of a rehearsal, with tensors of a run's sizes but without values."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from sluiceway.model.targets import CompressedWeight
from sluiceway.optim.subspace.fused.fused_layer import has_inputs_as_rows
from sluiceway.optim.subspace.fused.fusing import FusedLinears
from sluiceway.optim.subspace.fused.layer_core import LayerCore


class RehearsedWeight(LayerCore):
    """Stands in for a `FusedWeight` where there is no engine."""

    def takes(self, weight: torch.Tensor, x: torch.Tensor) -> bool:
        """Return whether the forward records a graph, so that a backward may compute a core."""
        return torch.is_grad_enabled()

    def step(self) -> int:
        """Return the first step."""
        return 0

    def generation(self) -> int:
        """Return 0, as projectors are never replaced."""
        return 0

    def fill(self, side: str, rows: torch.Tensor, out: torch.Tensor, scratch: torch.Tensor) -> None:
        """Leave `out` as it is, since no code reads it."""

    def accumulates(self) -> bool:
        """Return True, as every backward adds a core."""
        return True

    def add(
        self, dy: torch.Tensor, kept: torch.Tensor, generation: int, sample: torch.Tensor | None
    ) -> None:
        """Compute a core and drop it."""
        self.core(*self.sides(dy, kept))

    def let_go(self) -> None:
        """Do nothing, as this weight holds nothing."""


def fuse_rehearsed(
    model: nn.Module, weights: list[tuple[CompressedWeight, dict[str, Any]]], share_inputs: bool
) -> None:
    """Let layers of a model compute cores and drop them, for the model's lifetime.

    Parameters
    ----------
    model : torch.nn.Module
        Its tensors may share one storage, so that this call does not compare their addresses.
    weights : list of (CompressedWeight, dict)
        Weights, of an equal model, for which the step computes cores and no gradients, each with
        its `core_rows`, `core_cols` and `project_scratch_elems`.
    share_inputs : bool
    """
    fused = FusedLinears([weight for weight, _ in weights] if share_inputs else [])
    for weight, core in weights:
        layer = model.get_submodule(weight.name.rpartition(".")[0])
        widths = core["core_rows"], core["core_cols"]
        shared = fused.shared(weight.name, learns=False)
        scratch = core["project_scratch_elems"]
        rehearsed = RehearsedWeight(has_inputs_as_rows(layer), widths, scratch, shared, fused.bias)
        fused.fuse(layer, weight.name, rehearsed)
