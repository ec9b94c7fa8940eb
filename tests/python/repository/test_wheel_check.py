"""`.ci/wheel_contents.py` refuses a wheel that lacks a file, a library or a notice."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
import torch  # noqa: F401  The module carries no path to libtorch, which must be loaded before it.
from conftest import REPOSITORY
from sluiceway import _core

LICENSES = "sluiceway-0.1.0.dist-info/licenses"
METADATA = LICENSES.removesuffix("licenses") + "METADATA"
TORCH_MINOR = ".".join(metadata.version("torch").split(".")[:2])


@pytest.fixture
def contents() -> dict[str, bytes]:
    """Paths and bytes of a wheel that is as it should be."""
    maps = Path("/proc/self/maps").read_text()
    (libhwy,) = set(re.findall(r"/\S+/libhwy[^/\s]*\.so\S*", maps))
    return {
        "sluiceway/_core.so": Path(_core.__file__).read_bytes(),
        "sluiceway/_core.pyi": b"",
        "sluiceway/py.typed": b"",
        "sluiceway.libs/libhwy.so.1": Path(libhwy).read_bytes(),
        METADATA: f"Name: sluiceway\nRequires-Dist: torch=={TORCH_MINOR}.*\n".encode(),
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
    assert "libtorch_cpu.so: external" in said
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


def test_metadata_that_takes_another_torch_is_refused(check, contents):
    contents[METADATA] = b"Name: sluiceway\nRequires-Dist: torch>=2.11\n"
    code, _, complaints = check(contents, "--built-here")
    assert code == 1
    assert f"METADATA: requires ['torch>=2.11'], expected torch=={TORCH_MINOR}.*" in complaints
