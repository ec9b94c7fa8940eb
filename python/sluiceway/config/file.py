"""Reads a run's YAML file; every error names the file, the line and the nearest known key."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from sluiceway.config.complaints import Complaints
from sluiceway.config.engine_section import EngineSection
from sluiceway.config.engines import DEFAULT_KIND, section_of
from sluiceway.config.schema import (
    TRAINER_NAMES,
    Config,
    DataSection,
    check_available,
    device_in_full,
)
from sluiceway.config.shape import context_of, shape_of, stored_dtype
from sluiceway.config.shipped import is_shipped_name, shipped, shipped_configs
from sluiceway.errors import InvalidArgument, IoError, first_line

_LENGTHS = {("train", "steps"), ("train", "epochs")}
_STORED = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp32"}
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load_config(path: str | os.PathLike, overrides: list[str] | None = None) -> Config:
    """Read `path`, apply overrides such as "train.lr=1e-3", and check the whole.

    A path below `configs` that is not there is that of a config that comes with the package.

    Raises
    ------
    sluiceway.errors.IoError
        The file cannot be read.
    sluiceway.errors.InvalidArgument
        The file is not YAML, or the schema does not allow a key or value; the text has the line.
    sluiceway.errors.Unavailable
        The file has a value that this version does not support; the text names supported values.
    """
    tree, lines = _read(shipped(path))
    _rename(tree, lines, path)
    where = {keys: f"{path}:{line}" for keys, line in lines.items()}
    if overrides and "device" in tree:  # One of them may set what the short form has not.
        tree["device"] = device_in_full(tree["device"])
    for override in overrides or []:
        keys = _apply(tree, override)
        if keys in _LENGTHS:  # The one that is said last holds.
            for other in _LENGTHS - {keys}:
                tree["train"].pop(other[-1], None)
        where = {known: at for known, at in where.items() if known[: len(keys)] != keys}
        where[keys] = f"--set {'.'.join(keys)}"
    return check_config(tree, where, str(path))


def check_config(tree: dict, where: dict[tuple, str] | None = None, name: str = "config") -> Config:
    """Turn plain dicts into a Config; `where` maps key paths to the places that errors name."""
    complaints = Complaints(where or {}, name, _engine_section(tree, where or {}, name))
    tree = _with_defaults_of_model(tree)
    try:
        config = Config.model_validate(tree)
    except ValidationError as error:
        found = error.errors(include_url=False)
        found.sort(key=lambda one: one["type"] != "extra_forbidden")  # A misspelling explains more.
        raise InvalidArgument(complaints.text(found)) from None
    for key, said in config.engine.misfits(config):
        raise InvalidArgument(f"{complaints.place(tuple(key.split('.')))}: {key} {said}")
    check_available(config)
    return config


def _with_defaults_of_model(tree: dict) -> dict:
    """Return the tree with the model's dtype and context where it lacks them.

    A model that cannot be read changes nothing: whoever opens it says what is wrong.
    """
    model, data = tree.get("model"), tree.get("data")
    if not isinstance(model, dict) or not isinstance(model.get("path"), str | os.PathLike):
        return tree
    has_length = not isinstance(data, dict) or "sequence_length" in data
    if "dtype" in model and has_length:  # As in every config that is resolved.
        return tree
    shape = shape_of(shipped(os.path.expanduser(model["path"])))
    if "dtype" not in model and (dtype := _STORED.get(stored_dtype(shape))):
        tree = {**tree, "model": {**model, "dtype": dtype}}
    context = context_of(shape)
    if context is not None and not has_length:
        length = min(context, DataSection.model_fields["sequence_length"].default)
        tree = {**tree, "data": {**data, "sequence_length": length}}
    return tree


def _read(path: Path) -> tuple[dict, dict[tuple, int]]:
    if path.exists() and not path.is_file() and not path.is_dir():  # A device may never end.
        raise InvalidArgument(f"{path}: is no regular file, expected a YAML file; copy it into one")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidArgument(
            f"{path}: byte {error.start} is not UTF-8, expected a YAML text file"
        ) from None
    except OSError as error:
        if error.errno == errno.EISDIR:
            why = ": is a folder, expected a YAML file"
        elif error.errno == errno.ENOENT and is_shipped_name(path):
            why = f"; there is no such file, and these come along: {', '.join(shipped_configs())}"
        else:
            why = f", {error.strerror}"
        raise IoError(
            f"{path}: cannot read the config{why}",
            error.errno,
            str(path),
        ) from None
    try:
        node = yaml.compose(text, Loader=_Loader)
        tree = yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        at = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or first_line(error)
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


def _rename(tree: dict, lines: dict[tuple, int], path: str | os.PathLike) -> None:
    """Give keys of `train` that have a name of transformers.TrainingArguments our name."""
    train = tree.get("train")
    for theirs, ours in TRAINER_NAMES.items() if isinstance(train, dict) else ():
        if theirs not in train:
            continue
        if ours in train:
            raise InvalidArgument(
                f"{path}:{lines['train', theirs]}: train.{theirs} is another name of "
                f"train.{ours}, which line {lines['train', ours]} has; leave out one of them"
            )
        train[ours] = train.pop(theirs)
        lines["train", ours] = lines.pop(("train", theirs))


def _apply(tree: dict, override: str) -> tuple[str, ...]:
    name, equals, text = override.partition("=")
    keys = tuple(name.strip().split("."))
    if keys[0] == "train":
        keys = ("train", *(TRAINER_NAMES.get(key, key) for key in keys[1:2]), *keys[2:])
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


def _engine_section(tree: dict, where: dict, name: str) -> type[EngineSection]:
    engine = tree.get("engine")
    kind = engine.get("kind", DEFAULT_KIND) if isinstance(engine, dict) else DEFAULT_KIND
    try:
        return section_of(kind)
    except InvalidArgument as error:
        at = Complaints(where, name, EngineSection).place(("engine", "kind"))
        raise InvalidArgument(f"{at}: {error}") from error


def flattened(tree: dict[str, Any], above: str = "") -> dict[str, Any]:
    """Flatten a tree of sections to one dict with keys `a.b.c`; an empty section is a value."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            flat |= flattened(value, f"{above}{key}.")
        else:
            flat[f"{above}{key}"] = value
    return flat
