"""Tensors that say they are on a card that this machine does not have."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_ATEN = torch.ops.aten
CARD = torch.device("cuda:0")


class OnCard(torch.Tensor):
    """A tensor as on a card: values can be copied to the host, and its memory cannot be read."""

    values: torch.Tensor

    @staticmethod
    def __new__(cls, values: torch.Tensor) -> OnCard:
        made = torch.Tensor._make_wrapper_subclass(
            cls, values.shape, strides=values.stride(), dtype=values.dtype, device=CARD
        )
        made.values = values.detach().clone()
        return made

    def __repr__(self, **_: Any) -> str:
        return f"OnCard({tuple(self.shape)}, {self.dtype})"

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if func is _ATEN.detach.default:
            return cls(args[0].values)
        if func is _ATEN._local_scalar_dense.default:
            return args[0].values.item()
        if func is _ATEN._to_copy.default and given.get("device") == torch.device("cpu"):
            return args[0].values.to(dtype=given.get("dtype") or args[0].dtype, copy=True)
        if func is _ATEN.copy_.default and not isinstance(args[0], cls):
            return args[0].copy_(args[1].values)
        raise RuntimeError(f"{func} of a tensor on {CARD}, expected a copy of it on the host")


class _Moving(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.Tensor.to and args[1:] == (CARD,):
            return OnCard(args[0])
        return func(*args, **(kwargs or {}))


def moving_to_card() -> TorchFunctionMode:
    """Inside of it `tensor.to(CARD)` gives an `OnCard`."""
    return _Moving()
