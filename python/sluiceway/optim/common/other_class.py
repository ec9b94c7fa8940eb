"""Modules that have a class of ours for a while, in place of their own.

The class has the name of the original one. Parameters, keys of `state_dict()` and `isinstance` stay
the same, and a copy or a pickle has the original class.
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import nn


class OtherClass(nn.Module):
    """Base class that such a module's class has before the original one."""

    sluiceway_original: ClassVar[type[nn.Module]]  # A name that no module uses itself.

    def __reduce_ex__(self, _protocol: Any) -> Any:
        # Protocol 0, as pickle allows a class other than the object's in no later protocol.
        make, arguments, *rest = super().__reduce_ex__(0)
        as_before = (self.sluiceway_original if one is type(self) else one for one in arguments)
        return make, tuple(as_before), *rest


def take_class(module: nn.Module, other: type[OtherClass], **members: Any) -> None:
    """Give a module a class of its own that has `other` and its original class as bases."""
    kind = type(module)
    names = {
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "sluiceway_original": kind,
    }
    module.__class__ = type(kind.__name__, (other, kind), {**names, **members})


def give_class_back(module: nn.Module, other: type[OtherClass]) -> None:
    """Undo `take_class`, unless other code has changed the module's class since."""
    if other in type(module).__bases__:
        module.__class__ = module.sluiceway_original
