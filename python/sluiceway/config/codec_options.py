"""Options of a codec, for every engine whose gradients can cross the link compressed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from sluiceway.config.fields import Count, Positive
from sluiceway.config.options import Options, option

Ratio = Annotated[Positive, Field(le=1)]


def ratio_option(default: float | str, more: str = "") -> Any:
    """Declare the ratio f; its default depends on the engine."""
    return option(
        default,
        f"A number f in (0, 1]: cores are round(f m) x round(f n).{more}",
        to=["weight"],
        in_state=True,
    )


def _listed(names: Any) -> Any:
    """Turn a set or another collection of names into a list."""
    return list(names) if isinstance(names, Collection) and not isinstance(names, str) else names


class CodecOptions(Options):
    """Options for the compression of gradients, and for the choice of weights to compress."""

    codec: str = option("identity", "The codec; identity sends gradients whole.", to=["weight"])
    ratio: Ratio = ratio_option(0.5)
    d: Count | None = option(
        None,
        "Size d of square d x d cores, in place of `ratio`, for sparse families.",
        to=["weight"],
        in_state=True,
    )
    nnz: Count = option(4, "Nonzeros a row of sparse projectors.", to=["weight"], in_state=True)
    block: Count = option(32, "Rows in a group of block projectors.", to=["weight"], in_state=True)
    wire: Literal["bf16", "fp32", "int8"] = option(
        "bf16", "The format in which cores cross the link.", to=["weight"]
    )
    target: Annotated[str | Sequence[str], BeforeValidator(_listed)] = option(
        "all-linear",
        'Weights to compress: "all-linear", a regular expression or names of parameters.',
    )
