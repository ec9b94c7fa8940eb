"""Gives constructors that take `**options` a full signature and help."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from typing import TypeVar

from sluiceway.config.option_docs import documentation, parameter
from sluiceway.config.options import Options

Class = TypeVar("Class", bound=type)
PLACE = "{options}"


def documents_options(options: type[Options]) -> Callable[[Class], Class]:
    """Give a class whose constructor ends in `**options` the signature and help of its options.

    The help replaces `{options}` in the docstring, and leaves out the constructor's own parameters.
    Options with an alias, which only our own engines pass, are in neither.
    """

    def dress(cls: Class) -> Class:
        own = list(inspect.signature(cls.__init__).parameters.values())[:-1]
        named = {one.name for one in own}
        rest = [(name, f) for name, f in options.model_fields.items() if name not in named]
        public = [parameter(name, field) for name, field in rest if not field.alias]
        signature = inspect.Signature([*own, *public])
        cls.__init__.__signature__ = signature
        if cls.__doc__:  # python -OO leaves docstrings out.
            text = textwrap.indent(documentation(rest), " " * 4)
            cls.__doc__ = cls.__doc__.replace(" " * 4 + PLACE, text)
        return cls

    return dress
