"""Residuals that train weights during backward; a `step()` cannot undo this later."""

from __future__ import annotations

import warnings

import torch

from sluiceway import _core
from sluiceway.errors import InvalidArgument

_HYPERS = ("lr", "betas[0]", "betas[1]", "eps", "weight_decay")


class EarlyResiduals:
    """Knows which weights were trained before `step()`, and reports a step that does not match.

    Parameters
    ----------
    owner : str
        The optimizer's name, for errors.
    engine : SubspaceEngine
    names : list of str
        Names of the engine's weights.
    accumulate : int or "auto"
        Backwards per step that the user promised, so that residuals may train early. With "auto" no
        residual trains early.
    """

    def __init__(
        self, owner: str, engine: _core.SubspaceEngine, names: list[str], accumulate: int | str
    ) -> None:
        self._owner, self._engine, self._names = owner, engine, names
        self._accumulate = accumulate
        self._hypers: list[tuple[float, ...]] = []
        self._weights: list[torch.Tensor] = []  # Kept alive, because the engine reads them.
        self._warned = False

    def prepare(
        self,
        hypers: list[tuple[float, ...]],
        as_applied: list[tuple[float, ...]],
        weights: list[torch.Tensor],
    ) -> None:
        """Give the engine the values that residuals read during this backward.

        Parameters
        ----------
        hypers : list of tuple of float
            lr, betas, eps and weight_decay of each weight, as its group has them.
        as_applied : list of tuple of float
            The same values with the weight's own factor and scale applied.
        weights : list of torch.Tensor
        """
        self._hypers, self._weights = hypers, weights
        self._engine.prepare(as_applied, weights)

    def check(self, hypers: list[tuple[float, ...]]) -> None:
        """Refuse a step whose hyperparameters differ from those of residuals already applied.

        Raises
        ------
        InvalidArgument
            The text names the first such weight. You can take the step with the values of the
            backward.
        """
        if hypers == self._hypers:
            return
        for number in self.trained():
            for key, was, now in zip(_HYPERS, self._hypers[number], hypers[number], strict=True):
                if was != now:
                    raise InvalidArgument(
                        f"{self._owner}.step: {key} of {self._names[number]} is {now} and was "
                        f"{was} in backward(), which already applied the weight's residual, "
                        f"because accumulate={self._accumulate}; "
                        f"set {key} before backward(), or use accumulate='auto'"
                    )

    def trained(self) -> list[int]:
        """Return the weights that residuals have changed since the last step; may wait for them."""
        if not self._weights:  # Without prepare() no residual is applied early.
            return []
        return [n for n in range(len(self._names)) if self._engine.residual_trained(n)]

    def warn(self, trained: list[int], what: str) -> None:
        """Warn once that residuals have changed the weights `trained` though no step was taken."""
        if not trained or self._warned:
            return
        self._warned = True
        warnings.warn(
            f"{self._owner}: {what}, but backward() has already applied the residuals of "
            f"{len(trained)} weights ({self._names[trained[0]]} for one), because "
            f"accumulate={self._accumulate}, and these weights stay changed; use "
            "accumulate='auto' if a backward may come without a step() (warned once)",
            RuntimeWarning,
            stacklevel=7,  # The caller of zero_grad(), which torch.compiler.disable wraps.
        )
