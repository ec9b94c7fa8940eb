"""Hooks that tie a model to an optimizer: gradients go in, forwards wait for their weights.

A hook holds the optimizer weakly, so that a model does not keep a dropped one alive. The hooks do
nothing while torch.compile traces, and compiled graphs do not call them.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable
from contextlib import ExitStack, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from sluiceway.errors import InvalidArgument, Unavailable
from sluiceway.model.targets import CompressedWeight
from sluiceway.optim.common import torch_private
from sluiceway.optim.common.checks import refuse_sparse
from sluiceway.optim.common.one_backward import OneBackward

if TYPE_CHECKING:
    from sluiceway.optim.common.engine_optimizer import EngineOptimizer


class NothingWhenCopied:
    """A hook whose copy does nothing, wherever it is unpickled."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (nullcontext(), "__exit__")


class HookWithoutName(Unavailable, AttributeError):  # noqa: N818 - like all our errors.
    """Raised when TorchScript asks a hook for its name; hasattr() returns False."""


class _ModuleHook(NothingWhenCopied):
    """Calls `act` for one module; a copy of the module has a hook that does nothing."""

    __slots__ = ("_act", "_module", "_sink")

    def __init__(
        self,
        sink: weakref.ref[EngineOptimizer],
        module: nn.Module,
        act: Callable[[EngineOptimizer, nn.Module], None],
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
            "compile; close() the optimizer first, or use torch.jit.trace()"
        )


class ModelHooks:
    """Registers all hooks on one model for one sink; if that fails, removes the earlier ones.

    The calls of one backward come in this order: `begin_backward`, then `add_gradient` or
    `add_core` for each weight once its gradient exists, then `end_backward` when the backward has
    ended or has raised. As in autograd, gradients count that came before it raised. Backwards come
    one at a time; forwards of other threads may come meanwhile. The sink has the methods under
    "Calls from the model's hooks" of EngineOptimizer, and `add_core` if it fuses layers; it numbers
    the weights like the list.
    """

    def __init__(
        self, sink: EngineOptimizer, model: nn.Module, weights: list[CompressedWeight]
    ) -> None:
        self._sink = weakref.ref(sink)
        self._owner = type(sink).__name__
        self._of_forward = threading.local()  # Weights whose modules ran in a thread's forward.
        self._forward_began: Any = None  # Marks of the device.
        self._backward_began: Any = None
        self.backward = OneBackward(self._owner)
        self._parameters = [weight.parameter for weight in weights]
        self._names = [weight.name for weight in weights]
        self._held_back: set[int] = set()  # Weights whose gradients add up in `.grad` meanwhile.
        self._nodes: list[Any] = []  # Autograd's nodes, held so that their hooks stay.
        with ExitStack() as registered:
            self._registered = registered
            registered.callback(self._nodes.clear)
            for index, weight in enumerate(weights):
                self._add_weight(index, weight)
            self._on_call(model, model.register_forward_pre_hook, self._before_root)
            for module in model.modules():
                self._on_call(module, module.register_state_dict_pre_hook, _synchronize)
                self._on_call(module, module.register_load_state_dict_pre_hook, _synchronize)
            self._registered = registered.pop_all()

    def _on_call(
        self,
        module: nn.Module,
        register: Callable[[Callable[..., None]], Any],
        act: Callable[[EngineOptimizer, nn.Module], None],
    ) -> None:
        handle = register(_ModuleHook(self._sink, module, torch.compiler.disable(act)))
        self._registered.callback(handle.remove)

    def _add_weight(self, index: int, weight: CompressedWeight) -> None:
        for module in weight.modules:
            act = partial(self._before_module, index)
            self._on_call(module, module.register_forward_pre_hook, act)
        take = torch.compiler.disable(partial(self._take_gradient, index))
        handle = weight.parameter.register_post_accumulate_grad_hook(take)
        self._registered.callback(handle.remove)
        # Begin a backward before autograd would add to the norm in `.grad`.
        node, handle = self.before_accumulation(index, partial(self._open, index))
        self._nodes.append(node)
        self._registered.callback(handle.remove)

    def before_accumulation(
        self, weight: int, act: Callable[[tuple[torch.Tensor | None]], None]
    ) -> tuple[Any, Any]:
        """Call `act` with the one tensor, or None, that a backward is about to add to the gradient.

        The call comes once in a backward, after all uses of the weight. It is a hook of autograd's
        node, as torch.autograd.grad() runs a tensor's hooks too. Returns this node, which the
        caller must hold to get calls, and the handle that removes the hook.
        """
        node = accumulation(self._parameters[weight])
        return node, node.register_prehook(torch.compiler.disable(act))

    def on_removal(self, undo: Callable[[], None]) -> None:
        """Call `undo` in `remove()`, before any hook is removed."""
        self._registered.callback(undo)

    def remove(self) -> None:
        """Remove every hook; idempotent."""
        self._registered.close()

    # ---- Forwards ----

    def _before_module(self, index: int, sink: EngineOptimizer, _module: nn.Module) -> None:
        sink.wait(index)
        if torch_private.running_backward() != torch_private.NO_BACKWARD:  # Checkpointing.
            return
        seen = self._of_forward.__dict__.setdefault("seen", set())
        if index in seen:
            sink.used_again(index)
        if _computes_in_fp16():  # Perhaps from inside the model's own forward.
            sink.expect_scaled_loss()
        seen.add(index)

    def _before_root(self, sink: EngineOptimizer, model: nn.Module) -> None:
        if not model.training:  # In eval mode torch's fused paths read several weights at once.
            for index in range(len(self._parameters)):
                sink.wait(index)
        training = model.training and torch.is_grad_enabled()
        if not self.backward.is_open:
            self._forward_began = sink.mark()
        sink.before_forward(training and not self.backward.elsewhere())
        self._of_forward.seen = set()  # A calibration has run a forward of its own.

    # ---- Backwards ----

    def hold_back(self, weights: Iterable[int], held: bool) -> None:
        """Let gradients of weights add up in `.grad` until this is undone, or the backward ends."""
        self._held_back = self._held_back.union(weights) if held else self._held_back - {*weights}

    def take_left(self, weights: Iterable[int]) -> None:
        """Take gradients that were held back, and that nothing was added to afterwards."""
        for index in weights:
            if index not in self._held_back and self._parameters[index].grad is not None:
                self._take_gradient(index, self._parameters[index])

    def _take_gradient(self, index: int, parameter: torch.Tensor) -> None:
        if index in self._held_back:
            return
        sink, name = self._sink(), self._names[index]
        if sink is None:
            raise InvalidArgument(
                f"{self._owner}: the gradient of {name} is for an optimizer that was dropped while "
                "a copy of its attributes lives; keep the optimizer itself, or close() the copy"
            )
        gradient, parameter.grad = parameter.grad, None
        if gradient is None:
            if len(torch_private.accumulation_hooks(parameter)) == 1:
                return  # A graph compiled while the weight was frozen makes no gradient.
            raise InvalidArgument(
                f"{self._owner}: another optimizer took the gradient of {name}, but only one "
                "optimizer can train a weight; close() the other one"
            )
        self._gather(sink, index, self._add, sink, index, name, gradient)

    def _add(self, sink: EngineOptimizer, index: int, name: str, gradient: torch.Tensor) -> None:
        refuse_sparse(self._owner, name, gradient)
        if gradient.dim() and gradient.stride(-1) != 1:
            gradient = gradient.contiguous()
        sink.add_gradient(index, gradient)

    def take_core(self, weight: int, core: torch.Tensor, whole: bool) -> None:
        """Give the sink a core in place of a gradient; if `whole`, no gradient follows."""
        if (sink := self._sink()) is not None:
            self._gather(sink, weight, sink.add_core, weight, core, whole)

    def _open(self, index: int, _gradients: tuple[torch.Tensor | None, ...]) -> None:
        if not self.backward.runs_here() and (sink := self._sink()) is not None:
            self._gather(sink, index)

    def begin_backward(self, weight: int) -> None:
        """Begin a backward of this thread, if none is open, before its first gradient comes.

        A backward that runs inside of another one then belongs to the outer one.
        """
        self._open(weight, ())

    def _gather(
        self,
        sink: EngineOptimizer,
        index: int,
        act: Callable[..., None] | None = None,
        *arguments: Any,
    ) -> None:
        """Begin a backward with its first gradient, and `act`; if that raises, it is lost."""
        try:
            if self.backward.open(self._end_backward):
                self._backward_began = sink.mark()
                try:
                    sink.begin_backward()
                except BaseException:
                    self.backward.forget()  # This backward never began, so it must not end.
                    raise
            if act is not None:
                act(*arguments)
        except BaseException:
            sink.lose_gradient(index)
            raise

    def _end_backward(self, raised: bool) -> None:
        sink = self._sink()
        if sink is None:
            return
        try:
            held, self._held_back = self._held_back, set()
            for index in sorted(held):
                if self._parameters[index].grad is not None:
                    self._take_gradient(index, self._parameters[index])
            sink.end_backward(self._forward_began, self._backward_began)
        except BaseException as error:
            if raised:  # A finaliser's error is lost; OneBackward keeps an interruption.
                sink.lose_gradient(0)
            if not raised or not isinstance(error, Exception):
                raise


def _synchronize(sink: EngineOptimizer, _module: nn.Module) -> None:
    sink.synchronize()


def accumulation(parameter: torch.Tensor) -> Any:
    """Return the node that adds to a parameter's gradient, also for a frozen parameter."""
    with torch_private.asking_no_class():  # This need not wait for an update.
        trained = parameter.requires_grad
        parameter.requires_grad_(True)
        try:
            return torch.autograd.graph.get_gradient_edge(parameter).node
        finally:
            parameter.requires_grad_(trained)


def _computes_in_fp16() -> bool:
    for kind in ("cpu", "cuda"):
        if torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == torch.float16:
            return True
    return False
