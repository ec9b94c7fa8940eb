"""Error texts for configs that the schema refuses: place, value and the nearest known key."""

from __future__ import annotations

import difflib
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from sluiceway.config.schema import TRAINER_NAMES, Config

Keys = tuple[str, ...]

_EXPECTED = "expected "


@dataclass(frozen=True)
class Complaints:
    """Turns errors of pydantic into one line.

    Parameters
    ----------
    where : dict
        Maps key paths to the place that an error names.
    name : str
        The place that an error names for any other key.
    engine : type
        The section of the config's kind of engine.
    """

    where: dict[Keys, str]
    name: str
    engine: type[BaseModel]

    def place(self, keys: Keys) -> str:
        """Place of a key, or of the nearest section above it."""
        for length in range(len(keys), 0, -1):
            if keys[:length] in self.where:
                return self.where[keys[:length]]
        return self.name

    def text(self, found: Sequence[dict[str, Any]]) -> str:
        """One line about the first error, with all values that its key may have."""
        error = found[0]
        keys = self._keys_of(error)
        dotted = ".".join(keys)
        at = self.place(keys)
        kind, value = error["type"], error.get("input")
        if kind == "extra_forbidden":
            return f"{at}: unknown key {dotted}{self._nearest(keys, error['loc'])}"
        if kind == "missing" and isinstance(error["loc"][-1], int):
            return f"{at}: {dotted} is {list(value)}, expected one value more"
        if kind == "missing":
            return f"{at}: {dotted} is missing, expected a value"
        if kind in ("model_type", "model_attributes_type"):
            return f"{at}: {dotted} is {value!r}, expected keys of its own"
        if kind == "value_error":
            text = str(error["ctx"]["error"])
            return f"{at}: {dotted} {text}" if dotted else f"{self.name}: {text}"
        if kind == "too_short":
            least = error["ctx"]["min_length"]
            return f"{at}: {dotted} is {value!r}, expected at least {least} value"
        said = dict.fromkeys(_expectation(one) for one in found if self._keys_of(one) == keys)
        if not all(one.startswith(_EXPECTED) for one in said):
            return f"{at}: {dotted} is {value!r}, {next(iter(said))}"
        could_be = " or ".join(one.removeprefix(_EXPECTED) for one in said)
        return f"{at}: {dotted} is {value!r}, {_EXPECTED}{could_be}"

    def _keys_of(self, error: dict[str, Any]) -> Keys:
        """Location of an error, without types and indices, which are not keys of the file."""
        keys: list[str] = []
        schema: type[BaseModel] | None = Config
        for depth, part in enumerate(error["loc"]):
            if schema is not None and part in schema.model_fields:
                keys.append(part)
                schema = self._section(schema, part)
            elif error["type"] == "extra_forbidden" and depth == len(error["loc"]) - 1:
                keys.append(str(part))
            else:
                break
        return tuple(keys)

    def _nearest(self, keys: Keys, loc: tuple) -> str:
        schema: type[BaseModel] | None = Config
        for part in loc[:-1]:
            schema = self._section(schema, part)
        elsewhere = [f"{name}.{keys[-1]}" for name in self._sections_with(keys[-1], keys[0])]
        if keys[:-1] != ("train",) and keys[-1] in TRAINER_NAMES:
            elsewhere.append(f"train.{TRAINER_NAMES[keys[-1]]}")
        if elsewhere:
            return f", did you mean {elsewhere[0]}?"
        known = sorted(schema.model_fields) if schema else []
        others = TRAINER_NAMES if keys[:-1] == ("train",) else {}
        close = difflib.get_close_matches(keys[-1], [*known, *others], n=1, cutoff=0.5)
        if close:
            name = others.get(close[0], close[0])
            return f", did you mean {'.'.join((*keys[:-1], name))}?"
        return f", known here: {', '.join(known)}"

    def _sections_with(self, key: str, other_than: str) -> list[str]:
        sections = {name: self._section(Config, name) for name in Config.model_fields}
        return [
            name
            for name, schema in sections.items()
            if name != other_than and schema and key in schema.model_fields
        ]

    def _section(self, schema: type[BaseModel] | None, key: str) -> type[BaseModel] | None:
        if schema is Config and key == "engine":
            return self.engine
        field = schema.model_fields.get(key) if schema else None
        candidates = [field.annotation, *typing.get_args(field.annotation)] if field else []
        for candidate in candidates:
            if isinstance(candidate, type) and issubclass(candidate, BaseModel):
                return candidate
        return None


def _expectation(error: dict[str, Any]) -> str:
    if error["type"] == "literal_error":
        return f"{_EXPECTED}{error['ctx']['expected']}"
    message = error["msg"].removeprefix("Value error, ").partition(", unable")[0]
    message = message.replace("Input should be ", _EXPECTED)
    return message[:1].lower() + message[1:]
