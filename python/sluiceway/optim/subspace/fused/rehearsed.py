"""Fused layers of a rehearsal: tensors of the sizes that a run has, and nothing in them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from sluiceway.model.targets import CompressedWeight
from sluiceway.optim.subspace.fused.fused_layer import has_inputs_as_rows
from sluiceway.optim.subspace.fused.fusing import FusedLinears
from sluiceway.optim.subspace.fused.layer_core import LayerCore


class RehearsedWeight(LayerCore):
    """What a fused layer asks of its weight, where there is no engine."""

    def takes(self, weight: torch.Tensor, x: torch.Tensor) -> bool:
        """Return whether a forward leads to a core: one that a backward may follow."""
        return torch.is_grad_enabled()

    def step(self) -> int:
        """The first one."""
        return 0

    def generation(self) -> int:
        """Projectors are never replaced."""
        return 0

    def fill(self, side: str, rows: torch.Tensor, out: torch.Tensor, scratch: torch.Tensor) -> None:
        """Nothing reads it."""

    def accumulates(self) -> bool:
        """Every backward does."""
        return True

    def add(
        self, dy: torch.Tensor, kept: torch.Tensor, generation: int, sample: torch.Tensor | None
    ) -> None:
        """A core comes and goes."""
        self.core(*self.sides(dy, kept))

    def let_go(self) -> None:
        """It holds nothing."""


def fuse_rehearsed(
    model: nn.Module, weights: list[tuple[CompressedWeight, dict[str, Any]]], share_inputs: bool
) -> None:
    """Let layers of a model make cores for nobody, until the model goes.

    Parameters
    ----------
    model : torch.nn.Module
        Its tensors may have no storages by which two of them could be told apart.
    weights : list of (CompressedWeight, dict)
        Of another model like it: those that a run fuses and whose gradient the step does not form;
        `core_rows`, `core_cols` and `project_scratch_elems` of each.
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
