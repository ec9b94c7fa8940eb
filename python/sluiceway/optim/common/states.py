"""`opt.state`, where torch keeps moments: here those of ordinary parameters alone.

Moments of compressed weights are the engine's. Who asks for them, or clears what there is, would
get or clear a part without a word.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch

from sluiceway.errors import InvalidArgument
from sluiceway.model.targets import CompressedWeight


class OrdinaryStates(defaultdict):
    """State by parameter, begun when it is asked for; of a compressed weight there is none.

    Parameters
    ----------
    owner : str
        The optimizer's name, for errors.
    weights : list of CompressedWeight
    """

    def __init__(self, owner: str, weights: list[CompressedWeight]) -> None:
        super().__init__(dict)
        self._owner = owner
        self._compressed = {id(weight.parameter): weight.name for weight in weights}

    def _check(self, key: Any) -> None:
        name = self._compressed.get(id(key))
        if name is not None:
            raise InvalidArgument(
                f"{self._owner}.state: moments of {name} are the engine's, expected an ordinary "
                "parameter; read state_dict(), and change them by load_state_dict()"
            )

    def _refuse(self) -> None:
        raise InvalidArgument(
            f"{self._owner}.state: holds no moments of compressed weights, expected to be left as "
            "a whole; load a state_dict(), or make a new optimizer to begin anew"
        )

    def __missing__(self, key: Any) -> Any:
        self._check(key)
        return super().__missing__(key)

    def __contains__(self, key: Any) -> bool:
        self._check(key)
        return super().__contains__(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._check(key)
        super().__setitem__(key, value)

    def get(self, key: Any, default: Any = None) -> Any:
        self._check(key)
        return super().get(key, default)

    def pop(self, key: Any, *default: Any) -> Any:
        self._check(key)
        return super().pop(key, *default)

    def setdefault(self, key: Any, default: Any = None) -> Any:
        self._check(key)
        return super().setdefault(key, default)

    def update(self, *states: Any) -> None:
        for key, value in dict(*states).items():
            self[key] = value

    def clear(self) -> None:
        self._refuse()

    def replace(self, states: Any) -> None:
        """What assigning `opt.state` does."""
        if states is not self:
            self._refuse()

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)

    def copy(self) -> dict[Any, Any]:
        return dict(self)

    __copy__ = copy


class OptimizerWithStates(torch.optim.Optimizer):
    """Has an `OrdinaryStates` in the place of torch's dictionary."""

    weights: list[CompressedWeight]
    _owner: str
    _states: OrdinaryStates | None = None

    @property
    def state(self) -> OrdinaryStates:
        """By parameter, of those that are not compressed; `state_dict()` has all."""
        return self._states

    @state.setter
    def state(self, states: Any) -> None:
        if self._states is None:  # By torch's constructor.
            self._states = OrdinaryStates(self._owner, self.weights)
        else:
            self._states.replace(states)
