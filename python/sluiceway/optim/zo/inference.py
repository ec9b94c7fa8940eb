"""Tensors that are kept are made outside of inference mode, whatever the caller is in."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def outside_inference() -> Iterator[None]:
    """Make tensors that a later call outside of the caller's `torch.inference_mode()` may use."""
    if not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False), torch.no_grad():  # The former alone would record gradients.
        yield


def usable_later(method: Callable[..., Any]) -> Callable[..., Any]:
    """The same outside of inference mode."""

    @functools.wraps(method)
    def run(*args: Any, **kwargs: Any) -> Any:
        with outside_inference():
            return method(*args, **kwargs)

    return run
