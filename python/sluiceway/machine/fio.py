"""Disk rates of a file that we made, measured with `fio`, the common benchmark.

fio allocates its own memory and does not ask for huge pages.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence

from sluiceway.errors import Unavailable

_MODES = {"read": "read", "write": "write", "both": "rw"}
_PATIENCE = 60.0  # Seconds that fio may take longer than it was asked to.


def fio_rates(
    path: str, mixes: Sequence[str], engine: str, size: int, block: int, depth: int, direct: bool,
    seconds: float
) -> dict[str, dict[str, float]]:  # fmt: skip
    """Measure an existing file; return `gbps`, `bytes` and `processor_s_per_gb` for each mix.

    Parameters
    ----------
    engine : str
        io_uring or libaio.

    Raises
    ------
    sluiceway.errors.Unavailable
        fio is not installed or failed; the text has the reason.
    """
    fio = shutil.which("fio")
    if fio is None:
        raise Unavailable("fio is not installed")
    options = {
        "filename": path,
        "size": size,
        "bs": block,
        "iodepth": depth,
        "ioengine": engine,
        "direct": int(direct),
        "runtime": f"{round(1e3 * seconds)}ms",
    }
    command = [fio, "--name=sluiceway", "--output-format=json", "--thread", "--time_based"]
    command += ["--end_fsync=1", "--fallocate=none", *(f"--{k}={v}" for k, v in options.items())]
    return {mix: _job([*command, f"--rw={_MODES[mix]}"], seconds) for mix in mixes}


def _job(command: list[str], seconds: float) -> dict[str, float]:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, close_fds=False, timeout=seconds + _PATIENCE
        )
        job = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]
    except (OSError, subprocess.SubprocessError, ValueError, LookupError) as error:
        raise Unavailable(f"fio did not answer ({type(error).__name__})") from None
    count = sum(job[way]["io_bytes"] for way in ("read", "write"))
    if done.returncode != 0 or count == 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise Unavailable(f"fio failed: {lines[-1]}")
    spent = max(job[way]["runtime"] for way in ("read", "write")) / 1e3
    busy = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1e3
    return {"gbps": count / spent / 1e9, "bytes": count, "processor_s_per_gb": busy / count * 1e9}
