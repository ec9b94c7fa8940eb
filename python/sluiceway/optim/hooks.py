"""Hooks that tie a model to an optimizer: gradients go in, forwards wait for their weights.

A hook holds the sink weakly, so that a model does not keep a dropped optimizer alive. What
torch.compile traces has no hooks of modules in it, and what it runs is not looked into.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from typing import Any

import torch
from torch import nn

from sluiceway import _core
from sluiceway.errors import InvalidArgument, Unavailable
from sluiceway.model.targets import CompressedWeight
from sluiceway.optim.gradient_sink import GradientSink
from sluiceway.optim.guards.weight_watch import refuse_sparse


class HookWithoutName(Unavailable, AttributeError):  # noqa: N818 - as all of ours.
    """What TorchScript gets that asks a hook for its name; who only looks for one finds none."""


class _ModuleHook:
    """Calls `act` for one module; a copy of the module has a hook that does nothing."""

    __slots__ = ("_act", "_module", "_sink")

    def __init__(
        self,
        sink: weakref.ref[GradientSink],
        module: nn.Module,
        act: Callable[[GradientSink, nn.Module], None],
    ) -> None:
        self._sink, self._module, self._act = sink, weakref.ref(module), act

    def __call__(self, called: nn.Module, *_: Any) -> None:
        if torch.compiler.is_compiling():
            return
        sink = self._sink()
        if sink is not None and called is self._module():  # A shallow copy shares the hooks.
            self._act(sink, called)

    @property
    def __name__(self) -> str:
        raise HookWithoutName(
            "torch.jit.script: the model has the hooks of an optimizer, which TorchScript cannot "
            "hold, expected none; close() the optimizer first, or use torch.jit.trace()"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (nullcontext(), "__exit__")  # Does nothing, wherever it is unpickled.


class _OpenBackward:
    """Held by autograd until a backward ends; gone before it was called if the backward raised."""

    def __init__(self, close: Callable[[], None]) -> None:
        self._close = close

    def __call__(self) -> None:
        self._close()


class ModelHooks:
    """Everything that is registered on one model for one sink.

    Parameters
    ----------
    sink : GradientSink
        Told of gradients, of the end of each backward and of each root forward.
    model : torch.nn.Module
    weights : list of CompressedWeight
        In the order in which the sink counts them.

    Notes
    -----
    If one hook cannot be registered, those before it are taken away again.
    """

    def __init__(
        self, sink: GradientSink, model: nn.Module, weights: list[CompressedWeight]
    ) -> None:
        self._sink = weakref.ref(sink)
        self._owner = type(sink).__name__
        self._seen: set[int] = set()  # Weights whose module ran in the current forward.
        self._count = len(weights)
        self._backward_open = False
        self._open: Callable[[], _OpenBackward | None] = _nothing
        self._forward_began_us = 0.0
        self._backward_began_us = 0.0
        # On the node, not on the tensor: torch.autograd.grad() runs a tensor's hooks too.
        sentinel = sink.sentinel.parameter
        self._sentinel_node = torch.autograd.graph.get_gradient_edge(sentinel).node
        with ExitStack() as registered:
            self._registered = registered
            for index, weight in enumerate(weights):
                self._add_weight(index, weight)
            before_accumulation = torch.compiler.disable(self._before_accumulation)
            self._keep(self._sentinel_node.register_prehook(before_accumulation))
            self._on_call(model, model.register_forward_pre_hook, self._before_root)
            for module in model.modules():
                self._on_call(module, module.register_state_dict_pre_hook, _synchronize)
                self._on_call(module, module.register_load_state_dict_pre_hook, _synchronize)
            self._registered = registered.pop_all()

    def _keep(self, handle: Any) -> None:
        self._registered.callback(handle.remove)

    def _on_call(
        self,
        module: nn.Module,
        register: Callable[[Callable[..., None]], Any],
        act: Callable[[GradientSink, nn.Module], None],
    ) -> None:
        self._keep(register(_ModuleHook(self._sink, module, torch.compiler.disable(act))))

    def _add_weight(self, index: int, weight: CompressedWeight) -> None:
        def before_forward(sink: GradientSink, _module: nn.Module) -> None:
            sink.wait(index)
            if torch._C._current_graph_task_id() != -1:  # A forward that checkpointing repeats.
                return
            if index in self._seen:
                sink.used_again(index)
            if _computes_in_fp16():  # Perhaps from inside the model's own forward.
                sink.expect_scaled_loss()
            self._seen.add(index)

        def after_accumulation(parameter: torch.Tensor) -> None:
            sink = self._sink()
            if sink is None:
                raise InvalidArgument(
                    f"{self._owner}: the gradient of {weight.name} is for an optimizer that was "
                    "dropped while a copy of its attributes lives, expected the optimizer itself; "
                    "keep it, or close() the copy"
                )
            gradient, parameter.grad = parameter.grad, None
            if gradient is None:
                raise InvalidArgument(
                    f"{self._owner}: another optimizer took the gradient of {weight.name}, "
                    "expected one optimizer for a weight; close() the other one"
                )
            refuse_sparse(self._owner, weight.name, gradient)
            self._open_backward(sink)
            if gradient.stride(-1) != 1:
                gradient = gradient.contiguous()
            sink.add_gradient(index, gradient)

        for module in weight.modules:
            self._on_call(module, module.register_forward_pre_hook, before_forward)
        hook = torch.compiler.disable(after_accumulation)
        self._keep(weight.parameter.register_post_accumulate_grad_hook(hook))

    def _open_backward(self, sink: GradientSink) -> None:
        if self._backward_open:
            if self._open() is not None:
                return
            sink.abandon_backward()  # The one before raised, and no forward of the root came since.
        self._backward_open = True
        self._backward_began_us = _core.now_us()
        sink.begin_backward()
        # Fires when this backward ends; once per segment under reentrant checkpointing, which
        # then opens again. Writing the sentinel twice is harmless.
        closing = _OpenBackward(torch.compiler.disable(self._close_backward))
        self._open = weakref.ref(closing)
        torch.autograd.Variable._execution_engine.queue_callback(closing)

    def _close_backward(self) -> None:
        self._backward_open = False
        sink = self._sink()
        if sink is not None:
            sink.end_backward(self._forward_began_us, self._backward_began_us)

    def _before_accumulation(self, _gradients: tuple[torch.Tensor, ...]) -> None:
        # Autograd would add to the sentinel.
        sink = self._sink()
        if sink is None:
            return
        self._open_backward(sink)  # Looks at the sentinel before it goes.
        sink.sentinel.remove()

    def _before_root(self, sink: GradientSink, model: nn.Module) -> None:
        if self._backward_open and torch._C._current_graph_task_id() == -1:
            sink.abandon_backward()  # It raised: it never closed.
        if not model.training:  # Fused paths of torch read several weights at once, then.
            for index in range(self._count):
                sink.wait(index)
        self._forward_began_us = _core.now_us()
        sink.before_forward(model.training and torch.is_grad_enabled())
        self._seen = set()  # A calibration has run a forward of its own.

    def forget_backward(self) -> None:
        """The backward that is open will not close."""
        self._backward_open = False

    def remove(self) -> None:
        """Take every hook away; idempotent."""
        self._registered.close()


def _nothing() -> None:
    return None


def _synchronize(sink: GradientSink, _module: nn.Module) -> None:
    sink.synchronize()


def _computes_in_fp16() -> bool:
    return any(
        torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == torch.float16
        for kind in ("cpu", "cuda")
    )
