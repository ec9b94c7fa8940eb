"""Start a run through the command line, and read the files of a run folder."""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from sluiceway.base.exit_codes import REFUSED

from experiments.harness import REPOSITORY

WARMUP_STEPS = 3  # The first steps allocate, so medians leave them out.


@dataclass(frozen=True)
class RunFolder:
    """Finished run: `metrics.jsonl`, `summary.json` and `trace.json` of a folder.

    Figures of speed leave out the first steps, and the first step of each turn.
    """

    path: Path
    turn_steps: int | None = None  # Steps of a turn, if the run took turns with others.

    @cached_property
    def lines(self) -> list[dict]:
        """Return every line of metrics.jsonl."""
        return [json.loads(line) for line in (self.path / "metrics.jsonl").open()]

    @cached_property
    def summary(self) -> dict:
        """Return the contents of summary.json."""
        return json.loads((self.path / "summary.json").read_text())

    @property
    def is_done(self) -> bool:
        """Tell whether the run exists and reached its last step."""
        summary = self.path / "summary.json"
        return summary.exists() and json.loads(summary.read_text())["status"] == "done"

    @cached_property
    def steps(self) -> list[dict]:
        """Return the lines that are steps; a line before the first step only carries a loss."""
        return [line for line in self.lines if line["step"] > 0 and line.get("seconds")]

    @property
    def timed(self) -> list[dict]:
        """Return the steps after the warm-up, without those that begin a turn."""
        late = self.steps[WARMUP_STEPS:] or self.steps
        if self.turn_steps is None:
            return late
        return [line for line in late if (line["step"] - 1) % self.turn_steps] or late

    @property
    def rounds(self) -> dict[int, list[float]]:
        """Return the seconds of timed steps by round, from 0; only for a run that took turns."""
        if self.turn_steps is None:
            raise ValueError(f"{self.path}: only a run that took turns has rounds")
        rounds: dict[int, list[float]] = {}
        for line in self.timed:
            rounds.setdefault((line["step"] - 1) // self.turn_steps, []).append(line["seconds"])
        return rounds

    @property
    def step_seconds(self) -> float:
        """Return the median seconds of a step."""
        return statistics.median(line["seconds"] for line in self.timed)

    @property
    def stall_share(self) -> float:
        """Return the share of the step time in which the device had nothing to run."""
        whole = sum(line["seconds"] for line in self.timed)
        return sum(line.get("stall_seconds") or 0.0 for line in self.timed) / whole

    def bytes_per_step(self, link: str) -> float:
        """Return the median bytes that crossed `link` (d2h or h2d) in a step."""
        return statistics.median((line.get("bytes") or {}).get(link, 0) for line in self.timed)

    def peak_bytes(self, tier: str) -> int:
        """Return the most bytes that a tier (device, host, pinned, process) ever held."""
        return max((line.get("peak_bytes") or {}).get(tier, 0) for line in self.steps)

    @property
    def evals(self) -> list[tuple[int, float]]:
        """Return (step, held-out loss) of every evaluation, in order."""
        return [(x["step"], x["eval_loss"]) for x in self.lines if x.get("eval_loss") is not None]

    @property
    def loss_before(self) -> float:
        """Return the held-out loss before the first step."""
        step, loss = self.evals[0]
        if step != 0:
            raise ValueError(f"{self.path}: first held-out loss is of step {step}, expected 0")
        return loss

    @property
    def loss_after(self) -> float:
        """Return the held-out loss after the last step."""
        return self.evals[-1][1]

    @cached_property
    def trace_events(self) -> list[dict]:
        """Return the events of trace.json."""
        trace = json.loads((self.path / "trace.json").read_text())
        return trace["traceEvents"] if isinstance(trace, dict) else trace


def as_override(value: object) -> str:
    """Write a value as the YAML that `--set a.b=` takes."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k}: {as_override(v)}" for k, v in value.items()) + "}"
    return "null" if value is None else str(value)


def link_overrides(gbps: float) -> dict[str, float]:
    """Throttle the link to one rate, both ways."""
    return {"device.link.d2h_gbps": gbps, "device.link.h2d_gbps": gbps}


def planned(config: Path, overrides: Mapping[str, object]) -> dict:
    """Run `sluiceway plan` and return its result, whether or not the run fits."""
    command = [sys.executable, "-m", "sluiceway", "plan", str(config), "--json"]
    for key, value in overrides.items():
        command += ["--set", f"{key}={as_override(value)}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, check=False)
    if done.returncode not in (0, REFUSED):
        sys.exit(done.stderr)
    return json.loads(done.stdout)


def clear(folder: Path) -> None:
    """Remove an earlier run; a folder that holds anything else stays."""
    if (folder / "config.yaml").exists():
        shutil.rmtree(folder)


def train_command(
    config: Path, folder: Path, overrides: Mapping[str, object], python: str = sys.executable
) -> list[str]:
    """Return `sluiceway train` as a command, after removing an earlier run in the folder."""
    clear(folder)
    command = [python, "-m", "sluiceway", "train", str(config), "--out", str(folder)]
    for key, value in overrides.items():
        command += ["--set", f"{key}={as_override(value)}"]
    return command


def train(
    config: Path,
    folder: Path,
    overrides: Mapping[str, object],
    log: Path | None = None,
    *,
    python: str = sys.executable,
    checkout: Path = REPOSITORY,
    environment: Mapping[str, str] | None = None,
) -> RunFolder:
    """Run `sluiceway train` in its own process; with `log` its output goes there.

    The run replaces an earlier run in the folder. `python`, `checkout` and `environment` belong to
    the package to run; paths in the config are relative to `checkout`.
    """
    command = train_command(config, folder, overrides, python)
    if log is None:
        subprocess.run(command, check=True, cwd=checkout, env=environment)
    else:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("w") as sink:
            subprocess.run(
                command, check=True, cwd=checkout, env=environment, stdout=sink, stderr=sink
            )
    return RunFolder(folder)
