"""Stubs, `codec_names.py` and docs/configuration.md are what `make stubs` writes."""

from __future__ import annotations

import ast
import subprocess
import sys

from conftest import REPOSITORY

PACKAGE = REPOSITORY / "python" / "sluiceway"
COMMITTED = PACKAGE / "_core.pyi"


def test_stubs_are_what_the_build_writes(tmp_path):
    script = REPOSITORY / ".ci" / "stubs.py"
    subprocess.run([sys.executable, script, tmp_path], check=True)
    for name in ("_core.pyi", "_host_allocator.pyi", "config/codec_names.py"):
        written = (tmp_path / "sluiceway" / name).read_text()
        message = f"{name} is of another build; run `make stubs`"
        assert written == (PACKAGE / name).read_text(), message


def test_page_of_the_configuration_is_what_the_options_say():
    script = REPOSITORY / ".ci" / "configuration.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    page = (REPOSITORY / "docs/configuration.md").read_text()
    assert done.stdout == page, "docs/configuration.md is of other options; run `make stubs`"


def test_stub_names_every_argument_of_every_function():
    functions = [n for n in ast.walk(ast.parse(COMMITTED.read_text())) if _is_callable(n)]
    assert len(functions) > 40
    unnamed = {
        function.name
        for function in functions
        for argument in function.args.posonlyargs + function.args.args
        if argument.arg.startswith(("arg0", "arg1", "arg2", "_"))
    }
    # pybind11 gives a setter no way to name its value.
    assert unnamed <= {"committed_steps"}


def _is_callable(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef)
