"""Gives constructors that take `**options` a full signature and help."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from typing import TypeVar

from sluiceway.config.option_docs import WIDTH, documentation, parameter
from sluiceway.config.options import Options

Class = TypeVar("Class", bound=type)
PLACE = "{options}"


def documents_options(options: type[Options], *first: str) -> Callable[[Class], Class]:
    """Give a class whose constructor ends in `**options` the signature and help of its options.

    The help replaces `{options}` in the docstring, and leaves out the constructor's own parameters.
    Options with an alias, which only our own engines pass, are in neither.

    Parameters
    ----------
    options : type
        The class of all options.
    *first : str
        Names of the options that signature and help describe; both only name the others.
    """

    def dress(cls: Class) -> Class:
        *own, rest = inspect.signature(cls.__init__).parameters.values()
        fields = options.model_fields
        shown = [(name, fields[name]) for name in first]
        named = {*first, *(one.name for one in own)}
        further = [n for n, field in fields.items() if n not in named and not field.alias]
        public = [parameter(name, field) for name, field in shown]
        cls.__init__.__signature__ = inspect.Signature([*own, *public, rest])
        if cls.__doc__:  # python -OO leaves docstrings out.
            text = f"{documentation(shown)}\n**options\n" + textwrap.fill(
                f"Further options; `help(optimizer.options)` describes all: {', '.join(further)}.",
                WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 4,
            )  # fmt: skip
            cls.__doc__ = cls.__doc__.replace(" " * 4 + PLACE, textwrap.indent(text, " " * 4))
        return cls

    return dress
