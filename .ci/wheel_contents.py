"""Check the libraries that a wheel contains and needs.

`.ci/wheel_contents.py WHEEL` lists the shared libraries that the wheel's binaries load. A library
outside the wheel must be in EXTERNAL, which lists all that a machine with Python and torch has. A
library in the wheel must have its notice. No binary but the one that replaces torch's allocator may
ask for symbols of libtorch, so the wheel works with every torch. With `--built-here` the versions
in THIRD_PARTY.md must also be those that this machine compiles in.
"""

import io
import re
import runpy
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import PurePath

from elftools.elf.elffile import ELFFile

EXTERNAL = re.compile(
    r"libc10\.so|libcu(blas|sparse)\.so\.\d+"  # Torch loads these.
    r"|libstdc\+\+\.so\.6|libgcc_s\.so\.1|libc\.so\.6|libm\.so\.6|ld-linux-x86-64\.so\.2"
)
# Mangled names of libtorch's C++, and its C functions; and those that _host_allocator needs.
OF_TORCH = re.compile(r"^_Z.*(3c10|2at|5torch|6caffe2)[\dNEK_]|^aoti_|^torch_|^THP")
OF_ALLOCATORS = re.compile(
    r"_ZN3c10(8free_cpuEPv|9alloc_cpuEm|15SetCPUAllocatorEPNS_9AllocatorEh)"
    r"|_ZNK3c109Allocator(17default_copy_dataEPvPKvm|18is_simple_data_ptrERKNS_7DataPtrE)"
    r"|_ZTIN3c109AllocatorE"
)
FILES = [
    "sluiceway/_core.pyi",
    "sluiceway/_host_allocator.pyi",
    "sluiceway/py.typed",
    "sluiceway/configs/laptop_1b.yaml",
    "sluiceway/configs/shapes/llama_7b/config.json",
    "dist-info/licenses/LICENSE",
    "dist-info/licenses/THIRD_PARTY.md",
]
# Maps rows of THIRD_PARTY.md to names of pkg-config.
PACKAGES = {
    "Highway": "libhwy",
    "Eigen": "eigen3",
    "nlohmann-json": "nlohmann_json",
    "xxHash": "libxxhash",
    "liburing": "liburing",
}


def needed(binary: bytes) -> list[str]:
    """Return the shared libraries that a binary asks the loader for."""
    dynamic = ELFFile(io.BytesIO(binary)).get_section_by_name(".dynamic")
    return [tag.needed for tag in dynamic.iter_tags("DT_NEEDED")]


def complaints_about_libraries(wheel: zipfile.ZipFile, notices: str) -> list[str]:
    """Print where each library is loaded from; return those not allowed, or without a notice."""
    binaries = [n for n in wheel.namelist() if re.search(r"\.so(\.\d+)*$", n)]
    brought = {PurePath(n).name for n in binaries}
    loaded = {library for n in binaries for library in needed(wheel.read(n))}
    found = []
    if not any(PurePath(n).name.startswith("_core.") for n in binaries):
        found.append("no compiled module, expected sluiceway/_core")
    for library in sorted(loaded):
        print(f"  {library}: {'in the wheel' if library in brought else 'external'}")
        stem = re.split(r"-[0-9a-f]{8}\.|\.so", library)[0]
        if library in brought and f"`{stem}`" not in notices:
            found.append(
                f"{library}: in the wheel, but THIRD_PARTY.md has no notice of it; add one"
            )
        if library not in brought and not EXTERNAL.fullmatch(library):
            found.append(f"{library}: not in the wheel; put it there, or list it in EXTERNAL")
    return found


def complaints_about_symbols(wheel: zipfile.ZipFile) -> list[str]:
    """Return the symbols of libtorch that binaries ask for, but for those of allocators."""
    found = []
    for name in (n for n in wheel.namelist() if re.search(r"\.so(\.\d+)*$", n)):
        stem = PurePath(name).name.partition(".")[0]
        table = ELFFile(io.BytesIO(wheel.read(name))).get_section_by_name(".dynsym")
        asked = {s.name for s in table.iter_symbols() if s["st_shndx"] == "SHN_UNDEF"}
        of_torch = sorted(filter(OF_TORCH.search, asked))
        if stem == "_host_allocator":
            of_torch = [symbol for symbol in of_torch if not OF_ALLOCATORS.fullmatch(symbol)]
        found += [f"{stem}: asks torch for {s}, whose next version may lack it" for s in of_torch]
    return found


def version_here(library: str) -> str:
    """Return the version of a library that this machine compiles in."""
    if library == "PyTorch":
        return metadata.version("torch").partition("+")[0]
    if library == "CUDA-runtime":
        return runpy.run_path(str(metadata.distribution("torch").locate_file("torch/version.py")))[
            "cuda"
        ]
    if library == "pybind11":
        return metadata.version("pybind11")
    said = subprocess.run(
        ["pkg-config", "--modversion", PACKAGES[library]], capture_output=True, text=True
    )
    return said.stdout.strip()


def complaints_about_versions(notices: str) -> list[str]:
    """Return rows of THIRD_PARTY.md whose version is not the one compiled in here."""
    rows = re.findall(r"^\| ([\w-]+) \| (\d[\d.]*) \|", notices, re.MULTILINE)
    if not rows:
        return ["THIRD_PARTY.md: no row with a version"]
    versions = [(library, named, version_here(library)) for library, named in rows]
    return [
        f"THIRD_PARTY.md: {library} {named}, expected {here}"
        for library, named, here in versions
        if named != here
    ]


def main() -> int:
    """Check one wheel and return the exit status."""
    wheel = zipfile.ZipFile(sys.argv[1])
    names = wheel.namelist()
    found = [f"no {f}" for f in FILES if not any(n.endswith(f) for n in names)]
    page = [n for n in names if n.endswith("dist-info/licenses/THIRD_PARTY.md")]
    notices = wheel.read(page[0]).decode() if page else ""
    print(f"{PurePath(sys.argv[1]).name} loads")
    found += complaints_about_libraries(wheel, notices) + complaints_about_symbols(wheel)
    if "--built-here" in sys.argv:
        found += complaints_about_versions(notices)
    for complaint in found:
        print(f"wheel: {complaint}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
