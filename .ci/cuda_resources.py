"""Check the kernels that nvcc compiled: .ci/cuda_resources.py BUILD_DIR

No kernel may keep anything in local memory: neither spilled registers, nor arrays that it indexes
at run time. Each kernel that cuda_resources.txt lists with LDG.E.128 must load 16 bytes at once.
The list names every kernel, so that somebody thinks about each new one.

Exit status: 0; 1 if a kernel breaks a rule; 77 if there is no cuobjdump.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

LIST = Path(__file__).with_suffix(".txt")
VECTOR_LOAD = "LDG.E.128"
NOT_RUN = 77


def find_cuobjdump() -> str:
    """Return the cuobjdump of the toolkit, or of triton's wheel."""
    found = shutil.which("cuobjdump")
    if found:
        return found
    wheel = Path("triton/backends/nvidia/bin/cuobjdump")
    for folder in [Path(p) for p in sys.path if p.endswith("-packages")]:
        if (folder / wheel).exists():
            return str(folder / wheel)
    print("cuda_resources: no cuobjdump on PATH; install the CUDA toolkit or triton's wheel")
    sys.exit(NOT_RUN)


def dump(tool: str, option: str, file: Path) -> str:
    command = [tool, option, str(file)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def short_names(symbols: set[str]) -> dict[str, str]:
    """Return the short name of each symbol, such as `adam_pass` for all its instances."""
    ordered = sorted(symbols)
    text = subprocess.run(
        ["c++filt"], input="\n".join(ordered), check=True, capture_output=True, text=True
    ).stdout
    names = {}
    for symbol, full in zip(ordered, text.splitlines(), strict=True):
        plain = full.replace("(anonymous namespace)", "")
        names[symbol] = re.split(r"[<(]", plain)[0].split("::")[-1].split(" ")[-1]
    return names


# Identity of a kernel: its architecture and its symbol.
Kernel = tuple[str, str]


def by_architecture(text: str) -> list[tuple[str, str]]:
    """Split a dump into parts, each with its architecture."""
    parts = re.split(r"^arch = (\S+)$", text, flags=re.MULTILINE)
    return list(zip(parts[1::2], parts[2::2], strict=True))


def local_bytes(text: str) -> dict[Kernel, int]:
    kernel = re.compile(r"Function (\S+):\s*\n\s*REG:\d+ STACK:(\d+) SHARED:\d+ LOCAL:(\d+)")
    return {
        (architecture, symbol): int(stack) + int(local)
        for architecture, part in by_architecture(text)
        for symbol, stack, local in kernel.findall(part)
    }


def with_vector_loads(text: str) -> set[Kernel]:
    return {
        (architecture, body.split(maxsplit=1)[0])
        for architecture, part in by_architecture(text)
        for body in re.split(r"^\s*Function : ", part, flags=re.MULTILINE)[1:]
        if VECTOR_LOAD in body
    }


def expectations() -> dict[str, bool]:
    """Return for each kernel whether it must load 16 bytes at once."""
    wanted = {}
    for line in LIST.read_text().splitlines():
        words = line.split("#")[0].split()
        if words:
            wanted[words[0]] = words[1:] == [VECTOR_LOAD]
    return wanted


def main(build: Path) -> None:
    tool, wanted, failures = find_cuobjdump(), expectations(), []
    local: dict[Kernel, int] = {}
    vector: set[Kernel] = set()
    for compiled in sorted(build.glob("**/sluiceway_*.dir/**/*.cu.o")):
        for kernel, size in local_bytes(dump(tool, "--dump-resource-usage", compiled)).items():
            local[kernel] = max(size, local.get(kernel, 0))
        vector |= with_vector_loads(dump(tool, "-sass", compiled))
    names = short_names({symbol for _, symbol in local})
    for (architecture, symbol), size in sorted(local.items()):
        name, which = names[symbol], f"({architecture}, {symbol})"
        if size != 0:
            failures.append(f"{name} keeps {size} bytes in local memory, expected 0 {which}")
        if name not in wanted:
            failures.append(f"{name} is not in {LIST.name}; add a line for it")
        elif wanted[name] and (architecture, symbol) not in vector:
            failures.append(f"{name} has no {VECTOR_LOAD}, expected one {which}")
    failures += [
        f"{name} is in {LIST.name}, but was not built; remove its line"
        for name in wanted.keys() - names.values()
    ]
    if failures:
        sys.exit("cuda_resources: " + "\ncuda_resources: ".join(sorted(set(failures))))
    architectures = ", ".join(sorted({architecture for architecture, _ in local}))
    print(
        f"cuda_resources: {len(names)} kernels of {len(wanted)} names for {architectures}, "
        "LOCAL 0 in all"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
