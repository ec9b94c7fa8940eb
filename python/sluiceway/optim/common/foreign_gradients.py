"""What stands in `.grad` of compressed weights, or waits for it there, without being ours."""

from __future__ import annotations

import torch

from sluiceway.errors import InvalidArgument
from sluiceway.model.targets import CompressedWeight
from sluiceway.optim.common.norm_carrier import Carriers
from sluiceway.optim.common.sentinel_gradient import SentinelGradient


class ForeignGradients:
    """Refuses gradients that nobody would use, and hooks that would see none.

    Parameters
    ----------
    owner : str
        The optimizer's name, for errors.
    weights : list of CompressedWeight
        Their hooks are registered.
    carriers : Carriers
        Of the gradients that are ours.
    """

    def __init__(self, owner: str, weights: list[CompressedWeight], carriers: Carriers) -> None:
        self._owner = owner
        self._weights = weights
        self._carriers = carriers
        self._last_hooks = [_last_hook(weight) for weight in weights]

    def _gradients(self) -> list[tuple[str, torch.Tensor]]:
        with torch._C.DisableTorchFunctionSubclass():  # A look waits for no update.
            return [
                (weight.name, weight.parameter.grad)
                for weight in self._weights
                if weight.parameter.grad is not None
                and not self._carriers.stands_at(weight.parameter)
            ]

    def check_step(self) -> None:
        """Refuse what `step()` would not use.

        Raises
        ------
        InvalidArgument
            The first weight is named.
        """
        for name, gradient in self._gradients():
            self._refuse_earlier(name, gradient)
            # Gradients are taken in backward: one that was assigned would never be used.
            raise InvalidArgument(
                f"{self._owner}.step: {name} has a .grad that no backward() gave it, "
                "expected None; call backward() instead of assigning .grad"
            )
        with torch._C.DisableTorchFunctionSubclass():
            for weight, last in zip(self._weights, self._last_hooks, strict=True):
                if _last_hook(weight) not in (last, None):
                    raise InvalidArgument(
                        f"{self._owner}.step: {weight.name} got a post-accumulate hook after the "
                        "optimizer was made, which finds .grad empty, expected none; register it "
                        "before, or use register_hook()"
                    )

    def check_backward(self) -> None:
        """Refuse a sentinel that was put back after its gradients were dropped.

        Raises
        ------
        InvalidArgument
            Its weight is named.
        """
        for name, gradient in self._gradients():
            self._refuse_earlier(name, gradient)

    def check_forward(self) -> None:
        """Refuse gradients that lie in a buffer, which would be empty after backward.

        Raises
        ------
        InvalidArgument
            The first weight is named.
        """
        for name, gradient in self._gradients():
            if gradient.layout is torch.strided and (
                gradient.untyped_storage().nbytes() > gradient.numel() * gradient.element_size()
            ):
                raise InvalidArgument(
                    f"{self._owner}: .grad of {name} is a part of a larger tensor, expected None, "
                    "as backward() takes it out of there; keep such a buffer for parameters that "
                    "are not compressed"
                )

    def _refuse_earlier(self, name: str, gradient: torch.Tensor) -> None:
        if isinstance(gradient, SentinelGradient):
            raise InvalidArgument(
                f"{self._owner}: .grad of {name} was put back after the compressed gradients that "
                "it stood for were dropped or used, expected None; leave .grad in its place from "
                "backward() to step(), or call backward() again"
            )


def _last_hook(weight: CompressedWeight) -> int | None:
    hooks = weight.parameter._post_accumulate_grad_hooks
    return next(reversed(hooks)) if hooks else None
