"""Run one side as a child process: start it, read its events, stop or kill it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

# The same for every side. Spinning threads of torch take the cores from threads that read and
# write, and freed blocks that glibc keeps are memory that no side needs.
ENVIRONMENT = {
    "OMP_WAIT_POLICY": "passive",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 20),
    "MALLOC_ARENA_MAX": "2",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


class Child:
    """One process of one_run.py.

    Parameters
    ----------
    side, size : str
        Side that trains, and the model's size.
    steps : int
        Total steps, including those before a resume.
    folder : pathlib.Path
        Folder on the disk to use.
    packages : pathlib.Path
        Folder that DeepSpeed was installed into.
    tuning : dict
        Settings of the side; its `environment` overrides the common one.
    options : str
        More words of the command line.
    """

    def __init__(
        self,
        side: str,
        size: str,
        steps: int,
        folder: Path,
        packages: Path,
        tuning: dict,
        *options: str,
    ) -> None:
        tuning = dict(tuning)
        own = tuning.pop("environment", {})
        command = [sys.executable, "-m", "experiments.peers.one_run", side, "--size", size,
                   "--steps", steps, "--folder", folder, "--tuning", json.dumps(tuning),
                   *options]  # fmt: skip
        path = os.environ.get("PYTHONPATH")
        path = os.pathsep.join(filter(None, [str(packages), path]))
        environment = os.environ | ENVIRONMENT | own | {"PYTHONPATH": path}
        self._names = {str(folder): "FOLDER", str(packages): "PACKAGES"}
        self._log = folder.with_name(folder.name + ".log")
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("w") as log:
            self._popen = subprocess.Popen(
                [str(word) for word in command],
                stdout=subprocess.PIPE,
                stderr=log,
                env={name: value for name, value in environment.items() if value is not None},
                text=True,
            )
        self.seen: list[dict] = []

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *error: object) -> None:
        if self._popen.poll() is None:
            self.signal(signal.SIGKILL)

    def events(self) -> Iterator[dict]:
        """Yield the child's events until it ends."""
        for line in self._popen.stdout:
            self.seen.append(json.loads(line))
            yield self.seen[-1]
        self._popen.wait()

    def finish(self) -> int:
        """Read on to the end of the run; return its exit status."""
        for _ in self.events():
            pass
        return self._popen.returncode

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; if it ends the run, wait for the end."""
        self._popen.send_signal(number)
        if number == signal.SIGKILL:
            self.finish()

    def last_words(self) -> str:
        """Return the last line that the run wrote for people, without its place in a file."""
        text = self._log.read_text(errors="replace")
        for place, name in self._names.items():
            text = text.replace(place, name)
        lines = [line for line in text.splitlines() if line.strip()]
        return lines[-1] if lines else ""

    @property
    def losses(self) -> dict[int, float]:
        """Loss of every step."""
        return {e["step"]: e["loss"] for e in self.seen if e["event"] == "step"}

    def told(self, event: str) -> dict | None:
        """Return the first event of a kind; None if there is none."""
        return next((e for e in self.seen if e["event"] == event), None)


def figures(events: list[dict], steps: int, warmup: int) -> dict:
    """Figures of an undisturbed run that are compared.

    Parameters
    ----------
    events : list of dict
        All events of the run.
    steps, warmup : int
        Steps of the run in total, and those that are not counted.
    """
    ready, warm, done = (
        next(e for e in events if e["event"] == kind) for kind in ("ready", "warm", "done")
    )
    counted, parameters = steps - warmup, ready["parameters"]
    return {
        "parameters": parameters,
        "start_bytes": ready["before"],
        "peak_bytes": max(e["peak"] for e in events if "peak" in e) - ready["before"],
        "steady_peak_bytes": done["peak"] - ready["before"],
        "locked_bytes": max(e["locked"] for e in events if "locked" in e),
        "buffer_bytes": done["buffers"],
        "room_bytes": done["room"],
        "start_seconds": ready["seconds"],
        "seconds": (done["at"] - warm["at"]) / counted,
        "read": (done["read"] - warm["read"]) / counted / parameters,
        "written": (done["written"] - warm["written"]) / counted / parameters,
        "losses": [e["loss"] for e in events if e["event"] == "step"],
    }


def undisturbed(side: str, size: str, steps: int, folder: Path, packages: Path, tuning: dict,
                *options: str, warmup: int = 2) -> dict:  # fmt: skip
    """Run a side to its end in an empty folder, remove the folder, and return the figures."""
    shutil.rmtree(folder, ignore_errors=True)
    child = Child(side, size, steps, folder, packages, tuning, "--warmup", str(warmup), *options)
    status = child.finish()
    shutil.rmtree(folder, ignore_errors=True)
    if status:
        raise RuntimeError(f"{side}, {size}: exit status {status}: {child.last_words()}")
    return figures(child.seen, steps, warmup)
