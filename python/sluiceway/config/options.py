"""Options: sections of a config from which Python classes also get arguments and help.

An option is declared once, as a field: its type is the check, its default holds everywhere, and its
description is the documentation. Configs, constructors of optimizers, plans, saved states and the
compiled engine use the same names.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import FrozenInstanceError
from typing import Any, Literal, Self, get_args

from pydantic import BaseModel, Field, ValidationError
from pydantic.fields import FieldInfo

from sluiceway.config.fields import Section
from sluiceway.config.option_docs import documentation, parameter
from sluiceway.errors import InvalidArgument

Receiver = Literal["engine", "weight"]


def option(
    default: Any,
    description: str,
    *,
    alias: str | None = None,
    to: Iterable[Receiver] = (),
    in_state: bool = False,
) -> Any:
    """Declare one option.

    Parameters
    ----------
    default : object
        The default value; `...` if the caller has to give a value.
    description : str
        Documentation of the option; empty for an option that is not documented.
    alias : str, optional
        The name in a constructor, if it begins with an underscore.
    to : iterable of {"engine", "weight"}
        Parts of the compiled module that get the option by this name: the engine, or each weight.
    in_state : bool
        A saved state depends on the option, and loads only if the option has the same value.
    """
    marks = {"to": tuple(to), "in_state": in_state}
    return Field(default, description=description, alias=alias, json_schema_extra=marks)


class _CalledAsAFunction(type(BaseModel)):
    """Classes whose call takes positional arguments too, and raises InvalidArgument."""

    def __call__(cls, *positional: Any, **named: Any) -> Any:
        refuse_unknown(cls.__name__, named, cls.__signature__.parameters)
        return cls.checked(cls.__name__, cls.__signature__.bind(*positional, **named).arguments)


class Options(Section, metaclass=_CalledAsAFunction):
    """Base of all options: frozen, strict for Python callers, lenient for files."""

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        fields = cls.model_fields
        order = cls.__match_args__ = cls.__dict__.get("__match_args__", tuple(fields))
        last = [name for name in fields if name not in order]
        cls.__signature__ = inspect.Signature(
            parameter(name, fields[name]).replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD)
            for name in (*order, *last)
        )
        cls.__doc__ = "\n".join(
            (cls.__doc__ or "", "", "Parameters", "----------", documentation(fields.items()))
        )

    def __str__(self) -> str:
        return repr(self)

    @classmethod
    def checked(cls, caller: str, named: dict[str, Any]) -> Self:
        """Make the options for `caller`, which errors name.

        Raises
        ------
        sluiceway.errors.InvalidArgument
            An option does not take its value.
        """
        for name, value in named.items():
            if isinstance(value, Mapping):  # A file writes them so, and is checked less strictly.
                raise InvalidArgument(
                    f"{caller}: {name} is {value!r}, expected {cls._class_of(name)}"
                )
        try:
            return cls.model_validate({k: plain(v) for k, v in named.items()}, strict=True)
        except ValidationError as error:
            raise InvalidArgument(f"{caller}: {_explained(error)}") from None

    @classmethod
    def _class_of(cls, name: str) -> str:
        """Name of the class that a user makes for an option that is a group of options."""
        for kind in get_args(cls.model_fields[name].annotation) if name in cls.model_fields else ():
            if isinstance(kind, type) and issubclass(kind, Options):
                return f"a sluiceway.{kind.__name__.removesuffix('Section')}"
        return "no mapping"

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__private_attributes__:
            super().__setattr__(name, value)
            return
        raise FrozenInstanceError(f"cannot assign to {name!r} of a {type(self).__name__}")

    @classmethod
    def names(cls, *, to: Receiver | None = None, in_state: bool = False) -> list[str]:
        """Names of the options declared with `to`, or of those on which a saved state depends."""
        return [
            name
            for name, field in cls.model_fields.items()
            if to in _marks(field)["to"] or (in_state and _marks(field)["in_state"])
        ]

    @classmethod
    def keywords(cls) -> list[str]:
        """Names by which a constructor takes the options."""
        return [field.alias or name for name, field in cls.model_fields.items()]

    def keywords_for(self, to: Receiver) -> dict[str, Any]:
        """Return the keywords of the compiled module for an engine or a weight."""
        return {name: getattr(self, name) for name in self.names(to=to)}


def _marks(field: FieldInfo) -> dict[str, Any]:
    return field.json_schema_extra or {"to": (), "in_state": False}


def refuse_unknown(caller: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise a TypeError, as Python does, for an unknown keyword; name the nearest one."""
    known = list(known)
    for name in given:
        if name not in known:
            public = [one for one in known if not one.startswith("_")]
            close = difflib.get_close_matches(name, public, n=1)
            hint = f", did you mean {close[0]!r}?" if close else ""
            raise TypeError(f"{caller}() got an unexpected keyword argument {name!r}{hint}")


def plain(value: Any) -> Any:
    """Turn a number of numpy or torch into Python's; return anything else as it is."""
    return value.item() if getattr(value, "ndim", None) == 0 else value


# Pydantic's own words round a large bound.
_BOUNDS = {"gt": "more than", "ge": "at least", "lt": "less than", "le": "at most"}


def _explained(error: ValidationError) -> str:
    """Name the first wrong option, its value and the values that it accepts."""
    found = error.errors(include_url=False)
    first = found[0]
    if not first["loc"]:
        return str(first["ctx"]["error"])
    same = [one for one in found if one["loc"][0] == first["loc"][0]]
    for one in same:
        if one["type"] == "value_error":
            return f"{one['loc'][0]} {one['ctx']['error']}"
    expected = " or ".join(dict.fromkeys(_expectation(one) for one in same))
    return f"{first['loc'][0]} is {first['input']!r}, expected {expected}"


def _expectation(error: dict[str, Any]) -> str:
    if error["type"] == "literal_error":
        return error["ctx"]["expected"].replace("'", "")
    for bound, words in _BOUNDS.items():
        if bound in error.get("ctx", {}):
            return f"{words} {error['ctx'][bound]}"
    if "class_name" in error.get("ctx", {}):
        return f"a sluiceway.{error['ctx']['class_name'].removesuffix('Section')}"
    return error["msg"].removeprefix("Input should be ").partition(", unable")[0]
