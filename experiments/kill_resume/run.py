"""Kill `sluiceway train` at 20 random moments, resume each time, and compare the final weights.

    python -m experiments.kill_resume.run [--kills 20] [--engine subspace] [--seed 0]

Writes results.json beside itself. For each engine it lists the kills (their kind, their step, and
whether they left a half-written save), and says whether weights and all losses equal those of an
undisturbed run. Every command is a separate process, started as a user would start it; device
host, one torch thread.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from experiments.harness import REPOSITORY, write_rows
from experiments.kill_resume.kills import kill_often, loss_lines, weights_hash

RESULTS = Path(__file__).parent / "results.json"
STEPS, SAVE_EVERY = 100, 4


@dataclass
class Ended:
    """A command that has ended, in the form that kill_often needs."""

    code: int
    err: str


CORES = {"codec": "block_random"}  # So that links and the host take part in the step.


class Running:
    """A command that is running."""

    def __init__(
        self,
        arguments: list[str],
        python: str = sys.executable,
        folder: Path = REPOSITORY,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._popen = subprocess.Popen(
            [python, "-m", "sluiceway", *arguments],
            cwd=folder,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.pid = self._popen.pid

    def is_running(self) -> bool:
        """Tell whether the command still runs."""
        return self._popen.poll() is None

    def wait(self) -> Ended:
        """Wait until the command ends."""
        _, err = self._popen.communicate()
        return Ended(self._popen.returncode, err)


def start(*arguments: object) -> Running:
    """Start `sluiceway` with these arguments."""
    return Running([str(a) for a in arguments])


def write_config(path: Path, engine: dict, steps: int = STEPS) -> Path:
    """Write the quickstart's config with few steps, frequent saves and one thread."""
    import yaml

    tree = yaml.safe_load((REPOSITORY / "configs" / "quickstart.yaml").read_text())
    tree["train"] |= {
        "steps": steps,
        "save_every": SAVE_EVERY,
        "eval_every": 20,
        "eval_sequences": 8,
        "micro_batch": 1,
        "accumulate": 2,
    }
    tree["device"] |= {"pin": False, "link": {"d2h_gbps": 1.0, "h2d_gbps": 1.0, "latency_us": 10}}
    tree["engine"] = {**CORES, **engine} if engine["kind"] == "subspace" else engine
    path.write_text(yaml.safe_dump(tree))
    return path


def measure(engine: dict, kills: int, seed: int) -> dict:
    """Compare a whole run with a killed one for one engine."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = write_config(folder / "run.yaml", engine)
        whole, killed = folder / "whole", folder / "killed"
        ended = start("train", config, "--out", whole).wait()
        if ended.code != 0:
            raise SystemExit(f"{engine}: train ended with {ended.code}: {ended.err}")
        summary = json.loads((whole / "summary.json").read_text())
        span = 2 * SAVE_EVERY * summary["median_step_seconds"]
        record = kill_often(start, config, killed, kills, span, random.Random(seed))
        return {
            "engine": engine,
            "steps": STEPS,
            "kills": record,
            "same_weights": weights_hash(killed) == weights_hash(whole),
            "same_losses": loss_lines(killed) == loss_lines(whole),
            "weights_sha256": weights_hash(whole),
        }


def main() -> None:
    """Measure each requested engine, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", nargs="+", default=["native", "subspace"])
    args = parser.parse_args()
    runs = []
    for kind in args.engine:
        runs.append(measure({"kind": kind}, args.kills, args.seed))
        one = runs[-1]
        saving = sum(kill["in_save"] for kill in one["kills"])
        print(
            f"{kind}: {len(one['kills'])} kills, {saving} of them in a save; "
            f"same weights: {one['same_weights']}, same losses: {one['same_losses']}",
            flush=True,
        )
    write_rows(RESULTS, runs, seed=args.seed)
    if not all(run["same_weights"] and run["same_losses"] for run in runs):
        raise SystemExit("the bits differ")


if __name__ == "__main__":
    main()
