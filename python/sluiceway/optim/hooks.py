"""Hooks that tie a model to its engine: gradients go in, forwards wait for their weights.

A hook holds the optimizer weakly, so that a model does not keep a dropped optimizer alive.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from sluiceway import _core
from sluiceway.errors import InvalidArgument

if TYPE_CHECKING:
    from sluiceway.model.targets import CompressedWeight
    from sluiceway.optim.subspace.optimizer import SubspaceAdamW


class ModelHooks:
    """Everything that is registered on one model for one optimizer.

    Parameters
    ----------
    optimizer : SubspaceAdamW
        Told of gradients, of the end of each backward and of each root forward.
    model : torch.nn.Module
    weights : list of CompressedWeight
        In the engine's order.
    """

    def __init__(
        self, optimizer: SubspaceAdamW, model: nn.Module, weights: list[CompressedWeight]
    ) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._handles: list[Any] = []
        # Weights whose module ran in the current forward. A module whose forward is never called
        # is waited for at the root instead.
        self._seen: set[int] = set()
        self._unseen: set[int] = set()
        self._count = len(weights)
        # Gradients that residuals need: of the step being gathered, and of the one being applied.
        self._totals: dict[int, torch.Tensor] = {}
        self._lent: dict[int, torch.Tensor] = {}
        self._backward_open = False
        self.forward_began_us = 0.0
        self.backward_began_us = 0.0
        for index, weight in enumerate(weights):
            self._add_weight(index, weight)
        # On the node, not on the tensor: torch.autograd.grad() runs a tensor's hooks too.
        self._sentinel_node = torch.autograd.graph.get_gradient_edge(
            optimizer.sentinel.parameter
        ).node
        self._keep(self._sentinel_node.register_prehook(self._before_accumulation))
        self._keep(model.register_forward_pre_hook(self._before_root))
        for module in model.modules():
            self._keep(module.register_state_dict_pre_hook(self._synchronize))
            self._keep(module.register_load_state_dict_pre_hook(self._synchronize))

    def _keep(self, handle: Any) -> None:
        self._handles.append(handle)

    def _add_weight(self, index: int, weight: CompressedWeight) -> None:
        def before_forward(_module: nn.Module, _inputs: Any) -> None:
            optimizer = self._optimizer()
            if optimizer is None:
                return
            optimizer.engine.wait(index)
            if torch._C._current_graph_task_id() != -1:  # A forward that checkpointing repeats.
                return
            self._lent.pop(index, None)
            if index in self._seen:
                optimizer.engine.hold_residual(index)
            if _computes_in_fp16():  # Perhaps from inside the model's own forward.
                optimizer.expect_scaled_loss()
            self._seen.add(index)

        def after_accumulation(parameter: torch.Tensor) -> None:
            optimizer = self._optimizer()
            if optimizer is None:
                return
            gradient, parameter.grad = parameter.grad, None
            if gradient is None:
                raise InvalidArgument(
                    f"SubspaceAdamW: another optimizer took the gradient of {weight.name}, "
                    "expected one optimizer for a weight; close() the other one"
                )
            if not self._backward_open:
                self._open_backward(optimizer)
            if gradient.stride(-1) != 1:
                gradient = gradient.contiguous()
            self._add_gradient(optimizer, index, gradient)

        for module in weight.modules:
            self._keep(module.register_forward_pre_hook(before_forward))
        self._keep(weight.parameter.register_post_accumulate_grad_hook(after_accumulation))

    def _add_gradient(self, optimizer: SubspaceAdamW, index: int, gradient: torch.Tensor) -> None:
        if optimizer.calibrating or not optimizer.has_residual(index):
            optimizer.engine.add_gradient(index, gradient, gradient)
            return
        total = self._totals.get(index)
        if total is None:
            self._totals[index] = total = gradient
        else:
            total.add_(gradient)
        optimizer.engine.add_gradient(index, gradient, total)
        if optimizer.engine.residual_done(index):
            del self._totals[index]

    def _open_backward(self, optimizer: SubspaceAdamW) -> None:
        self._backward_open = True
        self.backward_began_us = _core.now_us()
        optimizer.begin_backward()
        # Fires when this backward ends; once per segment under reentrant checkpointing, which
        # then opens again. Writing the sentinel twice is harmless.
        torch.autograd.Variable._execution_engine.queue_callback(self._close_backward)

    def _close_backward(self) -> None:
        self._backward_open = False
        optimizer = self._optimizer()
        if optimizer is not None:
            optimizer.end_backward()

    def _before_accumulation(self, _gradients: tuple[torch.Tensor, ...]) -> None:
        # Autograd would add to the sentinel.
        optimizer = self._optimizer()
        if optimizer is None:
            return
        if not self._backward_open:  # Looks at the sentinel before it goes.
            self._open_backward(optimizer)
        optimizer.sentinel.remove()

    def _before_root(self, model: nn.Module, _inputs: Any) -> None:
        optimizer = self._optimizer()
        if optimizer is None:
            return
        if self._backward_open and torch._C._current_graph_task_id() == -1:
            optimizer.abandon_backward()  # It raised: it never closed.
        if self._seen:
            self._unseen = set(range(self._count)) - self._seen
            self._seen = set()
        # Out of training, models have paths that read weights without calling their modules.
        for index in self._unseen if model.training else range(self._count):
            optimizer.engine.wait(index)
            self._lent.pop(index, None)
        self.forward_began_us = _core.now_us()
        optimizer.before_forward(model.training and torch.is_grad_enabled())
        self._seen = set()  # A calibration has run a forward of its own.

    def abandon_backward(self) -> None:
        """The backward that is open will not close, and its gradients go."""
        self._backward_open = False
        self.drop_totals()

    def drop_totals(self) -> None:
        """The gradients of the step that was being gathered go."""
        self._totals.clear()

    def lend_totals(self) -> None:
        """A step begins to be applied: each gradient lives until its weight was waited for."""
        self._lent.update(self._totals)
        self._totals.clear()

    def take_back_totals(self) -> None:
        """Every step is applied."""
        self._lent.clear()

    def _synchronize(self, *_: Any) -> None:
        optimizer = self._optimizer()
        if optimizer is not None:
            optimizer.synchronize()

    def remove(self) -> None:
        """Take every hook away; idempotent."""
        while self._handles:
            self._handles.pop().remove()


def _computes_in_fp16() -> bool:
    return any(
        torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == torch.float16
        for kind in ("cpu", "cuda")
    )
