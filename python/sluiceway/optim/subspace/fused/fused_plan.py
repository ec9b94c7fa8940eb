"""Fuses the layers of a plan's rehearsal, which then keeps and computes less in backward."""

from __future__ import annotations

from typing import Any

from torch import nn

from sluiceway.config.engines.subspace import SubspaceSection
from sluiceway.model.targets import CompressedWeight, Selection
from sluiceway.optim.subspace.fused.fusing import describe_fused, why_left
from sluiceway.optim.subspace.fused.rehearsed import fuse_rehearsed


class FusedPlan:
    """Fuses the layers of a rehearsal as a run does in the step that needs the most memory.

    Parameters
    ----------
    engine : SubspaceSection
    codec : str
    selection : Selection
        Weights of the planned model.
    costs : list of dict
        `core_rows`, `core_cols`, `elements` and `project_scratch_elems` of every matrix, in the
        engine's order.
    has_residual : bool
        Residuals train the weights, in turns.
    forms_all : bool
        Some step forms every gradient, to fit or to measure projectors, and fuses no layer.
    """

    def __init__(
        self,
        engine: SubspaceSection,
        codec: str,
        selection: Selection,
        costs: list[dict[str, Any]],
        has_residual: bool,
        forms_all: bool,
    ) -> None:
        self._engine, self._codec, self._costs = engine, codec, costs
        self._compressed = selection.compressed
        self._has_residual, self._forms_all = has_residual, forms_all
        every = engine.residual_every
        sizes = [sum(cost["elements"] for cost in costs[turn::every]) for turn in range(every)]
        self._turn = sizes.index(max(sizes))

    def described(self) -> dict[str, Any]:
        """Return the fused weights as a run's summary has them."""
        reasons = {w.name: self._why_left(w, cost) for w, _, cost in self._numbered()}
        left = {name: why for name, why in reasons.items() if why is not None}
        residuals = ["factored" if self._has_residual else "none"]
        every = self._engine.residual_every
        return describe_fused(len(reasons) - len(left), left, every, residuals)

    def as_trained(self, model: nn.Module) -> nn.Module:
        """Fuse all layers whose gradient the step does not form; returns the same model."""
        if self._forms_all:
            return model
        chosen = [
            (weight, cost)
            for weight, number, cost in self._numbered()
            if self._why_left(weight, cost) is None and not self._has_turn(number)
        ]
        fuse_rehearsed(model, chosen, self._engine.share_inputs)
        return model

    def _numbered(self) -> list[tuple[CompressedWeight, int, dict[str, Any]]]:
        """List every weight, the engine's number of its first matrix, and that matrix's costs."""
        found, number = [], 0
        for weight in self._compressed:
            found.append((weight, number, self._costs[number]))
            number += len(weight.names)
        return found

    def _why_left(self, weight: CompressedWeight, cost: dict[str, Any]) -> str | None:
        return why_left(weight, self._codec, cost["project_scratch_elems"] > 0)

    def _has_turn(self, number: int) -> bool:
        return self._has_residual and number % self._engine.residual_every == self._turn
