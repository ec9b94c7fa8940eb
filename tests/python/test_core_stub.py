"""`_core.pyi` says what the compiled module says of itself."""

from __future__ import annotations

import ast
import subprocess
import sys

from conftest import REPOSITORY

COMMITTED = REPOSITORY / "python" / "sluiceway" / "_core.pyi"


def test_stub_is_what_the_build_writes(tmp_path):
    script = REPOSITORY / ".ci" / "stubs.py"
    subprocess.run([sys.executable, script, tmp_path], check=True)
    written = (tmp_path / "sluiceway" / "_core.pyi").read_text()
    assert written == COMMITTED.read_text(), "_core.pyi is of another build; run `make stubs`"


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
