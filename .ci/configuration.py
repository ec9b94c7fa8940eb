"""Print docs/configuration.md, the keys of a config, from the options themselves."""

import json
import re
from typing import get_args

from pydantic.fields import FieldInfo
from sluiceway.config.engines import known_kinds, section_of
from sluiceway.config.fields import Section
from sluiceway.config.option_docs import shown_type
from sluiceway.config.schema import Config

HEAD = """\
# Configuration

Every key that the YAML file of a run may have, with its type and default. `make stubs` writes this
page from the options. Sizes are numbers of bytes or texts such as `4GiB`. `--set a.b=c` of the
command line overrides a key.
"""
WORDS = {
    "None": "null", "str": "text", "bool": "true or false", "int": "integer", "float": "number",
    "dict": "mapping",
}  # fmt: skip


def section_in(field: FieldInfo) -> type[Section] | None:
    """Return the class of a key that is a section of keys, or None."""
    kinds = (field.annotation, *get_args(field.annotation))
    return next((k for k in kinds if isinstance(k, type) and issubclass(k, Section)), None)


def row(key: str, field: FieldInfo) -> str:
    """Return the row of a key."""
    text = (field.description or "").replace("|", "\\|").replace("<", "\\<")
    kind = re.sub(
        r'\b(None|str|bool|int|float|dict)\b(?!")', lambda m: WORDS[m[0]], shown_type(field)
    )
    default = (
        ""
        if field.is_required()
        else f"`{json.dumps(field.get_default(call_default_factory=True))}`"
    )
    return f"| `{key}` | {kind} | {default} | {text} |"


def rows(section: type[Section], prefix: str = "") -> list[str]:
    """Return the rows of a section, and of sections in it."""
    found = []
    for name, field in section.model_fields.items():
        if name == "kind" or (name.startswith("_") or not field.description):
            continue
        found.append(row(prefix + name, field))
        if (inner := section_in(field)) is not None:
            found += rows(inner, f"{prefix}{name}.")
    return found


def table(title: str, found: list[str]) -> str:
    """Return a heading and a table."""
    return "\n".join(
        [f"\n## {title}\n", "| key | value | default | |", "|---|---|---|---|", *found]
    )


def page() -> str:
    """Return the page."""
    fields = Config.model_fields
    plain = [row(name, f) for name, f in fields.items() if f.description]
    parts = [HEAD.rstrip(), table("Keys beside the sections", plain)]
    for name, field in fields.items():
        inner = section_in(field)
        if inner is None or name == "engine":
            continue
        parts.append(table(name, rows(inner)))
    for kind in known_kinds():
        parts.append(table(f"engine, with kind: {kind}", rows(section_of(kind))))
    return "\n".join(parts) + "\n"


print(page(), end="")
