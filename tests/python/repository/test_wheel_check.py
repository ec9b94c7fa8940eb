"""`.ci/wheel_contents.py` refuses a wheel that lacks a file, a library or a notice."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
import torch
from conftest import REPOSITORY
from sluiceway import _core, _host_allocator

LICENSES = "sluiceway-0.1.0.dist-info/licenses"


@pytest.fixture
def contents() -> dict[str, bytes]:
    """Paths and bytes of a wheel that is as it should be."""
    maps = Path("/proc/self/maps").read_text()
    (libhwy,) = set(re.findall(r"/\S+/libhwy[^/\s]*\.so\S*", maps))
    core = Path(_core.__file__).read_bytes()
    return {
        # In an installed wheel it asks for the library by the name that it has there.
        "sluiceway/_core.so": core.replace(
            Path(libhwy).name.encode(), b"libhwy.so.1".ljust(len(Path(libhwy).name), b"\0")
        ),
        "sluiceway/_host_allocator.so": Path(_host_allocator.__file__).read_bytes(),
        "sluiceway/_core.pyi": b"",
        "sluiceway/_host_allocator.pyi": b"",
        "sluiceway/py.typed": b"",
        "sluiceway/configs/laptop_1b.yaml": b"",
        "sluiceway/configs/shapes/llama_7b/config.json": b"",
        "sluiceway.libs/libhwy.so.1": Path(libhwy).read_bytes(),
        f"{LICENSES}/LICENSE": (REPOSITORY / "LICENSE").read_bytes(),
        f"{LICENSES}/THIRD_PARTY.md": (REPOSITORY / "THIRD_PARTY.md").read_bytes(),
    }


@pytest.fixture
def check(tmp_path):
    """Check a wheel of these contents: exit status, what was printed, complaints."""

    def run(contents: dict[str, bytes], *options: str) -> tuple[int, str, str]:
        wheel = tmp_path / "sluiceway.whl"
        with zipfile.ZipFile(wheel, "w") as file:
            for name, content in contents.items():
                file.writestr(name, content)
        done = subprocess.run(
            [sys.executable, REPOSITORY / ".ci" / "wheel_contents.py", wheel, *options],
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    return run


def test_wheel_that_brings_what_it_needs_passes_and_says_what_stays_outside(check, contents):
    code, said, complaints = check(contents)
    assert (code, complaints) == (0, "")
    assert "libhwy.so.1: in the wheel" in said
    assert "libc10.so: external" in said
    assert "libtorch" not in said
    assert "libc.so.6: external" in said


@pytest.mark.parametrize(
    ("lost", "complaint"),
    [
        ("sluiceway.libs/libhwy.so.1", "libhwy.so.1: not in the wheel"),
        ("sluiceway/_core.so", "no compiled module"),
        ("sluiceway/_core.pyi", "no sluiceway/_core.pyi"),
        ("sluiceway/py.typed", "no sluiceway/py.typed"),
        (f"{LICENSES}/LICENSE", "no dist-info/licenses/LICENSE"),
        (
            f"{LICENSES}/THIRD_PARTY.md",
            "libhwy.so.1: in the wheel, but THIRD_PARTY.md has no notice",
        ),
    ],
)
def test_wheel_that_lacks_something_is_refused(check, contents, lost, complaint):
    del contents[lost]
    code, _, complaints = check(contents)
    assert code == 1
    assert complaint in complaints


def test_versions_that_are_not_compiled_in_are_refused(check, contents):
    page = f"{LICENSES}/THIRD_PARTY.md"
    torch_here = metadata.version("torch").partition("+")[0].encode()  # `make newest` has another.
    contents[page] = re.sub(rb"(\| PyTorch \| )\S+", rb"\g<1>" + torch_here, contents[page])
    contents[page] = re.sub(rb"(\| (?:xxHash|pybind11) \| )\S+", rb"\g<1>9.9", contents[page])
    code, _, complaints = check(contents, "--built-here")
    assert code == 1
    for library in ("xxHash", "pybind11"):
        assert f"THIRD_PARTY.md: {library} 9.9, expected" in complaints
    assert "PyTorch" not in complaints


def test_a_module_that_asks_torch_for_more_than_an_allocator_is_refused(check, contents):
    contents["sluiceway/_core.so"] = contents["sluiceway/_host_allocator.so"]
    code, _, complaints = check(contents)
    assert code == 1
    assert "_core: asks torch for _ZN3c108free_cpuEPv, whose next version may lack it" in complaints
    assert "_host_allocator: asks" not in complaints
    del contents["sluiceway/_core.so"]
    binaries = Path(torch.__path__[0]) / "lib"
    contents["sluiceway/_core.so"] = (binaries / "libtorch_global_deps.so").read_bytes()
    contents["sluiceway/_host_allocator.so"] = (binaries / "libtorch_python.so").read_bytes()
    code, _, complaints = check(contents)
    assert code == 1
    assert complaints.count("_host_allocator: asks torch for _Z") > 100
