"""Make the files of a release, in dist/VERSION; `make release VERSION=1.2.3` runs it.

The script sets the version where the tree has it, and dates the changelog's section. Then it makes
the archive of the sources and, from that, a wheel for each Python that is here; it checks their
content, and lists in CycloneDX's format what is compiled in. It commits, tags and uploads nothing:
its last lines name the commands. If anything fails, the tree is as it was before.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSION = re.compile(r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?")
# Each file that has the version, with what stands before and after it.
PLACES = {
    "pyproject.toml": ('\nversion = "', '"\n'),
    "python/sluiceway/__init__.py": ('\n__version__ = "', '"\n'),
}
CHANGELOG, UNRELEASED = "CHANGELOG.md", "## Unreleased\n"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
IN_SOURCES = ("CMakeLists.txt", "LICENSE", "THIRD_PARTY.md", "configs/laptop_1b.yaml",
              "kernels/CMakeLists.txt", "python/sluiceway/__init__.py")  # fmt: skip


def fail(text: str) -> None:
    """End with a message."""
    sys.exit(f"release: {text}")


def run(*command: object) -> str:
    """Run a command; return what it prints, or end with its error."""
    done = subprocess.run([*map(str, command)], text=True, stdout=subprocess.PIPE, cwd=ROOT)
    if done.returncode:
        fail(f"ended with {done.returncode}: {' '.join(map(str, command))}\n{done.stdout}")
    return done.stdout


def version_in(text: str, name: str) -> str:
    """Return the version that a file has."""
    before, after = PLACES[name]
    return text.partition(before)[2].partition(after)[0]


def with_version(text: str, name: str, version: str) -> str:
    """Return the text of a file with another version."""
    before, after = PLACES[name]
    head, found, tail = text.partition(before)
    if not found:
        fail(f"{name}: no {before.strip()}; say in .ci/release.py where its version is")
    return head + before + version + after + tail.partition(after)[2]


def dated(changelog: str, version: str, day: datetime.date) -> str:
    """Return the changelog with a version and a date over what was not released yet."""
    head, found, tail = changelog.partition(UNRELEASED)
    if not found or not tail.partition("\n## ")[0].strip():
        fail(f"{CHANGELOG}: nothing below {UNRELEASED.strip()}; say there what has changed")
    return f"{head}{UNRELEASED}\n## {version} ({day.isoformat()})\n{tail}"


def components(notices: str) -> list[dict]:
    """Return what THIRD_PARTY.md says is compiled in, as components of CycloneDX."""
    row = r"^\| ([\w-]+) \| (\d[\d.]*) \| ([^|]+) \| ([^|]+) \|$"
    rows = re.findall(row, notices, re.MULTILINE)
    if not rows:
        fail("THIRD_PARTY.md: no row with a version")
    return [
        {
            "type": "library",
            "name": name,
            "version": version,
            "purl": f"pkg:generic/{name.lower()}@{version}",
            # Names of SPDX have no space.
            "licenses": [{"license": {"name" if " " in licence else "id": licence}}],
            "description": held,
        }
        for name, version, licence, held in rows
    ]


def bill_of_materials(version: str, notices: str) -> dict:
    """Return the list of what is compiled in, in CycloneDX's format, version 1.6."""
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "name": "sluiceway",
                "version": version,
                "purl": f"pkg:pypi/sluiceway@{version}",
            }
        },
        "components": components(notices),
    }


def pythons() -> dict[str, Path]:
    """Return the interpreters that are here and have headers, by version."""
    asked = "import sys, sysconfig; print(sys.executable, sysconfig.get_path('include'), sep='\\n')"
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = {}
    for version in PYTHONS:
        for candidate in (shutil.which(f"python{version}"),
                          *pyenv.glob(f"{version}.*/bin/python")):  # fmt: skip
            said = candidate and subprocess.run(
                [candidate, "-c", asked], capture_output=True, text=True
            )
            if said and said.returncode == 0:
                executable, include = said.stdout.split("\n")[:2]
                if (Path(include) / "Python.h").exists():
                    found[version] = Path(executable)
                    break
    return found


def make_sources(out: Path) -> Path:
    """Make the archive of the sources, and unpack it into build/release/sources."""
    code = "import sys; from scikit_build_core.build import build_sdist as b; print(b(sys.argv[1]))"
    run(sys.executable, "-c", code, out)
    (archive,) = out.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        names = [name.partition("/")[2] for name in tar.getnames()]
        tar.extractall(ROOT / "build/release", filter="data")
    missing = [name for name in IN_SOURCES if name not in names]
    if missing:
        fail(f"{archive.name}: lacks {', '.join(missing)}")
    sources = ROOT / "build/release/sources"
    (ROOT / "build/release" / archive.name.removesuffix(".tar.gz")).rename(sources)
    return sources


def make_wheel(python: Path, version: str, sources: Path, out: Path) -> None:
    """Build a wheel for one Python, which borrows the packages of this one, and check it."""
    place = ROOT / "build/release" / f"python{version}"
    run(python, "-m", "venv", place)
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(run(place / "bin/python", "-c", where).strip())
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    made = place / "dist"
    options = [f"WHEEL_PY={place}/bin/python", f"SOURCES={sources}", f"DIST={made}",
               f"OBJECTS={place}/objects"]  # fmt: skip
    done = subprocess.run(["make", "--no-print-directory", "wheel", *options], cwd=ROOT)
    if done.returncode:
        fail(f"no wheel for Python {version}; the reason is above")
    (wheel,) = made.glob("*.whl")
    run(sys.executable, ".ci/wheel_contents.py", wheel, "--built-here")
    shutil.copy(wheel, out)


def make_files(version: str) -> list[Path]:
    """Make all files of a release in dist/VERSION."""
    out = ROOT / "dist" / version
    for folder in (out, ROOT / "build/release"):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    bill = out / f"sluiceway-{version}.cdx.json"
    notices = (ROOT / "THIRD_PARTY.md").read_text()
    bill.write_text(json.dumps(bill_of_materials(version, notices), indent=1) + "\n")
    sources = make_sources(out)
    for number, python in pythons().items():
        print(f"release: wheel for Python {number}", flush=True)
        make_wheel(python, number, sources, out)
    return sorted(out.iterdir())


def main() -> None:
    """Make a release of the version on the command line."""
    version = sys.argv[1] if len(sys.argv) > 1 else ""
    before = {name: (ROOT / name).read_text() for name in (*PLACES, CHANGELOG)}
    now = version_in(before["pyproject.toml"], "pyproject.toml")
    if not VERSION.fullmatch(version):
        fail(f"version is {version!r}, expected one such as 1.2.3 or 1.2.3rc1 (it is {now} now); "
             "run make release VERSION=1.2.3")  # fmt: skip
    if run("git", "status", "--porcelain"):
        fail("the tree has changes that are not committed; commit or drop them")
    after = {name: with_version(before[name], name, version) for name in PLACES}
    after[CHANGELOG] = dated(before[CHANGELOG], version, datetime.date.today())
    try:
        for name, text in after.items():
            (ROOT / name).write_text(text)
        files = make_files(version)
    except BaseException:
        for name, text in before.items():
            (ROOT / name).write_text(text)
        raise
    for file in files:
        print(f"{file.stat().st_size:>12,}  {file.relative_to(ROOT)}")
    print(f"Look at git diff, then: git commit -am 'Release {version}' && git tag v{version}\n"
          f"and upload: twine upload dist/{version}/*.whl dist/{version}/*.tar.gz")  # fmt: skip


if __name__ == "__main__":
    main()
