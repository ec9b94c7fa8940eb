"""Build two commits side by side, each with a checkout and environment of its own."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.quickstart.run_folder import RunFolder, link_overrides, train, train_command

REPOSITORY = Path(__file__).resolve().parents[2]
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Side:
    """A commit that is checked out, built and installed."""

    name: str  # The name of the side: old or new.
    ref: str
    commit: str
    checkout: Path
    python: Path

    @property
    def environment(self) -> dict[str, str]:
        """Environment of all commands of this side."""
        return {**os.environ, **ONE_THREAD}

    def train(
        self, folder: Path, overrides: Mapping[str, object], link_gbps: float, log: Path
    ) -> RunFolder:
        """Run the side's own quickstart through its command line, over a link of fixed rate."""
        return train(
            self.checkout / "configs/quickstart.yaml",
            folder,
            {**overrides, **link_overrides(link_gbps)},
            log,
            python=str(self.python),
            checkout=self.checkout,
            environment=self.environment,
        )

    def start(
        self, folder: Path, overrides: Mapping[str, object], link_gbps: float, log: Path
    ) -> subprocess.Popen:
        """Start the command that `train` runs to its end."""
        log.parent.mkdir(parents=True, exist_ok=True)
        command = train_command(
            self.checkout / "configs/quickstart.yaml",
            folder,
            {**overrides, **link_overrides(link_gbps)},
            str(self.python),
        )
        with log.open("w") as sink:
            return subprocess.Popen(
                command, cwd=self.checkout, env=self.environment, stdout=sink, stderr=sink
            )

    def described(self) -> dict[str, str]:
        """Description of the side in a JSON file of results."""
        return {"ref": self.ref, "commit": self.commit}


def output_of(command: list[str], folder: Path, environment: dict[str, str] | None = None) -> str:
    """Run a command and return its output; exit with 2 if it fails, as 1 means a difference."""
    done = subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode != 0:
        print(f"{' '.join(command)}: ended with {done.returncode}, expected 0", file=sys.stderr)
        raise SystemExit(2)
    return done.stdout.strip()


def git(*arguments: str) -> str:
    """Run git in this repository."""
    return output_of(["git", *arguments], REPOSITORY)


def make_environment(folder: Path) -> Path:
    """Make an environment that sees this interpreter's packages, but not its editable ones."""
    output_of([sys.executable, "-m", "venv", "--without-pip", str(folder)], REPOSITORY)
    site = next(folder.glob("lib/python3*/site-packages"))
    shared = [path for path in sys.path if path.endswith("-packages")]
    (site / "packages.pth").write_text("".join(f"{path}\n" for path in shared))
    return folder / "bin" / "python"


def install(python: Path, checkout: Path) -> None:
    """Build the compiled module and install the package; ccache helps with equal objects."""
    environment = {**os.environ, "CCACHE_NOHASHDIR": "1", "CCACHE_BASEDIR": str(checkout)}
    pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    flags = ["--no-build-isolation", "--no-deps", "--ignore-installed"]
    output_of([*pip, *flags, str(checkout)], checkout, environment)
    where = "import torch, sluiceway as s, sluiceway._core as c; print(s.__file__, c.__file__)"
    found, own = output_of([str(python), "-c", where], checkout).split(), str(python.parent.parent)
    if not all(path.startswith(own) for path in found):
        print(f"{checkout}: imports {found}, expected both from {own}", file=sys.stderr)
        raise SystemExit(2)


def prepare(name: str, ref: str, folder: Path) -> Side:
    """Check out and build a commit, or reuse an earlier call's build of that commit."""
    commit = git("rev-parse", "--verify", f"{ref}^{{commit}}")
    checkout, environment = folder / name / "checkout", folder / name / "environment"
    built = folder / name / "built"
    if built.exists() and built.read_text() == commit:
        return Side(name, ref, commit, checkout, environment / "bin" / "python")
    remove(folder / name)
    print(f"{name}: building {commit[:12]} ({ref})", flush=True)
    git("worktree", "add", "--quiet", "--detach", "--force", str(checkout), commit)
    python = make_environment(environment)
    install(python, checkout)
    built.write_text(commit)
    return Side(name, ref, commit, checkout, python)


def remove(folder: Path) -> None:
    """Remove a side, and git's record of its checkout."""
    shutil.rmtree(folder, ignore_errors=True)
    git("worktree", "prune")


@contextlib.contextmanager
def both_sides(old: str, new: str, keep: Path | None) -> Iterator[tuple[Path, Side, Side]]:
    """Yield a folder and both commits built in it; then remove the folder unless it is `keep`."""
    folder = Path(tempfile.mkdtemp(prefix="same_bits_")) if keep is None else keep.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield folder, prepare("old", old, folder), prepare("new", new, folder)
    finally:
        if keep is None:
            remove(folder)


def machine() -> dict[str, Any]:
    """Describe the machine properties that bits depend on."""
    import torch
    from sluiceway.machine.placement import processor_name

    return {
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
