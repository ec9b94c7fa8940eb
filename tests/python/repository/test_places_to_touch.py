"""A codec takes no more places than docs/architecture.md section 5 says."""

from __future__ import annotations

import re

from conftest import REPOSITORY

PRODUCT = ("compress", "kernels", "runtime", "python")
SOURCES = {".py", ".h", ".cuh", ".cpp", ".cu", ".txt"}


def places(pattern: str, *rooms: str) -> list[str]:
    """Return the files of the rooms that have the pattern, once for each line that has it."""
    files = (path for room in rooms for path in sorted((REPOSITORY / room).rglob("*")))
    return [
        str(path.relative_to(REPOSITORY))
        for path in files
        if path.suffix in SOURCES and path.name != "_core.pyi"
        for line in path.read_text().splitlines()
        if re.search(pattern, line)
    ]


def test_a_codec_is_one_file_its_declaration_its_row_and_its_name_for_cmake():
    found = places("topk_columns", *PRODUCT)
    assert set(found) == {
        "compress/topk_columns.cpp",
        "compress/builtin_families.h",
        "compress/codec_families.cpp",
        "compress/CMakeLists.txt",
    }
    assert len([place for place in found if place != "compress/topk_columns.cpp"]) == 3
