"""Notices torch.compile in this process, as compiled graphs read weights without waiting.

A compiled graph reads parameters without waiting, and does not contain hooks that were registered
after it was compiled. So no update may be in flight while a graph can run: in a process that has
compiled anything, `step()` returns only when each update is applied.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from typing import Any

import torch

from sluiceway.optim.common import torch_private


class CompilationWatch:
    """Notices the first compilation of this process, past or future.

    `noticed`, a method that is held weakly, is called once: at once if the process has compiled
    already, otherwise before the first tracing.
    """

    def __init__(self, noticed: Callable[[], None]) -> None:
        self.active = torch_private.has_compiled()
        self._noticed = weakref.WeakMethod(noticed)
        if self.active:
            noticed()
        else:
            torch_private.before_compiling(self._begins)

    def check(self) -> bool:
        """Return whether this process has compiled anything, or may have."""
        if not self.active and self._begins not in torch_private.called_before_compiling():
            self._begins()  # torch._dynamo.reset() has removed our callback.
        return self.active

    def stop(self) -> None:
        """Remove the callback; idempotent."""
        if self._begins in (calls := torch_private.called_before_compiling()):
            calls.remove(self._begins)

    def _begins(self, *_: Any) -> None:
        noticed = self._noticed()
        if not self.active and noticed is not None:
            self.active = True
            noticed()


def uncompiled() -> contextlib.AbstractContextManager:
    """Run compiled modules and functions eagerly inside the block.

    Hooks inside compiled code are then called, and may wait for other threads. Compiled frames must
    not wait: Dynamo does not expect another thread to run the same code meanwhile, and the process
    would crash.
    """
    if not torch_private.dynamo_is_loaded():  # Nothing is compiled.
        return contextlib.nullcontext()
    return torch.compiler.set_stance("force_eager")
