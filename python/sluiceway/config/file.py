"""Reading a run's YAML file: every complaint names the file, the line and the nearest known key."""

from __future__ import annotations

import difflib
import errno
import os
import typing
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from sluiceway.config.schema import (
    ENGINES,
    ENGINES_TO_COME,
    Config,
    NativeSection,
    SubspaceSection,
    check_available,
)
from sluiceway.errors import InvalidArgument, IoError, Unavailable

_BY_KIND: dict[str, type[BaseModel]] = {"subspace": SubspaceSection, "native": NativeSection}
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load_config(path: str | os.PathLike, overrides: list[str] | None = None) -> Config:
    """Read `path`, apply overrides such as "train.lr=1e-3", and check the whole.

    Raises
    ------
    sluiceway.errors.IoError
        The file cannot be read.
    sluiceway.errors.InvalidArgument
        It is not YAML, or says something the schema does not allow; the text has the line.
    sluiceway.errors.Unavailable
        It asks for something that this version does not have; the text names what it has.
    """
    tree, lines = _read(Path(path))
    where = {keys: f"{path}:{line}" for keys, line in lines.items()}
    for override in overrides or []:
        keys = _apply(tree, override)
        where = {known: at for known, at in where.items() if known[: len(keys)] != keys}
        where[keys] = f"--set {'.'.join(keys)}"
    return check_config(tree, where, str(path))


def check_config(tree: dict, where: dict[tuple, str] | None = None, name: str = "config") -> Config:
    """Turn plain dicts into a Config; `where` maps key paths to the place an error names."""
    where = where or {}
    if isinstance(tree.get("engine"), dict):
        tree = tree | {"engine": {"kind": "subspace"} | tree["engine"]}
    _refuse_engines_to_come(tree, where, name)
    try:
        config = Config.model_validate(tree)
    except ValidationError as error:
        found = error.errors(include_url=False)
        found.sort(key=lambda one: one["type"] != "extra_forbidden")  # A misspelling explains more.
        raise InvalidArgument(_explain(found[0], where, name)) from None
    check_available(config)
    return config


def _read(path: Path) -> tuple[dict, dict[tuple, int]]:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidArgument(
            f"{path}: byte {error.start} is not UTF-8, expected a YAML text file"
        ) from None
    except OSError as error:
        hint = ": is a folder, expected a YAML file" if error.errno == errno.EISDIR else ""
        raise IoError(
            f"{path}: cannot read the config{hint or ', ' + str(error.strerror)}",
            error.errno,
            str(path),
        ) from None
    try:
        node = yaml.compose(text, Loader=_Loader)
        tree = yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        at = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise InvalidArgument(f"{path}{at}: is not YAML, {problem}") from None
    if not isinstance(tree, dict):
        raise InvalidArgument(
            f"{path}: holds {type(tree).__name__ if tree is not None else 'nothing'}, expected "
            "keys such as model, data, train, engine"
        )
    lines: dict[tuple, int] = {}
    _collect_lines(node, (), lines, path)
    return tree, lines


def _collect_lines(node: yaml.Node, keys: tuple, lines: dict, path: Path) -> None:
    if not isinstance(node, yaml.MappingNode) or len(keys) > 8:
        return
    for key, value in node.value:
        child = (*keys, str(key.value))
        line = key.start_mark.line + 1
        if child in lines:
            raise InvalidArgument(
                f"{path}:{line}: {'.'.join(child)} is given twice, first in line {lines[child]}"
            )
        lines[child] = line
        _collect_lines(value, child, lines, path)


def _apply(tree: dict, override: str) -> tuple[str, ...]:
    name, equals, text = override.partition("=")
    keys = tuple(name.strip().split("."))
    if not equals or not all(keys):
        raise InvalidArgument(f"--set {override}: expected a.b=value, such as train.lr=1e-3")
    try:
        value = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError:
        raise InvalidArgument(f"--set {override}: {text!r} is not a YAML value") from None
    place = tree
    for depth, key in enumerate(keys[:-1]):
        if place.get(key) is None:
            place[key] = {}
        place = place[key]
        if not isinstance(place, dict):
            above = ".".join(keys[: depth + 1])
            raise InvalidArgument(f"--set {override}: {above} is a value, it has no keys")
    place[keys[-1]] = value
    return keys


def _refuse_engines_to_come(tree: dict, where: dict, name: str) -> None:
    engine = tree.get("engine")
    if isinstance(engine, dict) and engine.get("kind") in ENGINES_TO_COME:
        at = _place(("engine", "kind"), where, name)
        raise Unavailable(
            f"{at}: engine.kind {engine['kind']} is not in this version, it has: "
            + ", ".join(ENGINES)
        )


def _place(keys: tuple, where: dict, name: str) -> str:
    for length in range(len(keys), 0, -1):
        if keys[:length] in where:
            return where[keys[:length]]
    return name


def _keys_of(error: dict) -> tuple[str, ...]:
    """Pydantic's location without the parts that are no keys of the file: tags, types, indices."""
    keys: list[str] = []
    schema: type[BaseModel] | None = Config
    for depth, part in enumerate(error["loc"]):
        if keys == ["engine"] and part in _BY_KIND:
            schema = _BY_KIND[part]
        elif schema is not None and part in schema.model_fields:
            keys.append(part)
            schema = _section_of(schema, part)
        elif error["type"] == "extra_forbidden" and depth == len(error["loc"]) - 1:
            keys.append(str(part))
        else:
            break
    return tuple(keys)


def _explain(error: dict, where: dict, name: str) -> str:
    keys = _keys_of(error)
    dotted = ".".join(keys)
    at = _place(keys, where, name)
    kind, value = error["type"], error.get("input")
    if kind == "extra_forbidden":
        return f"{at}: unknown key {dotted}{_nearest(keys, error['loc'])}"
    if kind == "missing" and isinstance(error["loc"][-1], int):
        return f"{at}: {dotted} is {list(value)}, expected one value more"
    if kind == "missing":
        return f"{at}: {dotted} is missing, expected a value"
    if kind.startswith("union_tag"):
        given = value.get("kind") if isinstance(value, dict) else value
        return f"{at}: engine.kind is {given!r}, expected one of: {', '.join(ENGINES)}"
    if kind in ("model_type", "model_attributes_type"):
        return f"{at}: {dotted} is {value!r}, expected keys of its own"
    if kind == "value_error":
        text = str(error["ctx"]["error"])
        return f"{at}: {dotted} {text}" if dotted else f"{name}: {text}"
    if kind == "too_short":
        return f"{at}: {dotted} is {value!r}, expected at least {error['ctx']['min_length']} value"
    if kind == "literal_error":
        return f"{at}: {dotted} is {value!r}, expected {error['ctx']['expected']}"
    return f"{at}: {dotted} is {value!r}, {_lower(error['msg'])}"


def _lower(message: str) -> str:
    message = message.replace("Input should be", "expected").partition(", unable")[0]
    return message[:1].lower() + message[1:]


def _nearest(keys: tuple[str, ...], loc: tuple) -> str:
    schema: type[BaseModel] | None = Config
    for part in loc[:-1]:
        schema = _BY_KIND.get(part) or _section_of(schema, part)
    known = sorted(schema.model_fields) if schema else []
    close = difflib.get_close_matches(keys[-1], known, n=1, cutoff=0.5)
    if close:
        return f", did you mean {'.'.join((*keys[:-1], close[0]))}?"
    elsewhere = [
        name for name in Config.model_fields if name != keys[0] and keys[-1] in _fields_in(name)
    ]
    if elsewhere:
        return f", did you mean {elsewhere[0]}.{keys[-1]}?"
    return f", known here: {', '.join(known)}"


def _fields_in(section: str) -> set[str]:
    schema = SubspaceSection if section == "engine" else _section_of(Config, section)
    return set(schema.model_fields) if schema else set()


def _section_of(schema: type[BaseModel] | None, key: str) -> type[BaseModel] | None:
    field = schema.model_fields.get(key) if schema else None
    candidates = [field.annotation, *typing.get_args(field.annotation)] if field else []
    for candidate in candidates:
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def flattened(tree: dict[str, Any], above: str = "") -> dict[str, Any]:
    """A tree of sections with its keys written `a.b.c`; an empty section is a value."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            flat |= flattened(value, f"{above}{key}.")
        else:
            flat[f"{above}{key}"] = value
    return flat
