"""Processes that form a process group of gloo, for tests: both the one that starts them, and they.

A script of ranks calls `run_cases(globals())` at its end. Its cases are its functions without
arguments; what one returns, or its error as text, is its outcome in that rank.
"""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist

LIMIT = datetime.timedelta(seconds=60)


def run_ranks(script: Path, folder: Path, ranks: int, cases: list[str]) -> list[dict[str, Any]]:
    """Run the cases in so many processes, and return the outcome of each case in each rank.

    A rank that a case ends has no outcome of it.
    """
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parent),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    jobs = [
        subprocess.Popen(
            [sys.executable, script, folder, str(ranks), str(rank), *cases],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )
        for rank in range(ranks)
    ]  # fmt: skip
    try:
        said = [job.communicate(timeout=300) for job in jobs]
    finally:
        for job in jobs:
            job.kill()
    assert all(job.returncode in (0, ENDED) for job in jobs), [err[-2000:] for _, err in said]
    return [dict(map(json.loads, out.splitlines())) for out, _ in said]


# ---- In a rank ----

ENDED = 17  # Exit code of a rank that a case ends.


class ThisRank:
    """The place of this process among the ranks, from its command line."""

    def __init__(self) -> None:
        folder, ranks, rank, *self.cases = sys.argv[1:]
        self.folder, self.ranks, self.rank = Path(folder), int(ranks), int(rank)
        self.case = ""

    def meet(self, limit: datetime.timedelta = LIMIT) -> None:
        """Make the process group of this case."""
        at = f"file://{self.folder}/{self.case}"
        dist.init_process_group("gloo", at, limit, world_size=self.ranks, rank=self.rank)

    def wait_for_all(self, what: str) -> None:
        """Wait for the others without a process group."""
        (self.folder / f"{self.case}.{what}.{self.rank}").touch()
        deadline = time.monotonic() + LIMIT.total_seconds()
        files = [self.folder / f"{self.case}.{what}.{other}" for other in range(self.ranks)]
        while not all(file.exists() for file in files):
            assert time.monotonic() < deadline, f"{self.case}: another rank did not come"
            time.sleep(0.01)

    def end(self) -> None:
        """End this process at once, in the middle of a case; the others do not wait for it."""
        (self.folder / f"{self.case}.end.{self.rank}").touch()
        os._exit(ENDED)

    def run_cases(self, functions: dict[str, Any]) -> None:
        """Run the cases of the command line, and print their outcomes."""
        for case in self.cases:
            self.case = case
            try:
                said = functions[self.case]()
            except Exception as error:
                said = f"{type(error).__name__}: {error}"
            print(json.dumps([self.case, "trained" if said is None else said]), flush=True)
            self.wait_for_all("end")  # One that leaves first would hang those that still connect.
            if dist.is_initialized():
                dist.destroy_process_group()
