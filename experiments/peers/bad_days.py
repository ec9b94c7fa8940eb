"""Test how a run of either side survives SIGKILL, resume, and refused writes."""

from __future__ import annotations

import random
import shutil
import signal
import threading
import time
from pathlib import Path

from experiments.peers.child import Child
from experiments.peers.full_volume import fill, share, volume
from experiments.peers.measure import room
from experiments.peers.sides import OURS

SIZE, STEPS = "3M", 24
SAVE_EVERY = 4
KILLS = 5
LEFT_BYTES = 24 << 20  # Bytes left on a volume that is too small at the start.
PATIENCE_SECONDS = 180  # After these seconds a run counts as hung.
SETTINGS = {"ours": OURS, "theirs": {"zero": {"sub_group_size": 1_000_000}}}


class _Runs:
    """Runs of one side from a fixed start."""

    def __init__(self, side: str, packages: Path) -> None:
        self._side = side
        self._packages = packages

    def start(self, folder: Path, *options: str) -> Child:
        """Start a run."""
        return Child(self._side, SIZE, STEPS, folder, self._packages, SETTINGS[self._side],
                     "--warmup", "0", *options)  # fmt: skip

    def whole(self, folder: Path) -> Child:
        """Return a run that nobody disturbs."""
        shutil.rmtree(folder, ignore_errors=True)
        child = self.start(folder)
        if status := child.finish():
            raise RuntimeError(f"{self._side}: exit status {status}: {child.last_words()}")
        return child


def _until(child: Child, step: int) -> None:
    """Read events until one is about the step or later, or the run ends."""
    for event in child.events():
        if event["event"] == "step" and event["step"] >= step:
            return


def _patiently(child: Child) -> int | None:
    """Wait for the exit status of a child; None if it had to be killed."""
    timer = threading.Timer(PATIENCE_SECONDS, lambda: child.signal(signal.SIGKILL))
    timer.start()
    status = child.finish()
    hung = not timer.is_alive()
    timer.cancel()
    return None if hung else status


def _beside(child: Child, reference: Child) -> dict:
    """Compare a resumed run with one that was never stopped."""
    apart = [abs(loss - reference.losses[step]) for step, loss in child.losses.items()]
    ready, done = child.told("ready"), child.told("done")
    return {
        "went_on_at": ready and ready["start"],
        "steps": len(apart),
        "first_apart": next(iter(apart), None),
        "losses_apart": max(apart, default=None),
        "same_losses": bool(apart) and max(apart) == 0.0,
        "same_weights": bool(done) and done["weights"] == reference.told("done")["weights"],
    }


def _kill_once(runs: _Runs, folder: Path, after: int, save_every: int, chance: random.Random,
               reference: Child) -> dict:  # fmt: skip
    shutil.rmtree(folder, ignore_errors=True)
    child = runs.start(folder, "--save-every", str(save_every))
    _until(child, after)
    time.sleep(chance.uniform(0.0, 0.1))
    child.signal(signal.SIGKILL)
    told = max(child.losses)
    again = runs.start(folder, "--resume")
    status = _patiently(again)
    saved = [event for event in child.seen if event["event"] == "saved"]
    return {
        "killed_after": told + 1,
        "save_every": save_every,
        "exit_status": status,
        "said": again.last_words() if status else "",
        "save_bytes": saved[0]["written"] if saved else 0,
        "save_seconds": saved[0]["seconds"] if saved else 0.0,
        **_beside(again, reference),
    }


def killed(folder: Path, packages: Path) -> dict:
    """SIGKILL a run, start it again, and compare it with one that was not killed."""
    rows = []
    for side in ("ours", "theirs"):
        runs = _Runs(side, packages)
        place = folder / "run"
        reference, again = runs.whole(place), runs.whole(place)
        repeats = _beside(again, reference)
        parameters = reference.told("ready")["parameters"]
        chance = random.Random(0)
        saves = [0] * KILLS if side == "ours" else [SAVE_EVERY] * KILLS + [0]
        for number, save_every in enumerate(saves):
            after = chance.randrange(SAVE_EVERY, 3 * SAVE_EVERY)
            row = _kill_once(runs, place, after, save_every, chance, reference)
            rows.append({"side": side, "parameters": parameters,
                         "repeats": repeats["same_weights"], **row})  # fmt: skip
            print(f"kill {number + 1}/{len(saves)} {side}: {row}", flush=True)
        shutil.rmtree(place, ignore_errors=True)
    return {"size": SIZE, "steps": STEPS, "rows": rows}


def _at_start(runs: _Runs, folder: Path) -> dict:
    """Begin on a volume that is too small."""
    with volume(folder) as place:
        fill(place / "filler", LEFT_BYTES)
        with runs.start(place / "run") as child:
            status = _patiently(child)
        return {
            "when": "start",
            "free_bytes": LEFT_BYTES,
            "exit_status": status,
            "steps": len(child.losses),
            "left_bytes": room(place / "run"),
            "said": child.last_words(),
        }


def _midway(runs: _Runs, folder: Path, reference: Child) -> dict:
    """Refuse every write from the fourth step on; then make room, and resume."""
    with volume(folder) as place:
        with runs.start(place / "run") as child:
            _until(child, 3)
            child.signal(signal.SIGSTOP)
            told = len(child.losses)
            share(place / "run", place / "copy")
            fill(place / "filler")
            child.signal(signal.SIGCONT)
            status = _patiently(child)
        words, during = child.last_words(), _beside(child, reference)
        shutil.rmtree(place / "copy")
        shutil.rmtree(place / "filler")
        with runs.start(place / "run", "--resume") as again:
            resumed = _patiently(again)
        return {
            "when": "midway",
            "told_before": told,
            "exit_status": status,
            "said": words,
            **during,
            "resume_exit_status": resumed,
            "resume_said": again.last_words(),
            "resumed": _beside(again, reference),
        }


def refused(folder: Path, packages: Path) -> dict:
    """Measure both cases: a volume that is full at the start, and one that fills up on the way."""
    rows = []
    for side in ("ours", "theirs"):
        runs = _Runs(side, packages)
        reference = runs.whole(folder / "run")
        shutil.rmtree(folder / "run", ignore_errors=True)
        for row in (_at_start(runs, folder), _midway(runs, folder, reference)):
            rows.append({"side": side, **row})
            print(f"refused {side}: {row}", flush=True)
    return {"size": SIZE, "steps": STEPS, "rows": rows}
