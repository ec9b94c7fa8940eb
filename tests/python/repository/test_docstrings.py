"""Docstrings start with a verb, or with the noun that is returned, and never with a fragment."""

import ast
import re
from pathlib import Path

import pytest
from conftest import REPOSITORY

ROOMS = ("python/sluiceway", "experiments", "tests/python")
FRAGMENT = re.compile(
    "(After|All|Also|As|Because|Before|Behind|Beside|Between|But|By|For|From|How|If|In|Its|Likewise"
    "|Neither|Nobody|None|Nothing|Of|On|Out|Since|Such|Than|That|Their|There|Those|Though|Till"
    r"|Until|Up|What|When|Where|Whether|Which|While|Who|Whoever|Whose|Why|With|Without)\b"
)
SCOPES = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def fragments_in(folder: Path) -> list[str]:
    """List docstrings that start with a fragment, as file:line with their first lines."""
    found = []
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            docstring = ast.get_docstring(node) if isinstance(node, SCOPES) else None
            if docstring and FRAGMENT.match(docstring):
                place = f"{path.relative_to(folder)}:{node.body[0].lineno}"
                found.append(f"{place}: {docstring.splitlines()[0]}")
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_no_docstring_starts_with_a_fragment(room):
    found = fragments_in(REPOSITORY / room)
    assert not found, "\n".join([f"{len(found)} docstrings start with a fragment:", *found])


def test_fragments_are_found_with_file_and_line(tmp_path):
    (tmp_path / "bad.py").write_text('"""Makes noise."""\n\n\ndef drawn():\n    """Of a step."""\n')
    assert fragments_in(tmp_path) == ["bad.py:5: Of a step."]
