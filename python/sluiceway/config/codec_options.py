"""The options of a codec, of every engine whose gradients can cross the link compressed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from sluiceway.config.fields import Count, Positive
from sluiceway.config.options import Options, option

Ratio = Annotated[Positive, Field(le=1)]


def ratio_option(default: float | str, more: str = "") -> Any:
    """Declare f; engines that do something else with the core have another default."""
    return option(
        default,
        f"f in (0, 1]: cores are round(f m) x round(f n).{more}",
        to=["weight"],
        in_state=True,
    )


def _listed(names: Any) -> Any:
    """Names in a set or another collection as a list."""
    return list(names) if isinstance(names, Collection) and not isinstance(names, str) else names


class CodecOptions(Options):
    """How gradients are compressed, and which."""

    codec: str = option("identity", "Which codec; identity sends gradients whole.", to=["weight"])
    ratio: Ratio = ratio_option(0.5)
    d: Count | None = option(
        None,
        "Square d x d cores instead, for sparse families.",
        to=["weight"],
        in_state=True,
    )
    nnz: Count = option(4, "Nonzeros a row of sparse projectors.", to=["weight"], in_state=True)
    block: Count = option(32, "Rows in a group of block projectors.", to=["weight"], in_state=True)
    wire: Literal["bf16", "fp32", "int8"] = option(
        "bf16", "The format in which cores cross the link.", to=["weight"]
    )
    target: Annotated[str | Sequence[str], BeforeValidator(_listed)] = option(
        "all-linear", '"all-linear", a regular expression or names of parameters.'
    )
