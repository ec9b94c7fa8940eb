"""Each kernel has two halves, one function that chooses, and a test that knows all of them."""

import re
from collections import Counter
from pathlib import Path

import pytest
from conftest import REPOSITORY

KERNELS = REPOSITORY / "kernels"
HEADERS = sorted(
    path for path in KERNELS.glob("*.h") if "namespace sluiceway::cuda" in path.read_text("utf-8")
)
FUNCTION = re.compile(r"^(?:inline )?(?:void|double|\w+) (\w+)\(", re.MULTILINE)


def functions(text: str, namespace: str) -> Counter[str]:
    """Count the declarations of each name in a namespace of a header."""
    parts = re.findall(
        rf"^namespace {namespace} {{\n(.*?)^}}  // namespace {namespace}$", text, re.M | re.S
    )
    return Counter(name for part in parts for name in FUNCTION.findall(part))


def declared(namespace: str) -> Counter[str]:
    """The same over all headers of kernels/ that have a CUDA half."""
    return sum((functions(path.read_text("utf-8"), namespace) for path in HEADERS), Counter())


def test_the_reader_sees_overloads_and_templates() -> None:
    text = (KERNELS / "compress.h").read_text("utf-8")
    assert functions(text, "sluiceway::cuda") == {
        "compress": 3,
        "prepare_products": 2,
    }
    assert functions((KERNELS / "adam.h").read_text("utf-8"), "sluiceway::cuda") == {
        "adam_direction": 1,
        "adam_step": 1,
    }
    assert len(HEADERS) == 15


def test_the_test_of_a_build_without_cuda_calls_every_cuda_half() -> None:
    text = (REPOSITORY / "tests/kernels/no_cuda_test.cpp").read_text("utf-8")
    assert Counter(re.findall(r"cuda::(\w+)[(<]", text)) == declared("sluiceway::cuda")


@pytest.mark.parametrize("header", HEADERS, ids=lambda path: path.name)
def test_every_half_has_its_dispatch(header: Path) -> None:
    text = header.read_text("utf-8")
    halves, chosen = functions(text, "sluiceway::cuda"), functions(text, "sluiceway")
    assert {name: chosen[name] for name in halves} == dict(halves)


def test_nobody_but_the_dispatch_chooses_the_cuda_half() -> None:
    names = "|".join(declared("sluiceway::cuda"))
    callers = [
        path.relative_to(REPOSITORY).as_posix()
        for tree in ("compress", "runtime", "python")
        for path in (REPOSITORY / tree).rglob("*")
        if path.suffix in {".h", ".cpp", ".cu"}
        and re.search(rf"\bcuda::(?:{names})\b", path.read_text("utf-8"))
    ]
    assert callers == []


def test_every_kernel_test_names_an_operation_that_exists() -> None:
    sources = sorted((REPOSITORY / "tests/kernels").glob("*.cpp"))
    named = {
        name
        for path in sources
        for name in re.findall(r'built_backends\("(\w+)"\)', path.read_text("utf-8"))
    }
    assert named == {path.stem for path in HEADERS}
