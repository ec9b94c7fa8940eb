"""Layers whose backward computes their weight's core, and the gradient of their input.

A fused layer is of a class of its own, which has the name of the class before: parameters, keys of
`state_dict()` and `isinstance` are as they were, and a copy, or what is pickled, is of that class.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional

from sluiceway.optim.common import torch_private
from sluiceway.optim.subspace.fused.fused_weight import FusedWeight


class _FusedProduct(torch.autograd.Function):
    """A linear layer that keeps its projected input; its weight gets a core, and no gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        kept: torch.Tensor,
        sample: torch.Tensor | None,
        fused: FusedWeight,
    ) -> torch.Tensor:
        ctx.fused, ctx.shape, ctx.generation = fused, x.shape, fused.generation()
        ctx.save_for_backward(kept, weight, sample)
        # Of one dtype, so that autocast keeps no copy of the weight, which would have no gradient.
        weight = weight.to(x.dtype)
        bias = None if bias is None else bias.to(x.dtype)
        if fused.inputs_are_rows:
            y = torch.addmm(bias, x.reshape(-1, x.shape[-1]), weight)
        else:
            y = functional.linear(x, weight, bias)
        # Not a view: autograd lets nobody change a view in place that was made in here.
        return torch_private.reshaped(y, (*x.shape[:-1], y.shape[-1]))

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of input and bias; with `create_graph=True` they have graphs."""
        kept, weight, sample = ctx.saved_tensors
        of_input, _, of_bias, *_ = ctx.needs_input_grad
        dy = dy.reshape(-1, dy.shape[-1])
        dx = None
        if of_input:
            weight = weight.to(dy.dtype)
            dx = dy.mm(weight.t() if ctx.fused.inputs_are_rows else weight).view(ctx.shape)
        if ctx.fused.accumulates():
            ctx.fused.add(dy.detach(), kept, ctx.generation, sample)
        return dx, None, dy.sum(0) if of_bias else None, None, None, None


class FusedLayer(nn.Module):
    """What a layer's class has in front of its own while the layer is fused."""

    fused: ClassVar[FusedWeight]
    unfused: ClassVar[type[nn.Module]]

    def forward(self, *arguments: torch.Tensor, **named: torch.Tensor) -> torch.Tensor:
        """Do what the layer's own does; the argument may be given by its name: `input`, or `x`."""
        if named or len(arguments) != 1:
            return super().forward(*arguments, **named)
        (x,) = arguments
        if torch.compiler.is_compiling() or not self.fused.takes(self.weight, x):
            return super().forward(x)
        cast = _autocast_dtype(x)
        if cast is None and x.dtype != self.weight.dtype:
            return super().forward(x)  # Which says what is wrong.
        computed = x if cast is None else x.to(cast)
        kept, sample = self.fused.enter(x, computed), self.fused.sample(computed)
        return _FusedProduct.apply(computed, self.weight, self.bias, kept, sample, self.fused)

    def __reduce_ex__(self, _protocol: Any) -> Any:
        # By protocol 0, since pickle lets no later one give another class than the object's.
        make, arguments, *rest = super().__reduce_ex__(0)
        as_before = (self.unfused if one is type(self) else one for one in arguments)
        return make, tuple(as_before), *rest


def _autocast_dtype(x: torch.Tensor) -> torch.dtype | None:
    kind = x.device.type
    eligible = x.is_floating_point() and x.dtype != torch.float64
    if eligible and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return None


def why_not_fused(module: nn.Module) -> str | None:
    """Why a layer cannot be fused; None: it can be, or it is."""
    if isinstance(module, FusedLayer):
        return None
    kind = type(module)
    if "forward" in vars(module):
        return f"the forward of its {kind.__name__} was replaced"
    if kind.forward is not nn.Linear.forward and not _is_conv1d(kind):
        return f"its {kind.__name__} has a forward of its own"
    return None


def _is_conv1d(kind: type) -> bool:
    return kind.__name__ == "Conv1D" and kind.__module__ == "transformers.pytorch_utils"


def has_inputs_as_rows(module: nn.Module) -> bool:
    """Return whether its weight is [in, out]."""
    return _is_conv1d(type(module))


def fuse(module: nn.Module, fused: FusedWeight) -> None:
    """Let a layer compute cores for `fused`."""
    kind = type(module)
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    module.__class__ = type(
        kind.__name__, (FusedLayer, kind), {**names, "fused": fused, "unfused": kind}
    )


def unfuse(module: nn.Module) -> None:
    """Leave it as it was found; idempotent."""
    if isinstance(module, FusedLayer):
        module.fused.let_go()
        if FusedLayer in type(module).__bases__:  # Else its class is somebody's by now.
            module.__class__ = module.unfused
