"""What a model's hooks tell and ask of whoever takes its gradients."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from sluiceway.optim.clip.carriers import Carriers


class GradientSink(Protocol):
    """Takes gradients as they are made; weights of the model are called by their number.

    Of one backward the calls come in this order: `begin_backward`, then `add_gradient` for each
    weight as its gradient exists, then `end_backward`, when the backward has come to its end or has
    raised: as autograd's, its gradients up to there count. Backwards come one at a time; forwards
    of other threads may come meanwhile.
    """

    sentinel: Carriers

    def before_forward(self, training: bool) -> None:
        """A forward of the whole model begins; `training`: a backward may follow."""

    def wait(self, weight: int) -> None:
        """A weight is about to be read: come back when its last update is applied."""

    def used_again(self, weight: int) -> None:
        """A weight is used more than once in a step, so that it gets several gradients."""

    def expect_scaled_loss(self) -> None:
        """Gradients are scaled, by how much only `step()` learns."""

    def begin_backward(self) -> None:
        """The first gradient of a backward is there."""

    def add_gradient(self, weight: int, gradient: torch.Tensor) -> None:
        """Take a whole gradient, of a matrix or of a batch of them; nobody else holds it.

        Rows are contiguous.
        """

    def add_core(self, weight: int, core: torch.Tensor, whole: bool) -> None:
        """Take what a layer made in place of a gradient; `whole`: no gradient follows it.

        Only weights whose layers the sink's owner has fused have cores, so a sink that fuses none
        need not have this.
        """

    def mark(self) -> Any:
        """This point of what the device has to do."""

    def end_backward(self, forward_began: Any, backward_began: Any) -> None:
        """All gradients of a backward are in; what began at which mark, None for no forward."""

    def lose_gradient(self, weight: int) -> None:
        """`begin_backward` or `add_gradient` has raised, and with it a gradient is gone."""

    def synchronize(self) -> None:
        """Come back when every update is applied to the weights."""
