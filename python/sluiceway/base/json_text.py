"""Plain values as JSON text; NaN and infinities, which JSON does not have, become null."""

from __future__ import annotations

import json
import math
from typing import Any


def finite(value: Any) -> Any:
    """Return the same plain value with None in place of NaN and infinities."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def json_text(value: Any, indent: int | None = None) -> str:
    """Return one line of JSON, or several with `indent`; without a newline at the end."""
    return json.dumps(finite(value), indent=indent)
