"""cuda_build.py with stand-ins for nvidia-smi, nvcc, pip and torch: what is built, and why not."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys

import pytest
from conftest import REPOSITORY

SCRIPT = REPOSITORY / ".ci" / "cuda_build.py"
CUDA = "13.9"  # No compiler of this machine is of that version.
H100 = "NVIDIA H100 80GB HBM3, 9.0, 580.95.05"
# Makes what the packages would bring, and writes down what it was asked for.
PIP = """
import os, pathlib, sys
folder = pathlib.Path(sys.argv[sys.argv.index("--target") + 1])
pathlib.Path(os.environ["ASKED"]).write_text(" ".join(sys.argv[1:]))
if os.environ.get("OFFLINE"):
    sys.exit("no network")
nvcc = folder / "nvidia/cu13/bin/nvcc"
nvcc.parent.mkdir(parents=True)
nvcc.write_text("#!/bin/sh\\necho 'Cuda compilation tools, release 13.9, V13.9.1'\\n")
nvcc.chmod(0o755)
for part in ("include", "lib"):
    (folder / "nvidia/cu13" / part).mkdir()
(folder / "nvidia/cu13/include/nvvm.h").touch()
"""


class Machine:
    """A tree with the script, a torch, and the tools that are put there."""

    def __init__(self, root):
        self.root = root
        self.tools, self.packages = root / "tools", root / "packages"
        self.file, self.asked = root / "stamps" / "cuda", root / "asked"
        (root / ".ci").mkdir()
        (root / ".ci" / SCRIPT.name).write_text(SCRIPT.read_text())
        self.torch(CUDA)
        self.toolkit(self.packages / "nvidia" / "cu13", CUDA)
        (self.packages / "pip.py").write_text(PIP)
        self.tools.mkdir()
        self.environment = {
            "PATH": f"{self.tools}:/usr/bin:/bin", "ASKED": str(self.asked),
            "PYTHONPATH": str(self.packages),
        }  # fmt: skip

    def torch(self, cuda):
        (self.packages / "torch").mkdir(parents=True, exist_ok=True)
        (self.packages / "torch" / "__init__.py").write_text("raise SystemExit('slow to import')")
        (self.packages / "torch" / "version.py").write_text(
            f"__version__ = '2.99.0'\ncuda = {cuda!r}\n"
        )

    @staticmethod
    def toolkit(folder, cuda, libraries=("libcublas.so.13", "libcusparse.so.12")):
        """Headers and libraries, as torch's packages have them or an installed CUDA."""
        for part in ("include", "lib"):
            (folder / part).mkdir(parents=True)
        major, minor = map(int, cuda.split("."))
        header = folder / "include" / "cuda_runtime_api.h"
        header.write_text(f"#define CUDART_VERSION  {1000 * major + 10 * minor}\n")
        (folder / "include" / "cuda_runtime.h").touch()
        for library in libraries:
            (folder / "lib" / library).touch()

    def tool(self, path, answer):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\ncat <<'END'\n{answer}\nEND\n")
        path.chmod(0o755)

    def card(self, *rows):
        self.tool(self.tools / "nvidia-smi", "\n".join(rows))

    def nvcc(self, folder, release, **parts):
        self.toolkit(folder, release, **parts)
        self.tool(
            folder / "bin" / "nvcc", f"Cuda compilation tools, release {release}, V{release}.88"
        )
        return str(folder / "bin" / "nvcc")

    def decide(self, purpose="card", *arguments, **environment):
        """The definitions and what was said about them."""
        done = subprocess.run(
            [sys.executable, self.root / ".ci" / SCRIPT.name, purpose, self.file, *arguments],
            env={**self.environment, **environment}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        words = shlex.split(self.file.read_text())
        return dict(word.split("=", 1) for word in words), done.stderr


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_without_nvidia_smi_the_host_device_is_built_and_nothing_is_said(machine):
    assert machine.decide() == ({}, "")
    assert not machine.asked.exists()


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'No devices were found'; exit 6", "'No devices were found'"),
        ("echo 'NVIDIA-SMI has failed' >&2; exit 9", "'NVIDIA-SMI has failed'"),
        ("echo; echo 'lorem, ipsum, dolor'", "'lorem, ipsum, dolor'"),
        ("echo 'RTX 4090, [N/A], [N/A]'", "'RTX 4090, [N/A], [N/A]'"),
        (r"printf '\377\033 \001\n'", r"'�\x1b \x01'"),
        ("exit 1", "'nothing'"),
    ],
)
def test_an_nvidia_smi_that_names_no_card_is_one_line_with_what_it_says(machine, script, said):
    smi = machine.tools / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\n{script}\n")
    smi.chmod(0o755)
    reason = f"nvidia-smi lists no card; its output is {said}"
    assert machine.decide() == ({}, f"cuda: built only for the host device: {reason}\n")
    assert not machine.asked.exists()


def test_the_compiler_of_cuda_home_or_path_is_taken_if_it_fits_torch(machine):
    machine.card(H100)
    home = machine.nvcc(machine.root / "home", CUDA)
    chosen, said = machine.decide(CUDA_HOME=str(machine.root / "home"))
    assert chosen == {
        "SLUICEWAY_CUDA": "ON",
        "SLUICEWAY_CUDA_ARCHITECTURES": "card",
        "CMAKE_CUDA_COMPILER": home,
    }
    assert said == ""
    path = f"{machine.root}/home/bin:{machine.environment['PATH']}"
    assert machine.decide(PATH=path)[0]["CMAKE_CUDA_COMPILER"] == home
    assert not machine.asked.exists()


@pytest.mark.parametrize(
    ("release", "parts"), [("12.4", {}), (CUDA, {"libraries": ["libcublas.so.13"]})]
)
def test_another_compiler_comes_from_pypi_and_becomes_a_toolkit(machine, release, parts):
    machine.card(H100)
    machine.nvcc(machine.root / "old", release, **parts)
    chosen, said = machine.decide(CUDA_HOME=str(machine.root / "old"))
    toolkit = machine.root / "build" / f"cuda-{CUDA}" / "nvidia" / "cu13"
    assert chosen["CMAKE_CUDA_COMPILER"] == str(toolkit / "bin" / "nvcc")
    assert said == f"cuda: installing nvcc {CUDA} from PyPI\n"
    asked = machine.asked.read_text()
    for name in ("nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cuda-crt", "nvidia-cuda-cccl"):
        assert f"{name}=={CUDA}.*" in asked
    for name in ("include/cuda_runtime.h", "include/nvvm.h", "lib/libcublas.so.13",
                 "lib64/libcublas.so", "lib64/libcusparse.so"):  # fmt: skip
        assert (toolkit / name).exists(), name
    machine.asked.unlink()
    assert machine.decide() == (chosen, "")
    assert not machine.asked.exists(), "it is there"


def test_without_a_network_the_host_device_is_built_and_one_line_says_why(machine):
    machine.card(H100)
    chosen, said = machine.decide(OFFLINE="1")
    assert chosen == {}
    assert said.splitlines()[-1] == (
        f"cuda: built only for the host device: nvcc {CUDA} is neither in CUDA_HOME nor on PATH, "
        "and pip could not install it; install that CUDA toolkit"
    )


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("Tesla V100, 7.0, 580.95.05", "Tesla V100: its compute capability is 7.0, expected 7.5"),
        ("RTX 4090, 8.9, 550.54", "RTX 4090: its driver is 550, but CUDA 13 needs 580 or newer"),
    ],
)
def test_a_card_that_cannot_be_used_is_one_line_with_the_reason(machine, row, reason):
    machine.card(row)
    chosen, said = machine.decide()
    assert chosen == {}
    (line,) = said.splitlines()
    assert line.startswith(f"cuda: built only for the host device: {reason}")


def test_a_driver_that_does_not_know_what_is_asked_is_too_old(machine):
    machine.card("Tesla K80, 470.57.02")
    smi = machine.tools / "nvidia-smi"
    refuse = '#!/bin/sh\ncase "$*" in *compute_cap*) echo "not a valid field"; exit 2 ;; esac\n'
    smi.write_text(smi.read_text().replace("#!/bin/sh\n", refuse))
    chosen, said = machine.decide()
    assert chosen == {}
    assert "Tesla K80: its driver is 470, but CUDA 13 needs 580 or newer" in said


def test_one_card_that_can_be_used_is_enough(machine):
    machine.card("Quadro P400, 6.1, 580.95.05", "RTX 4090, 8.9, 580.95.05")
    assert machine.decide()[0]["SLUICEWAY_CUDA"] == "ON"


def test_a_torch_without_cuda_is_the_reason(machine):
    machine.card(H100)
    machine.torch(None)
    assert "torch 2.99.0 is built without CUDA" in machine.decide()[1]


def test_a_torch_of_an_older_cuda_needs_a_compiler_that_is_installed(machine):
    machine.card(H100)
    machine.torch("12.99")
    assert "has no headers of CUDA in" in machine.decide()[1]
    machine.nvcc(machine.root / "home", "12.99")
    chosen, _ = machine.decide(CUDA_HOME=str(machine.root / "home"))
    assert chosen["SLUICEWAY_CUDA"] == "ON"


def test_a_wheel_is_for_all_cards_or_for_those_that_are_named_and_needs_none(machine):
    assert machine.decide("wheel")[0]["SLUICEWAY_CUDA_ARCHITECTURES"] == "all"
    chosen, _ = machine.decide("wheel", "80-real;90")
    assert chosen["SLUICEWAY_CUDA_ARCHITECTURES"] == "80-real;90"


def test_the_file_is_written_only_when_it_changes(machine):
    machine.decide()
    os.utime(machine.file, (1, 1))
    machine.decide()
    assert machine.file.stat().st_mtime == 1
    machine.card(H100)
    machine.decide()
    assert machine.file.stat().st_mtime > 1


@pytest.mark.parametrize("with_driver", [False, True])
def test_wsl_needs_the_library_of_its_driver(tmp_path, monkeypatch, with_driver):
    spec = importlib.util.spec_from_file_location("cuda_build", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    (tmp_path / "version").write_text("Linux version 6.6.87.2-microsoft-standard-WSL2\n")
    monkeypatch.setattr(script, "KERNEL_VERSION", tmp_path / "version")
    monkeypatch.setattr(script, "wsl_has_driver", lambda: with_driver)
    found = [("RTX 4090", (8, 9), 580)]
    if with_driver:
        script.check_cards(found, (13, 0))
    else:
        with pytest.raises(script.NoCudaError, match=r"libcuda.so.1 is not found.* this is WSL"):
            script.check_cards(found, (13, 0))


def test_nothing_is_asked_that_the_tools_of_a_genuine_debian_12_refuse():
    """CI's machine has a newer pip, and a CMake that was patched for CUDA 13."""
    lists = (REPOSITORY / "CMakeLists.txt").read_text()
    (minimum,) = re.findall(r"^cmake_minimum_required\(VERSION 3\.(\d+)\)", lists, re.MULTILINE)
    assert int(minimum) < 25, "FindCUDAToolkit of 3.25.1 then fails where there is no nvToolsExt"
    makefile = (REPOSITORY / "Makefile").read_text()
    assert not re.search(r"\s-C\S", makefile), "pip 23.0.1 has --config-settings= alone"
