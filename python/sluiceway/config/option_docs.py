"""Writes the documentation of options, as numpydoc writes parameters."""

from __future__ import annotations

import inspect
import textwrap
import types
import typing
from collections.abc import Callable, Iterable
from typing import Any

from pydantic.fields import FieldInfo

WIDTH = 96


def parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    """Return an option as a parameter of a function."""
    return inspect.Parameter(
        field.alias or name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if field.is_required() else field.default,
        annotation=_bare(field.annotation),
    )


def documentation(fields: Iterable[tuple[str, FieldInfo]]) -> str:
    """Lines `name : kind, default value` and a description, for each option that has one."""
    return "\n".join(_entry(name, field) for name, field in fields if field.description)


def shown_type(field: FieldInfo) -> str:
    """Return an option's type in words."""
    return _shown(_bare(field.annotation))


def _entry(name: str, field: FieldInfo) -> str:
    default = "" if field.is_required() else f", default {_quoted(field.default)}"
    text = textwrap.fill(
        field.description, WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 4
    )
    return f"{field.alias or name} : {shown_type(field)}{default}\n{text}"


def _bare(kind: Any) -> Any:
    """Return a type without the checks that are attached to it."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return _bare(args[0])
    if origin in (typing.Union, types.UnionType):
        return typing.Union[tuple(map(_bare, args))]  # noqa: UP007 - of a tuple.
    return kind


def _shown(kind: Any) -> str:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(_shown, args))
    if origin is typing.Literal:
        return f"{{{', '.join(map(_quoted, args))}}}"
    if origin is Callable:
        return "callable"
    if origin is not None:
        return f"{origin.__name__.lower()} of {_shown(_bare(args[0]))}"
    return "None" if kind is type(None) else kind.__name__.removesuffix("Section")


def _quoted(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)
