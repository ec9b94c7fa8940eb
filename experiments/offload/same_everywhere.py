"""Compare one fine-tune with states in host memory, in files by both backends, and on a device.

    python -m experiments.offload.same_everywhere FOLDER [--steps N]

Runs configs/quickstart_offload_disk.yaml on real text in FOLDER, once for each place and way of
training. Compares losses and final weights bit by bit, and writes same_everywhere.json. The block
device is a loop device over a file in FOLDER. Only root can make one; without root that place is
left out.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from experiments.harness import REPOSITORY, write_rows
from experiments.quickstart.run_folder import RunFolder, train

CONFIG = REPOSITORY / "configs/quickstart_offload_disk.yaml"
RESULTS = Path(__file__).with_name("same_everywhere.json")
DEVICE_BYTES = 1 << 30
WAYS = {
    "clipped": {"train.max_norm": 0.2},
    "accumulated, clipped": {
        "train.max_norm": 0.2, "train.micro_batch": 1, "train.accumulate": 4,
    },
    "not clipped": {"train.max_norm": None},
}  # fmt: skip


@contextmanager
def loop_device(folder: Path) -> Iterator[str | None]:
    """Yield a block device over a file of zeros; None if the system allows none."""
    image = folder / "image"
    with image.open("wb") as file:
        file.truncate(DEVICE_BYTES)
    command = ["losetup", "-f", "--show", str(image)]
    path = {**os.environ, "PATH": os.environ["PATH"] + ":/sbin:/usr/sbin"}
    made = subprocess.run(command, check=False, capture_output=True, text=True, env=path)
    device = made.stdout.strip() if made.returncode == 0 else None
    try:
        yield device
    finally:
        if device is not None:
            subprocess.run(["losetup", "-d", device], check=True, env=path)
        image.unlink()


def places(folder: Path) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield names and config changes for the places of states."""
    yield "host memory", {"engine.tier": "host"}
    yield "file, posix", {"store.io": "posix"}
    yield "file, uring", {"store.io": "uring"}
    with loop_device(folder) as device:
        if device is not None:
            yield "loop device", {"store.io": "block", "store.path": device}


def digest(run: RunFolder) -> str:
    """Hash the final weights, and the loss and norm of every step."""
    found = hashlib.sha256((run.path / "checkpoint" / "model.safetensors").read_bytes())
    for line in run.lines:
        found.update(
            repr([line.get(k) for k in ("step", "loss", "grad_norm", "eval_loss")]).encode()
        )
    return found.hexdigest()


def main() -> None:
    """Run all, compare, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder on the disk to use, 2 GiB")
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    rows, differ = [], 0
    for way, options in WAYS.items():
        expected = None
        for place, where in places(args.folder):
            overrides = {"train.steps": args.steps, **options, **where}
            run = train(CONFIG, args.folder / "run", overrides, args.folder / "log")
            found = digest(run)
            expected = expected or found
            differ += found != expected
            clipped = sum((line.get("grad_norm") or 0) > (options["train.max_norm"] or 1e9)
                          for line in run.steps)  # fmt: skip
            rows.append({"way": way, "place": place, "steps": len(run.steps), "clipped": clipped,
                         "loss_after": run.loss_after, "digest": found,
                         "same": found == expected})  # fmt: skip
            print(f"{way:22} {place:12} {clipped:3d} clipped  {run.loss_after:.6f}  {found[:16]}",
                  "same" if found == expected else "DIFFERS", flush=True)  # fmt: skip
            write_rows(RESULTS, rows)
    sys.exit(1 if differ else 0)


if __name__ == "__main__":
    main()
