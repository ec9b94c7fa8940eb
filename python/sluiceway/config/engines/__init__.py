"""Finds the kinds of engine, and the section of the config for each.

A built-in kind has a file here, `<kind>.py` with `<Kind>Section`, and one in `sluiceway.engines`.
Other kinds come from installed distributions, each through an entry point of the group
`sluiceway.engines`: the entry point has the name of the kind, and loads a subclass of Engine, which
names its section.
"""

from __future__ import annotations

import difflib
import inspect
import pkgutil
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from sluiceway.config.engine_section import EngineSection
from sluiceway.errors import InvalidArgument, first_line

DEFAULT_KIND = "subspace"
_GROUP = "sluiceway.engines"


def known_kinds() -> list[str]:
    """Names of built-in kinds, the default first, then of kinds from other distributions."""
    built_in = sorted(_built_in(), key=lambda kind: (kind != DEFAULT_KIND, kind))
    return [*built_in, *sorted({point.name for point in _registered()} - {*built_in})]


def is_built_in(kind: str) -> bool:
    """True if the files of the kind are in this package."""
    return kind in _built_in()


def section_of(kind: Any) -> type[EngineSection]:
    """Return the section of a kind.

    Raises
    ------
    sluiceway.errors.InvalidArgument
        No kind has that name, two have it, or its engine cannot be loaded.
    """
    if kind not in known_kinds():
        close = difflib.get_close_matches(str(kind), known_kinds(), n=1)
        raise InvalidArgument(
            f"engine.kind is {kind!r}, expected one of: {', '.join(known_kinds())}"
            + (f"; did you mean {close[0]}?" if close else "")
        )
    if _the_only_one(kind) is not None:
        return load_registered(kind).section
    return getattr(import_module(f"{__name__}.{kind}"), f"{kind.capitalize()}Section")


def load_registered(kind: str) -> Any:
    """Load the engine of another distribution, and check that its section fits.

    Raises
    ------
    sluiceway.errors.InvalidArgument
        The engine cannot be loaded, or is not of that kind.
    """
    point = _the_only_one(kind)
    came = f"engine.kind {kind} comes from {_origin(point)} ({point.value})"
    try:
        engine = point.load()
    except (Exception, SystemExit) as error:  # Whatever a foreign module does while it is imported.
        raise InvalidArgument(
            f"{came}, which cannot be loaded, {type(error).__name__}: {first_line(error)}; mend or "
            "uninstall it"
        ) from error
    section = getattr(engine, "section", None)
    if not (inspect.isclass(section) and issubclass(section, EngineSection)):
        raise InvalidArgument(f"{came}, whose section is {section!r}, expected an EngineSection")
    if not inspect.isclass(engine):
        raise InvalidArgument(f"{came}, which is {engine!r}, expected a class")
    field = section.model_fields["kind"]
    default = "none" if field.is_required() else repr(field.default)
    if default != repr(kind):
        raise InvalidArgument(
            f"{came}, whose section has kind {default} by default, expected {kind!r}"
        )
    return engine


@cache
def _built_in() -> frozenset[str]:
    return frozenset(module.name for module in pkgutil.iter_modules(__path__))


@cache
def _registered() -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=_GROUP))


def _the_only_one(kind: str) -> EntryPoint | None:
    """Return the entry point of a kind, or None if it is built in."""
    points = [point for point in _registered() if point.name == kind]
    origins = [*(["sluiceway itself"] if is_built_in(kind) else []), *map(_origin, points)]
    if len(origins) > 1:
        raise InvalidArgument(
            f"engine.kind {kind} is registered by {' and by '.join(origins)}, expected one; "
            f"uninstall {origins[-1]}"
        )
    return points[0] if points else None


def _origin(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else "an unnamed distribution"
