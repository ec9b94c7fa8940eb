"""Residuals that train their weights in backward: what `step()` can no longer change of that."""

from __future__ import annotations

import warnings

import torch

from sluiceway import _core
from sluiceway.errors import InvalidArgument

_HYPERS = ("lr", "betas[0]", "betas[1]", "eps", "weight_decay")


class EarlyResiduals:
    """Knows what was trained before `step()`, and speaks up where the step then comes otherwise.

    Parameters
    ----------
    owner : str
        The optimizer's name, for errors.
    engine : SubspaceEngine
    names : list of str
        Names of the engine's weights.
    accumulate : int or "auto"
        The promise that lets residuals train early; "auto" lets none.
    """

    def __init__(
        self, owner: str, engine: _core.SubspaceEngine, names: list[str], accumulate: int | str
    ) -> None:
        self._owner, self._engine, self._names = owner, engine, names
        self._accumulate = accumulate
        self._hypers: list[tuple[float, ...]] = []
        self._weights: list[torch.Tensor] = []  # Kept: the engine reads them.
        self._warned = False

    def prepare(
        self,
        hypers: list[tuple[float, ...]],
        as_applied: list[tuple[float, ...]],
        weights: list[torch.Tensor],
    ) -> None:
        """Give the engine what residuals of this backward read.

        Parameters
        ----------
        hypers : list of tuple of float
            lr, betas, eps and weight_decay of each weight, as its group has them.
        as_applied : list of tuple of float
            The same with the weight's own factor and scale.
        weights : list of torch.Tensor
        """
        self._hypers, self._weights = hypers, weights
        self._engine.prepare(as_applied, weights)

    def check(self, hypers: list[tuple[float, ...]]) -> None:
        """Refuse a step with other hyperparameters than weights were trained with already.

        Raises
        ------
        InvalidArgument
            The first weight is named. The step can be taken with the values of the backward.
        """
        if hypers == self._hypers:
            return
        for number in self.trained():
            for key, was, now in zip(_HYPERS, self._hypers[number], hypers[number], strict=True):
                if was != now:
                    raise InvalidArgument(
                        f"{self._owner}.step: {key} of {self._names[number]} is {now} and was "
                        f"{was} in backward(), where the weight's residual was applied at once, "
                        f"as accumulate={self._accumulate} lets it, expected one value for both; "
                        f"set {key} before backward(), or use accumulate='auto'"
                    )

    def trained(self) -> list[int]:
        """Return the weights that residuals have changed since the last step; may wait for them."""
        if not self._weights:  # Without prepare() no residual is applied early.
            return []
        return [n for n in range(len(self._names)) if self._engine.residual_trained(n)]

    def warn(self, trained: list[int], what: str) -> None:
        """Say once that a step is not taken, or not yet, whose residuals have `trained` weights."""
        if not trained or self._warned:
            return
        self._warned = True
        warnings.warn(
            f"{self._owner}: {what}, but {len(trained)} weights ({self._names[trained[0]]} for "
            f"one) have changed in backward(), where their residuals were applied at once, as "
            f"accumulate={self._accumulate} lets them, and stay changed; use accumulate='auto' if "
            "a backward may come without a step() (said once)",
            RuntimeWarning,
            stacklevel=7,  # Of zero_grad(), which torch.compiler.disable wraps.
        )
