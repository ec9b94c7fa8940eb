"""Leaves the caller's inference mode while tensors are made that are kept for later."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def outside_inference() -> Iterator[None]:
    """Leave `torch.inference_mode()` in the block, so that later calls can use its tensors."""
    if not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False), torch.no_grad():  # The former alone would record gradients.
        yield


def usable_later(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method so that it runs outside of inference mode."""

    @functools.wraps(method)
    def run(*args: Any, **kwargs: Any) -> Any:
        with outside_inference():
            return method(*args, **kwargs)

    return run
