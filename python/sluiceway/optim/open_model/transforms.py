"""Function transforms (`torch.func`) read what they are given without asking its class.

`grad`, `vjp`, `vmap` and their like wrap each tensor among their arguments in a C++ function, and
compute with what was in its storage then. Here whoever has to know is told before a tensor is
wrapped; for all other tensors nothing is different.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

# Where torch 2.11 looks its wrapping functions up: `test_in_flight.py` fails where one has moved.
_WRAPPERS = (
    ("eager_transforms", "_wrap_for_grad"),
    ("eager_transforms", "_wrap_functional_tensor"),
    ("vmap", "_add_batch_dim"),
)


@functools.cache
def tell_before_wrapping(tell: Callable[[Any], None]) -> None:
    """Let `tell` see each tensor that a transform is about to wrap, from now on.

    Parameters
    ----------
    tell : callable
        Gets the tensor. torch.compile traces it, too.
    """
    import torch._functorch.eager_transforms
    import torch._functorch.vmap

    for module_name, name in _WRAPPERS:
        module = getattr(torch._functorch, module_name)
        setattr(module, name, _telling(tell, getattr(module, name)))


def _telling(tell: Callable[[Any], None], wrap: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(wrap)
    def telling(tensor: torch.Tensor, *more: int) -> torch.Tensor:
        tell(tensor)
        return wrap(tensor, *more)

    return telling
