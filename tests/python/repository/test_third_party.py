"""Whatever is compiled into the module has its notice, and the package imports what it declares."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest
from conftest import REPOSITORY

# What a header in angle brackets belongs to; those of C++, C, Linux and CUDA need no notice.
LIBRARY_OF = {
    r"hwy/": "Highway",
    r"Eigen/": "Eigen",
    r"nlohmann/": "nlohmann-json",
    r"xxhash\.h$": "xxHash",
    r"liburing\.h$": "liburing",
    r"blkid/": None,  # Declarations only: the library is the system's, loaded where it is needed.
    r"pybind11/": "pybind11",
    r"(torch|ATen|c10|caffe2)/": "PyTorch",
    r"[a-z_0-9]+$": None,
    r"(dlfcn|errno|fcntl|immintrin|malloc|poll|pthread|sched|signal|time|unistd)\.h$": None,
    r"(sys|linux)/": None,
    r"(cuda|cublas|cusparse|cooperative_groups|cub/)": None,
}
# Names that a module is imported by, where they are not the distribution's.
DISTRIBUTION_OF = {"yaml": "pyyaml"}


def library_of(header: str) -> str | None:
    """Row of THIRD_PARTY.md for a header; None if it needs none."""
    for pattern, library in LIBRARY_OF.items():
        if re.match(pattern, header):
            return library
    return header  # Of nobody that this test knows: there is no such row.


def missing_notices(root: Path, notices: str) -> set[str]:
    """Libraries that the sources of a wheel include, and that have no row or no section."""
    include = re.compile(r"^\s*#\s*include\s*<([^>]+)>", re.MULTILINE)
    headers = {
        header
        for room in ("kernels", "compress", "runtime", "python")
        for source in (root / room).rglob("*")
        if source.suffix in (".h", ".cpp", ".cu", ".cuh")
        for header in include.findall(source.read_text())
    }
    libraries = {library for header in headers if (library := library_of(header))}
    assert libraries, f"{root}: no library is included, expected some"
    return {name for name in libraries
            if f"\n| {name} |" not in notices or f"\n## {name}\n" not in notices}  # fmt: skip


def imported(path: Path) -> set[str]:
    """Distributions that a source imports, at its top or inside of a function."""
    modules = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            modules.add(node.module)
    top = {module.partition(".")[0] for module in modules} - sys.stdlib_module_names
    return {DISTRIBUTION_OF.get(module, module) for module in top} - {"sluiceway"}


def test_each_library_that_is_included_has_a_row_and_its_licence():
    notices = (REPOSITORY / "THIRD_PARTY.md").read_text()
    assert missing_notices(REPOSITORY, notices) == set()


@pytest.mark.parametrize("header", ["liburing.h", "zstd/zstd.h", "Eigen/Dense", "xxhash.h"])
def test_library_without_a_notice_is_found(tmp_path, header):
    (tmp_path / "runtime").mkdir()
    (tmp_path / "runtime" / "a.cpp").write_text(f"#include <vector>\n#include <{header}>\n")
    assert missing_notices(tmp_path, "\n| Highway | 1.0.3 |\n## Highway\n") != set()


def test_package_imports_its_dependencies_and_nothing_else():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    lines = project["project"]["dependencies"] + extras["report"] + extras["train"]
    declared = {re.match(r"[\w-]+", line)[0] for line in lines}
    sources = list((REPOSITORY / "python" / "sluiceway").rglob("*.py"))
    sources.remove(REPOSITORY / "python" / "sluiceway" / "integrations" / "axolotl.py")  # Its own.
    assert len(sources) > 20
    assert set().union(*map(imported, sources)) == declared
    assert "matplotlib" not in declared
