"""Whether torch.compile is at work in this process: what it makes reads weights without asking.

A compiled graph takes parameters as they are, may have been made before there was a hook to put in
it, and keeps what it was made with. So nothing is in flight while one may run: a process that has
compiled anything applies each update in `step()`.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch


class CompilationWatch:
    """Notices the first compilation, which may have been before or comes at any time.

    Parameters
    ----------
    noticed : callable
        A method, held weakly. Called once, before anything is traced; at once if it has been.
    """

    def __init__(self, noticed: Callable[[], None]) -> None:
        import torch._dynamo  # Half a second that every torch optimizer pays when it is made.

        self.active = torch._dynamo.convert_frame.FRAME_COUNTER > 0
        self._noticed = weakref.WeakMethod(noticed)
        if self.active:
            noticed()
        else:
            torch._dynamo.on_compile_start(self._begins)

    def check(self) -> bool:
        """Whether something was compiled, or may have been."""
        if not self.active and self._begins not in _callbacks():
            self._begins()  # torch._dynamo.reset() forgot us: nobody would tell.
        return self.active

    def stop(self) -> None:
        """Be told no more; idempotent."""
        if self._begins in _callbacks():
            _callbacks().remove(self._begins)

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
    if "torch._dynamo" not in sys.modules:  # Nothing is compiled.
        return contextlib.nullcontext()
    return torch.compiler.set_stance("force_eager")


def _callbacks() -> list[Callable[..., None]]:
    return torch._dynamo.callback_handler.start_callbacks
