"""Layers whose backward computes their weight's core, and the gradient of their input."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional

from sluiceway.optim.common import torch_private
from sluiceway.optim.common.other_class import OtherClass, give_class_back, take_class
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
        # One dtype for all, so that autocast keeps no copy of the weight that gets no gradient.
        weight = weight.to(x.dtype)
        bias = None if bias is None else bias.to(x.dtype)
        if fused.inputs_are_rows:
            y = torch.addmm(bias, x.reshape(-1, x.shape[-1]), weight)
        else:
            y = functional.linear(x, weight, bias)
        # Not a view: autograd forbids in-place changes of a view that a Function made.
        return torch_private.reshaped(y, (*x.shape[:-1], y.shape[-1]))

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of input and bias, which have graphs with `create_graph=True`."""
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


class FusedLayer(OtherClass):
    """Base class that a fused layer's class has before the layer's original class."""

    fused: ClassVar[FusedWeight]

    def forward(self, *arguments: torch.Tensor, **named: torch.Tensor) -> torch.Tensor:
        """Compute the original forward; you may pass the argument by name, `input` or `x`."""
        if named or len(arguments) != 1:
            return super().forward(*arguments, **named)
        (x,) = arguments
        if torch.compiler.is_compiling() or not self.fused.takes(self.weight, x):
            return super().forward(x)
        cast = _autocast_dtype(x)
        if cast is None and x.dtype != self.weight.dtype:
            return super().forward(x)  # It raises the error that the user expects.
        computed = x if cast is None else x.to(cast)
        kept, sample = self.fused.enter(x, computed), self.fused.sample(computed)
        return _FusedProduct.apply(computed, self.weight, self.bias, kept, sample, self.fused)


def _autocast_dtype(x: torch.Tensor) -> torch.dtype | None:
    kind = x.device.type
    eligible = x.is_floating_point() and x.dtype != torch.float64
    if eligible and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return None


def why_not_fused(module: nn.Module) -> str | None:
    """Return why a layer cannot be fused; None if it can be fused or is fused already."""
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
    """Return whether the layer's weight is [in, out]."""
    return _is_conv1d(type(module))


def fuse(module: nn.Module, fused: FusedWeight) -> None:
    """Let a layer compute cores for `fused`."""
    take_class(module, FusedLayer, fused=fused)


def unfuse(module: nn.Module) -> None:
    """Give a layer its original class back; idempotent."""
    if isinstance(module, FusedLayer):
        module.fused.let_go()
        give_class_back(module, FusedLayer)
