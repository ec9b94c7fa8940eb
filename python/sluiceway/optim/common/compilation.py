"""Notices torch.compile in this process: compiled graphs read weights without asking.

A compiled graph takes parameters as they are, may have been made before there was a hook to put in
it, and keeps what it was made with. So nothing is in flight while one may run: a process that has
compiled anything applies each update in `step()`.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from typing import Any

import torch

from sluiceway.optim.common import torch_private


class CompilationWatch:
    """Notices the first compilation, which may have been before or comes at any time.

    Parameters
    ----------
    noticed : callable
        A method, held weakly. Called once, before anything is traced; at once if it has been.
    """

    def __init__(self, noticed: Callable[[], None]) -> None:
        self.active = torch_private.has_compiled()
        self._noticed = weakref.WeakMethod(noticed)
        if self.active:
            noticed()
        else:
            torch_private.before_compiling(self._begins)

    def check(self) -> bool:
        """Return whether something was compiled, or may have been."""
        if not self.active and self._begins not in torch_private.called_before_compiling():
            self._begins()  # torch._dynamo.reset() forgot us: nobody would tell.
        return self.active

    def stop(self) -> None:
        """Be told no more; idempotent."""
        if self._begins in (calls := torch_private.called_before_compiling()):
            calls.remove(self._begins)

    def _begins(self, *_: Any) -> None:
        noticed = self._noticed()
        if not self.active and noticed is not None:
            self.active = True
            noticed()


def uncompiled() -> contextlib.AbstractContextManager:
    """Compiled modules and functions run as they are written.

    Hooks inside of what is compiled are then called, and may wait for other threads: Dynamo's
    frames of one thread do not expect another one to go on in the same code meanwhile, and the
    process ends there.
    """
    if not torch_private.dynamo_is_loaded():  # Nothing is compiled.
        return contextlib.nullcontext()
    return torch.compiler.set_stance("force_eager")
