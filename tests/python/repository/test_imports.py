"""Sub-packages import only those to their left.

And nothing in the repository edits the module search path: `experiments` is a package.
Imports inside functions and those for types count. The rules are checked on this tree, and on small
bad trees to show that each of them can fail.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from conftest import REPOSITORY

PACKAGE = REPOSITORY / "python" / "sluiceway"

# Those of one line do not know each other.
ORDER = [
    {"base"},
    {"config"},
    {"text", "machine", "store"},
    {"model"},
    {"optim"},
    {"engines", "integrations"},
    {"run"},
    {"report"},
    {"commands"},
]
RANK = {package: rank for rank, packages in enumerate(ORDER) for package in packages}
FREE = {"errors"}  # For everybody.
# The compiled module counts bytes and computes; the packages before optim only read and choose.
COMPILED = {"machine", "store", "optim", "engines", "run", "report", "commands"}
# Words that say nothing of what a thing is.
EMPTY_WORDS = {"data", "helper", "info", "manager", "process", "util", "utils"}


def imports_of(tree: ast.AST, package: list[str]) -> list[str]:
    """Every module of ours that is imported anywhere in a file, as a dotted name."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            if module == "sluiceway":  # What is imported is a module, or a name of the package.
                found += [f"{module}.{alias.name}" for alias in node.names]
            else:
                found.append(module)
        elif (
            isinstance(node, ast.Call)
            and getattr(node.func, "attr", getattr(node.func, "id", "")) == "import_module"
            and node.args
            and isinstance(node.args[0], ast.Constant)
        ):
            found.append(node.args[0].value)
    return [name for name in found if name.partition(".")[0] == "sluiceway"]


def rule_broken_by(package: str, name: str) -> str | None:
    """Name the rule that an import of `name` by a file of `package` breaks."""
    target = [*name.split("."), ""][1]
    if package not in RANK or target in FREE or target == package or target == "__version__":
        return None
    if target == "_core":
        return None if package in COMPILED else "the compiled module is for those that compute"
    if target == "_host_allocator":
        return None if package == "machine" else "torch's allocator is for the package machine"
    if target not in RANK:
        return "a package may not import the whole of sluiceway"
    if RANK[target] == RANK[package]:
        return f"{package} and {target} may not know each other"
    return f"{target} stands to the right of {package}" if RANK[target] > RANK[package] else None


def public_names(tree: ast.Module) -> list[str]:
    """Return the classes and functions of a module that others may use."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return [n.name for n in tree.body if isinstance(n, kinds) and not n.name.startswith("_")]


def last_word(name: str) -> str:
    """The last word of a snake_case or CamelCase name."""
    return re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)[-1].lower() if name else name


def complaints(root: Path) -> list[str]:
    """Every broken rule of a package."""
    found = []
    for path in sorted([*root.rglob("*.py"), *root.rglob("*.pyi")]):
        place = path.relative_to(root)
        tree = ast.parse(path.read_text(encoding="utf-8"))
        package = place.parts[0] if len(place.parts) > 1 else ""
        for name in imports_of(tree, ["sluiceway", *place.parent.parts]):
            rule = rule_broken_by(package, name)
            found += [f"{place}: {name}: {rule}"] if rule else []
        if package and package not in RANK:
            found.append(f"{place}: {package} is none of the packages")
        for name in public_names(tree):
            if last_word(name) in EMPTY_WORDS:
                found.append(f"{place}: {name}: a name that says nothing")
        if last_word(path.stem) in EMPTY_WORDS:
            found.append(f"{place}: a name that says nothing")
    return found


def test_every_import_of_the_package_points_left_and_every_name_says_something() -> None:
    assert complaints(PACKAGE) == []


def test_no_test_is_called_by_a_word_that_says_nothing() -> None:
    stems = [path.stem for path in (REPOSITORY / "tests/python").rglob("*.py")]
    assert "test_imports" in stems
    assert [stem for stem in stems if last_word(stem) in EMPTY_WORDS] == []


def test_the_reader_sees_imports_in_functions_and_for_types() -> None:
    text = (
        "import torch, sluiceway.base.sizes\n"
        "from sluiceway import _core, __version__\n"
        "from . import placement\n"
        "from .. import errors\n"
        "from ..run import loop\n"
        "if TYPE_CHECKING:\n    from sluiceway.model.folder import load_model\n"
        "def f():\n    from sluiceway.text import batches\n    import_module('sluiceway.optim')\n"
    )
    assert imports_of(ast.parse(text), ["sluiceway", "machine"]) == [
        "sluiceway.base.sizes",
        "sluiceway._core",
        "sluiceway.__version__",
        "sluiceway.machine",
        "sluiceway.errors",
        "sluiceway.run",
        "sluiceway.model.folder",
        "sluiceway.text",
        "sluiceway.optim",
    ]


GOOD_TREE = {
    "__init__.py": "from sluiceway.config.values import Budget\nfrom sluiceway import errors\n",
    "__main__.py": "from sluiceway.commands.cli import main\n",
    "errors.py": "class Error(Exception): ...\n",
    "base/sizes.py": "from sluiceway.errors import Error\ndef parse(): ...\n",
    "config/values.py": "from sluiceway.base.sizes import parse\nclass Budget: ...\n",
    "text/batches.py": "from sluiceway.config.values import Budget\ndef _hidden(): ...\n",
    "machine/disk.py": "from sluiceway.base import sizes\ndef _hidden(): ...\n",
    "model/folder.py": "from sluiceway.machine.disk import _hidden\n",
    "optim/subspace/state.py": "from sluiceway import _core\nfrom sluiceway.model import folder\n",
    "commands/cli.py": "from sluiceway import __version__\ndef main():\n"
    "    from sluiceway.report import page\n",
}


def write_tree(root: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")


def test_a_package_that_keeps_the_rules_is_silent(tmp_path: Path) -> None:
    write_tree(tmp_path, GOOD_TREE)
    assert complaints(tmp_path) == []


@pytest.mark.parametrize(
    ("path", "text", "rule"),
    [
        ("base/bad.py", "from sluiceway.config.values import Budget", "right of base"),
        ("text/bad.py", "def f():\n    from sluiceway.model import folder", "right of text"),
        ("text/bad.py", "import sluiceway.machine.disk", "may not know each other"),
        ("machine/bad.py", "from ..text import batches", "may not know each other"),
        (
            "model/bad.py",
            "if TYPE_CHECKING:\n    from sluiceway.optim.common.model_hooks import Hooks",
            "right of model",
        ),
        ("optim/subspace/bad.py", "import_module('sluiceway.engines.native')", "right of optim"),
        ("run/bad.py", "from sluiceway.report.page import make_page", "right of run"),
        ("report/bad.py", "from sluiceway.commands import cli", "right of report"),
        ("model/bad.py", "from sluiceway import _core", "for those that compute"),
        ("model/bad.py", "from sluiceway._core import now_us", "for those that compute"),
        ("model/bad.py", "from sluiceway import _host_allocator", "for the package machine"),
        ("run/bad.py", "import sluiceway", "the whole of sluiceway"),
        ("run/bad.py", "from sluiceway import Budget", "the whole of sluiceway"),
        ("tools/bad.py", "", "none of the packages"),
        ("run/bad.py", "class RunManager: ...", "says nothing"),
        ("run/data.py", "", "says nothing"),
    ],
)
def test_each_broken_rule_is_named(tmp_path: Path, path: str, text: str, rule: str) -> None:
    write_tree(tmp_path, GOOD_TREE | {path: f"{text}\n"})
    found = complaints(tmp_path)
    assert len(found) == 1, found
    assert rule in found[0]


PATH = "sys." + "path"
EDIT = re.compile(
    re.escape(PATH) + r"\s*(\[[^\]]*\]\s*)?(\+?=(?!=)|\.(append|extend|insert|remove)\()"
)


def edits_of_the_path(root: Path) -> list[str]:
    """Return every line of Python that edits the module search path, in texts for children too."""
    return [
        f"{path.relative_to(root)}:{number}"
        for tree in ("experiments", "tests", ".ci", "python")
        for path in sorted((root / tree).rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if EDIT.search(line)
    ]


def test_nothing_edits_the_module_search_path() -> None:
    assert edits_of_the_path(REPOSITORY) == []


@pytest.mark.parametrize(
    "edit", [".append('a')", ".extend(x)", ".insert(0, 'a')", "[:0] = ['a']", " += ['a']", " = []"]
)
def test_an_edit_of_the_module_search_path_is_named(tmp_path: Path, edit: str) -> None:
    (tmp_path / "experiments/a").mkdir(parents=True)
    file = tmp_path / "experiments/a/b.py"
    file.write_text(f"import sys\nprint({PATH}[0], {PATH} == [])\n    {PATH}{edit}\n")
    assert edits_of_the_path(tmp_path) == ["experiments/a/b.py:3"]
