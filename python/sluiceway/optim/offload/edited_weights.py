"""Weights that other code has changed between two steps: training continues from the new values.

The store has an f32 master of each weight, and a step makes the weight from its master. If an
element no longer equals its rounded master, the master takes the element's value; all other
masters stay. The parameter's version reveals changes in place. A checksum of its bits reveals
changes that bypass autograd (`.data`, a numpy array, an earlier view). The checksum reads the 2 or
4 bytes of an element three times a step, where AdamW reads and writes 28; on a GPU, where reading
is cheap, six times. A stored weight that is frozen may not change; its bits
are compared if its version has changed.
"""

from __future__ import annotations

from typing import Any

import torch

from sluiceway.errors import InvalidArgument
from sluiceway.model.targets import CompressedWeight
from sluiceway.optim.common import torch_private
from sluiceway.optim.offload.weight_bits import Checksum, checksum, differ


class EditedWeights:
    """Remembers every weight as its last update left it, and finds weights that differ from that.

    Parameters
    ----------
    owner : str
        The optimizer's name, for errors.
    engine : OffloadEngine
    weights : list of CompressedWeight
        The weights that are trained, in the order of their numbers in the engine.
    frozen : list of CompressedWeight
        Those that are not, but stored.
    """

    def __init__(
        self,
        owner: str,
        engine: Any,
        weights: list[CompressedWeight],
        frozen: list[CompressedWeight],
    ) -> None:
        self._owner = owner
        self._engine = engine
        self._weights = weights
        self._parameters = [weight.parameter for weight in weights]
        self._frozen = [weight for weight in frozen if weight.resident]
        self._at: list[tuple[int, int]] = []
        self._checksums: list[Checksum | None] = []
        self.settle()

    def settle(self) -> None:
        """Note that the weights equal their masters and that nothing is in flight."""
        self.enqueued()
        for number in range(len(self._parameters)):
            self.landed(number)
        self.settle_frozen()

    def settle_frozen(self) -> None:
        """Note that the frozen weights have the values of the store."""
        self._frozen_at = [_place(w.parameter) for w in self._frozen]
        self._frozen_checksums = [checksum(w.parameter) for w in self._frozen]

    def enqueued(self) -> None:
        """Note that updates are in flight; `landed` notes each weight's new value."""
        self._at = [_place(p) for p in self._parameters]
        self._checksums = [None] * len(self._parameters)

    def landed(self, number: int) -> None:
        """Note a weight after its update, if one was in flight, before other code can change it."""
        if self._checksums[number] is None and not self._weights[number].away:
            self._checksums[number] = checksum(self._parameters[number])

    def _edited(self) -> list[int]:
        edited, compared = [], {}
        for number, parameter in enumerate(self._parameters):
            if self._weights[number].away:
                continue
            known = self._checksums[number]
            if _place(parameter) != self._at[number]:
                edited.append(number)
            elif known is not None:
                compared[number] = (checksum(parameter), known)
        changed = zip(compared, differ(compared.values()), strict=True)
        return sorted(edited + [number for number, is_changed in changed if is_changed])

    def take_over(self) -> None:
        """Set the masters of edited weights to the weights' values.

        Raises
        ------
        InvalidArgument
            The store would lose gathered gradients, a weight has another shape, or one that is
            frozen was changed. The text names the weight. The call changed nothing.
        """
        self._check_frozen()
        for number in self._edited():
            load_edited(self._owner, self._engine, number, self._weights[number])
            self._note(number)

    def _check_frozen(self) -> None:
        for number, weight in enumerate(self._frozen):
            place = _place(weight.parameter)
            if place == self._frozen_at[number]:
                continue
            if differ([(checksum(weight.parameter), self._frozen_checksums[number])])[0]:
                raise InvalidArgument(frozen_was_changed(self._owner, weight.name))
            self._frozen_at[number] = place

    def _note(self, number: int) -> None:
        self._at[number] = _place(self._parameters[number])
        self._checksums[number] = checksum(self._parameters[number])


def frozen_was_changed(owner: str, name: str) -> str:
    """Return the error of a frozen weight that is stored and was changed."""
    return (
        f"{owner}: {name} was changed, but it is frozen, and its store is never written to; change "
        "it, or load its values, before you make the optimizer"
    )


def load_edited(owner: str, engine: Any, number: int, weight: CompressedWeight) -> None:
    """Set the master of a weight that other code has changed; see `EditedWeights.take_over`."""
    state, parameter = engine.tensor_state(number), weight.parameter
    if state["master"].shape != parameter.shape:
        raise InvalidArgument(
            f"{owner}: {weight.name} is {tuple(parameter.shape)}, expected "
            f"{tuple(state['master'].shape)} as when the optimizer was made; make a new "
            "optimizer after changing a parameter"
        )
    master = master_of(parameter, state["master"])
    if torch.equal(master, state["master"]):
        return
    if engine.has_gradient():
        raise InvalidArgument(
            f"{owner}.step: {weight.name} was changed between backward() and step(), so its "
            "gradient does not belong to it; change it after step(), or call zero_grad() and "
            "backward() again"
        )
    engine.load_tensor_state(number, **{**state, "master": master})


def master_of(parameter: torch.Tensor, known: torch.Tensor | None) -> torch.Tensor:
    """Return a weight's f32 master: the known one if it rounds to the weight, else the weight."""
    with torch_private.asking_no_class():
        weight = parameter.detach().cpu()
        if known is None:
            return weight.to(torch.float32, copy=True)
        known = known.cpu()
        return torch.where(known.to(weight.dtype) == weight, known, weight.float())


def _place(parameter: torch.Tensor) -> tuple[int, int]:
    with torch_private.asking_no_class():
        return torch_private.version(parameter), parameter.data_ptr()
