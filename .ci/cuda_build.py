"""Decide whether this machine builds CUDA, and with which compiler.

    .ci/cuda_build.py card FILE                  for the card of this machine, if it has one
    .ci/cuda_build.py wheel FILE [ARCHITECTURES] for other machines' cards

FILE gets the CMake definitions of that build on one line, quoted for a shell. An empty FILE means
the host device alone. FILE is written only if it changes, so that make can compare its time. One
line on standard error gives the reason if nvidia-smi names no card, if no card is usable, or if no
nvcc is available. CMakeLists.txt decides which architectures to compile for.

The script takes nvcc from CUDA_HOME or PATH if it has the CUDA minor version that torch is built
for. Otherwise it installs nvcc from PyPI into build/cuda-<version>, beside links to the headers and
libraries that came with torch.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OLDEST_DRIVER = {12: 525, 13: 580}  # By major version of CUDA.
OLDEST_CARD = (7, 5)
COMPILER_PACKAGES = ("nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cuda-crt", "nvidia-cuda-cccl")
LINKED_LIBRARIES = ("libcublas", "libcusparse")
KERNEL_VERSION = Path("/proc/version")
WSL_DRIVER = Path("/usr/lib/wsl/lib")
AS_TEXT = {"encoding": "utf-8", "errors": "replace", "timeout": 60}  # For subprocess.run().


class NoCudaError(Exception):
    """Reason why CUDA is not built."""


Version = tuple[int, int]


def version_of(text: str) -> Version:
    """Return major and minor number of a version such as 13.0.88."""
    major, _, rest = text.partition(".")
    return int(major), int(rest.partition(".")[0] or 0)


def output_of(command: list[str]) -> str:
    """Return what a program prints; empty if it fails or does not exist."""
    try:
        done = subprocess.run(command, capture_output=True, check=True, **AS_TEXT)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


# ---- The card ------------------------------------------------------------------------------------


def cards() -> list[tuple[str, Version, int]]:
    """Return name, compute capability and major version of the driver, for each card that answers.

    Raises
    ------
    NoCudaError
        nvidia-smi exists, but names no card.
    """
    found = re.findall(
        r"^(.+), (\d+\.\d+), (\d+)\.[\d.]+$", ask_cards("name,compute_cap,driver_version"), re.M
    )
    if found:
        return [(name, version_of(capability), int(driver)) for name, capability, driver in found]
    answer = ask_cards("name,driver_version")  # Before 510: no compute capability.
    found = re.findall(r"^(.+), (\d+)\.[\d.]+$", answer, re.M)
    if not found and shutil.which("nvidia-smi"):
        said = next((line.strip() for line in answer.splitlines() if line.strip()), "nothing")
        raise NoCudaError(f"nvidia-smi lists no card; its output is {said[:160]!r}")
    return [(name, (0, 0), int(driver)) for name, driver in found]


def ask_cards(columns: str) -> str:
    """Return one line for each card, or nvidia-smi's message; empty if there is no nvidia-smi."""
    command = ["nvidia-smi", f"--query-gpu={columns}", "--format=csv,noheader"]
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, **AS_TEXT
        )
    except FileNotFoundError:
        return ""
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return done.stdout


def check_cards(found: list[tuple[str, Version, int]], cuda: Version) -> None:
    """Raise NoCudaError if no card of this machine could run the build."""
    name, _, driver = found[0]
    oldest = OLDEST_DRIVER.get(cuda[0], 0)
    if driver < oldest:
        raise NoCudaError(
            f"{name}: its driver is {driver}, but CUDA {cuda[0]} needs {oldest} or newer; "
            "install a newer driver"
        )
    if all(capability < OLDEST_CARD for _, capability, _ in found):
        capability = ".".join(map(str, found[0][1]))
        raise NoCudaError(f"{name}: its compute capability is {capability}, expected 7.5 or higher")
    if "microsoft" in KERNEL_VERSION.read_text().lower() and not wsl_has_driver():
        raise NoCudaError(
            f"{name}: libcuda.so.1 is not found, although this is WSL; install the Windows "
            f"driver for WSL, which puts it into {WSL_DRIVER}"
        )


def wsl_has_driver() -> bool:
    """Say whether a program that starts here finds the driver's library."""
    for library in ("libcuda.so.1", str(WSL_DRIVER / "libcuda.so.1")):
        try:
            ctypes.CDLL(library)
        except OSError:
            continue
        return True
    return False


# ---- The compiler --------------------------------------------------------------------------------


def torch_folder() -> Path:
    """Return torch's folder without importing it, which would take seconds."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        raise NoCudaError(f"torch is not installed for {sys.executable}")
    return Path(spec.submodule_search_locations[0])


def cuda_of_torch(torch: Path) -> Version:
    """Return the CUDA version that torch is built for."""
    said = runpy.run_path(str(torch / "version.py"))
    if not said["cuda"]:
        raise NoCudaError(
            f"torch {said['__version__']} is built without CUDA; install a torch with CUDA"
        )
    return version_of(said["cuda"])


def toolkit_of_torch(torch: Path, cuda: Version) -> Path:
    """Return the folder of the headers and libraries that came with torch."""
    return torch.parent / "nvidia" / f"cu{cuda[0]}"


def nvcc_version(nvcc: Path) -> Version | None:
    """Return the version that a compiler prints."""
    said = output_of([str(nvcc), "--version"])
    found = re.search(r"release (\d+\.\d+)", said)
    return version_of(found[1]) if found else None


def installed_nvcc(torch: Path, cuda: Version) -> Path | None:
    """Return an nvcc in CUDA_HOME or on PATH whose toolkit fits torch."""
    homes = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    candidates = [Path(home) / "bin" / "nvcc" for home in homes]
    if on_path := shutil.which("nvcc"):
        candidates.append(Path(on_path))
    candidates.append(Path("/usr/local/cuda/bin/nvcc"))
    for nvcc in candidates:
        fits = nvcc.is_file() and nvcc_version(nvcc) == cuda
        if fits and not toolkit_complaint(nvcc, torch, cuda):
            return nvcc
    return None


def fetched_nvcc(torch: Path, cuda: Version, folder: Path) -> Path:
    """Install nvcc from PyPI into a folder that becomes a whole toolkit."""
    theirs = toolkit_of_torch(torch, cuda)
    version = ".".join(map(str, cuda))
    if not (theirs / "include" / "cuda_runtime.h").is_file():
        raise NoCudaError(
            f"nvcc {version} is neither in CUDA_HOME nor on PATH, and the installed torch "
            f"has no headers of CUDA in {theirs}; install CUDA {version}"
        )
    toolkit = folder / "nvidia" / f"cu{cuda[0]}"
    nvcc = toolkit / "bin" / "nvcc"
    if nvcc_version(nvcc) != cuda:
        shutil.rmtree(folder, ignore_errors=True)
        packages = [f"{name}=={version}.*" for name in COMPILER_PACKAGES]
        print(f"cuda: installing nvcc {version} from PyPI", file=sys.stderr)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder]
        if subprocess.run([*pip, *packages], stdout=sys.stderr).returncode != 0:
            shutil.rmtree(folder, ignore_errors=True)
            raise NoCudaError(
                f"nvcc {version} is neither in CUDA_HOME nor on PATH, and pip could not "
                "install it; install that CUDA toolkit"
            )
    add_links(theirs, toolkit)
    if complaint := toolkit_complaint(nvcc, torch, cuda):
        raise NoCudaError(complaint)
    return nvcc


def add_links(theirs: Path, toolkit: Path) -> None:
    """Complete a toolkit with torch's files, under the names that linkers look for."""
    if not (toolkit / "lib64").exists():
        (toolkit / "lib64").symlink_to("lib")
    for part in ("include", "lib"):
        for file in (theirs / part).iterdir():
            for name in {file.name, re.sub(r"\.so\.\d+$", ".so", file.name)}:
                link = toolkit / part / name
                if link.is_symlink():
                    link.unlink()  # An earlier torch may have had another folder.
                if not link.exists():
                    link.symlink_to(file)


def toolkit_complaint(nvcc: Path, torch: Path, cuda: Version) -> str:
    """Return how a toolkit's headers and libraries differ from torch's; empty if they fit."""
    root = nvcc.resolve().parents[1]
    header = root / "include" / "cuda_runtime_api.h"
    text = header.read_text() if header.exists() else ""
    found = re.search(r"#define CUDART_VERSION\s+(\d+)", text)
    expected = 1000 * cuda[0] + 10 * cuda[1]
    if not found or int(found[1]) != expected:
        said = f"is of version {found[1]}" if found else "is not there"
        return f"{header} {said}, expected version {expected}, which torch is built for"
    for library in LINKED_LIBRARIES:
        for file in (toolkit_of_torch(torch, cuda) / "lib").glob(f"{library}.so.*"):
            if not any((root / folder / file.name).exists() for folder in ("lib64", "lib")):
                return f"{root} has no {file.name}, the version that torch loads; install that one"
    return ""


def definitions(purpose: str, architectures: str) -> list[str]:
    """Return the CMake definitions of a build with CUDA; none if this machine has no card.

    Raises
    ------
    NoCudaError
        CUDA is not built; the message gives the reason.
    """
    found = cards() if purpose == "card" else []
    if purpose == "card" and not found:
        return []
    torch = torch_folder()
    cuda = cuda_of_torch(torch)
    if found:
        check_cards(found, cuda)
    folder = ROOT / "build" / f"cuda-{cuda[0]}.{cuda[1]}"
    nvcc = installed_nvcc(torch, cuda) or fetched_nvcc(torch, cuda, folder)
    return [
        "SLUICEWAY_CUDA=ON",
        f"SLUICEWAY_CUDA_ARCHITECTURES={architectures or ('card' if found else 'all')}",
        f"CMAKE_CUDA_COMPILER={nvcc}",
    ]


def main() -> int:
    """Decide, write the file, and return the exit status."""
    if len(sys.argv) not in (3, 4) or sys.argv[1] not in ("card", "wheel"):
        print(__doc__, file=sys.stderr)
        return 2
    purpose, file = sys.argv[1], Path(sys.argv[2])
    try:
        line = shlex.join(definitions(purpose, "".join(sys.argv[3:])))
    except NoCudaError as reason:
        print(f"cuda: built only for the host device: {reason}", file=sys.stderr)
        line = ""
    if not file.exists() or file.read_text() != line:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
