"""Types of config values: sizes, counts, names, and the base class of all sections."""

from __future__ import annotations

import os
import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from sluiceway.base.sizes import parse_bytes
from sluiceway.errors import InvalidArgument


def _bytes(value: Any) -> Any:
    try:
        return value if value is None else parse_bytes(value)
    except InvalidArgument as error:
        raise ValueError(str(error)) from None


def off_is_null(value: Any) -> Any:
    # YAML 1.1 reads a bare `off` as false.
    return None if value is False or value == "off" else value


def one_is_a_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _numbers_are_not_switches(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError(f"is {str(value).lower()}, expected a number")
    return value


def in_home(path: str) -> str:
    """Put the home folder in the place of a leading ~, which a shell leaves in `--out=~/run`."""
    if not path:
        raise ValueError("is the empty text, expected a path; . is the current folder")
    if not re.match(r"~(/|$)", path):
        return path
    home = os.path.expanduser("~")
    if home == "~":
        raise ValueError(f"is {path}, and this user has no home folder; set HOME, or write it out")
    return home + path[1:]


Size = Annotated[int, BeforeValidator(_bytes)]
HomePath = Annotated[str, AfterValidator(in_home)]
HomePaths = Annotated[list[HomePath], BeforeValidator(one_is_a_list)]
Int = Annotated[int, BeforeValidator(_numbers_are_not_switches)]
Count = Annotated[Int, Field(ge=1, lt=2**63)]
SmallCount = Annotated[Int, Field(ge=1, lt=2**31)]
Natural = Annotated[Int, Field(ge=0, lt=2**63)]
Float = Annotated[float, BeforeValidator(_numbers_are_not_switches)]
Positive = Annotated[Float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[Float, Field(ge=0, allow_inf_nan=False)]
Beta = Annotated[Float, Field(ge=0, lt=1)]


class Section(BaseModel):
    """A mapping in the file; frozen, and refuses unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())
