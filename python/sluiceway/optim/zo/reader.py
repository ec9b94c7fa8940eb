"""Puts theta into a model's parameters when they are read, though their own data is the base.

The `data` of a parameter is replaced when a module that has it is called, or when a function of
torch gets it. It is restored when the module that was running then returns. This needs no knowledge
of the model, and also records which module reads which parameter, and in which order.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode
from torch.utils._pytree import tree_leaves

from sluiceway.optim.common import torch_private
from sluiceway.optim.common.elsewhere import WeightsElsewhere, is_no_read
from sluiceway.optim.common.model_hooks import NothingWhenCopied
from sluiceway.optim.zo.inference import outside_inference
from sluiceway.optim.zo.streamed_weights import StreamedWeights


@dataclass
class Call:
    """One call of a module."""

    module: nn.Module | None  # None for code outside of all modules.
    within: Call | None
    reads: list[nn.Parameter] = field(default_factory=list)  # Those that this call read first.

    def around(self) -> Iterator[Call]:
        """Yield the calls around this one, from the inside out."""
        call = self.within
        while call is not None:
            yield call
            call = call.within


class Reader(TorchFunctionMode):
    """Replaces the data of one model's parameters; not for several threads at once.

    Gradients are off inside of a forward, because a backward would read parameters after they were
    restored.

    Parameters
    ----------
    model : torch.nn.Module
    parameters : list of torch.nn.Parameter
        Parameters whose data is replaced.
    weights : StreamedWeights
        Its `theta(p)` returns the data to put into a parameter.
    """

    def __init__(
        self, model: nn.Module, parameters: list[nn.Parameter], weights: StreamedWeights
    ) -> None:
        super().__init__()
        self._theta, self._root = weights.theta, model
        self._own = {id(p): p.data for p in parameters}
        self._calls: list[Call] = []
        self._present: set[int] = set()
        self._seen: list[Call] | None = None
        self._grad = True
        self._enabled = True
        self._undo = ExitStack()
        for module in model.modules():
            if any(id(p) in self._own for p in module.parameters()):
                self._undo.callback(_before(module, _Hook(self, module, Reader._enter)).remove)
                after = _Hook(self, module, Reader._leave)
                self._undo.callback(module.register_forward_hook(after, always_call=True).remove)
        self._elsewhere = WeightsElsewhere(weights, parameters)

    def close(self) -> None:
        """Remove the hooks."""
        self._unwind()
        self._undo.close()
        self._elsewhere.bring_all()

    def rest(self) -> None:
        """Restore the data that was left replaced when an interrupt ended a forward."""
        self._unwind()

    @contextmanager
    def off(self) -> Iterator[None]:
        """Switch the reader off while other code replaces the data of parameters."""
        self._unwind()
        self._enabled = False
        self._elsewhere.bring_all()
        try:
            yield
        finally:
            self._elsewhere.take_out_all()
            self._enabled = True

    @contextmanager
    def watching(self) -> Iterator[list[Call]]:
        """Record the calls and their reads in order; the first entry is the code around them."""
        self._unwind()
        self._seen = seen = []
        self._begin(None)
        try:
            yield seen
        finally:
            self._seen = None
            self._unwind()

    # ---- Calls ----

    def _enter(self, module: nn.Module) -> None:
        if not self._enabled:
            return
        if module is self._root and any(call.module is module for call in self._calls):
            self._unwind()  # An interrupt ended the module's last call without a hook.
            self._seen = None
        self._begin(module)
        for p in torch_private.held_parameters(module).values():
            self._bring(p)

    def _begin(self, module: nn.Module | None) -> None:
        if not self._calls:
            self._grad = torch.is_grad_enabled()
            torch.set_grad_enabled(False)
            self.__enter__()
        self._calls.append(Call(module, self._calls[-1] if self._calls else None))
        if self._seen is not None:
            self._seen.append(self._calls[-1])

    def _leave(self, module: nn.Module) -> None:
        if self._calls and self._calls[-1].module is module:
            self._end()

    def _end(self) -> None:
        with torch_private.asking_nobody():
            for p in self._calls.pop().reads:
                p.data = self._own[id(p)]
                self._elsewhere.take_out([p])
                self._present.discard(id(p))
            _forget_casts()
        if not self._calls:
            torch.set_grad_enabled(self._grad)
            if _get_current_function_mode() is self:
                self.__exit__(None, None, None)

    def _unwind(self) -> None:
        while self._calls:
            self._end()

    # ---- Reads ----

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        """Run one of torch's functions, after putting theta into the parameters it reads."""
        if not is_no_read(func):
            for leaf in tree_leaves((args, kwargs)):
                self._bring(leaf)
        return func(*args, **(kwargs or {}))

    def _bring(self, p: Any) -> None:
        if id(p) not in self._own or id(p) in self._present or not self._calls:
            return
        with torch_private.asking_nobody(), outside_inference():
            theta = self._theta(p)
            self._calls[-1].reads.append(p)
            self._present.add(id(p))
            self._elsewhere.bring([p])
            p.data = theta
            _forget_casts()


class _Hook(NothingWhenCopied):
    """Holds reader and module weakly; a copy of the module has a hook that does nothing."""

    __slots__ = ("_act", "_module", "_reader")

    def __init__(
        self, reader: Reader, module: nn.Module, act: Callable[[Reader, nn.Module], None]
    ) -> None:
        self._reader, self._module, self._act = weakref.ref(reader), weakref.ref(module), act

    @torch.compiler.disable  # A graph would hold what parameters were before they are exchanged.
    def __call__(self, called: nn.Module, *_: Any) -> None:
        reader = self._reader()
        if reader is not None and called is self._module():
            self._act(reader, called)


def _forget_casts() -> None:
    """Clear autocast's cache, which is keyed by parameter and not by its data."""
    if any(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")):
        torch.clear_autocast_cache()


def _before(module: nn.Module, hook: _Hook) -> torch.utils.hooks.RemovableHandle:
    return module.register_forward_pre_hook(hook, prepend=True)
