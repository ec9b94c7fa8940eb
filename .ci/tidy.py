"""Run clang-tidy over the sources that a build folder compiles: `.ci/tidy.py BUILD_DIR JOBS`.

The script leaves out the bindings, which hold little logic. It leaves out tests too, because the
findings about GoogleTest's macros and about loops that grow a vector are not worth ten seconds
a file.

The static analyzer reads each source alone. The other checks spend their time in headers of the
standard library, so they read the sources of one target as one file, which includes them. If they
find anything there (two names that clash in unnamed namespaces, say), they read each source alone
as well, and only those findings count. All checks read each of two kinds of sources once and alone:
programs of experiments/, which share names, and sources that highway compiles several times.
"""

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

AT_ONCE = 8  # Sources in a group; more save little, and leave a core without work at the end.

# Highway compiles a source once for each instruction set. Together the lowest and the highest take
# both branches of every `#if` on the instruction set.
INSTRUCTION_SETS = ('HWY_DISABLED_TARGETS="(', 'HWY_DISABLED_TARGETS="(HWY_SSE4|HWY_AVX2|')

# Checks to subtract from those that .clang-tidy names.
ALL, ANALYZER, OTHERS = "", "-bugprone-*,-performance-*,-readability-*", "-clang-analyzer-*"

# Headers of .clang-tidy's filter, and sources, which a group includes like headers.
FINDINGS_IN = r"/(kernels|compress|runtime|python|tests|experiments)/[^.]*\.(h|cuh|cpp)$"


def sources(build: Path) -> list[dict[str, str]]:
    """Return the entries of the build's compile_commands.json that the checks read."""
    entries = json.loads((build / "compile_commands.json").read_text())
    return [
        {**entry, "command": entry["command"].replace(*INSTRUCTION_SETS)}
        for entry in entries
        if "/torch/include" not in entry["command"]
        and not os.path.relpath(entry["file"]).startswith("tests/")
    ]


def grouped(entries: list[dict[str, str]], folder: Path) -> dict[str, list[str]]:
    """Write files that include sources of equal flags; return the sources of each file."""
    by_flags: dict[str, list[dict[str, str]]] = {}
    for entry in entries:
        source = Path(entry["file"])
        alone = "/experiments/" in entry["file"] or "foreach_target.h" in source.read_text()
        flags = re.sub(r" -o \S+ -c \S+$", "", entry["command"])
        by_flags.setdefault(entry["file"] if alone else flags, []).append(entry)
    commands, groups = list(entries), {}
    for same in by_flags.values():
        for start in range(0, len(same), AT_ONCE):
            some = same[start : start + AT_ONCE]
            files = [entry["file"] for entry in some]
            if len(files) == 1:
                groups[files[0]] = files
                continue
            group = folder / f"group_{len(groups)}.cpp"
            lines = (
                f'#include "{file}"  // NOLINT(bugprone-suspicious-include)\n' for file in files
            )
            group.write_text("".join(lines))
            groups[str(group)] = files
            command = some[0]["command"].replace(files[0], str(group))
            commands.append({**some[0], "command": command, "file": str(group)})
    (folder / "compile_commands.json").write_text(json.dumps(commands))
    return groups


def findings(file: str, folder: Path, checks: str) -> str:
    """Findings of clang-tidy in one file; empty if there are none."""
    command = ["clang-tidy", "-p", str(folder), "--quiet", f"--header-filter={FINDINGS_IN}"]
    done = subprocess.run(
        [*command, f"--checks={checks}", file],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=False,
    )
    failure = f"{file}: clang-tidy ended with {done.returncode}\n" if done.returncode else ""
    return done.stdout or failure


def main() -> int:
    """Print all findings, and return the exit status."""
    build, jobs = Path(sys.argv[1]).resolve(), int(sys.argv[2])
    folder = build / "tidy"
    folder.mkdir(exist_ok=True)
    groups = grouped(sources(build), folder)

    def read_group(group: str) -> str:
        if groups[group] == [group]:
            return findings(group, folder, ALL)
        if not findings(group, folder, OTHERS):
            return ""
        return "".join(findings(file, folder, OTHERS) for file in groups[group])

    shared = [file for group, files in groups.items() if files != [group] for file in files]
    with ThreadPoolExecutor(jobs) as pool:
        of_groups = pool.map(read_group, groups)
        of_analyzer = pool.map(lambda file: findings(file, folder, ANALYZER), shared)
        found = "".join([*of_groups, *of_analyzer])
    print(found, end="")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
