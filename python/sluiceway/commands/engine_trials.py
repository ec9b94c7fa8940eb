"""Trains a few small steps with each engine, even if another one fails, crashes or hangs.

The steps run in a child process: `python -m sluiceway.commands.engine_trials DEVICE FOLDER NAME...`
prints one line of JSON for each name. If the steps of an engine do not end, the child is killed,
and a new child tries the remaining names.
"""

from __future__ import annotations

import faulthandler
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from sluiceway.errors import Error, first_line
from sluiceway.machine.finding import MISSING, Finding, last_words

SECONDS = 60.0  # For one engine, with the import of torch and the first use of the device.
STEPS = 3  # A hang shows when the second or third step waits for the one before it.
_ADVICE = "training with it fails here: report this line, with the output of sluiceway doctor"


# ---- In the child --------------------------------------------------------------------------------


# The first word of a name is the kind of the engine.
TRIALS: dict[str, dict[str, Any]] = {
    "native": {},
    "subspace": {},
    "subspace, cores": {"codec": "block_random"},
    "subspace, fused": {"fused": True},
    "offload, host": {"tier": "host"},
    "offload, disk": {"tier": "disk"},
    "offload, 8bit": {"tier": "host", "state_codec": "8bit"},
    "offload, streamed": {"tier": "host", "weights": "streamed", "chunk": 64 << 10},
    "zo, device": {"tier": "device"},
    "zo, host": {"tier": "host"},
}


def _optimizer(name: str, model: Any, folder: str) -> Any:
    """Make the optimizer of a trial; import no other, so that a broken engine names itself."""
    kind, options = name.partition(",")[0], {"lr": 1e-2, **TRIALS[name]}
    if kind == "native":
        from torch.optim import AdamW

        return AdamW(model.parameters(), **options)
    if kind == "subspace":
        from sluiceway.optim.subspace.optimizer import SubspaceAdamW

        return SubspaceAdamW(model, **options)
    if kind == "zo":
        from sluiceway.optim.zo.optimizer import ZoSgd

        return ZoSgd(model, **options)
    from sluiceway.optim.offload.optimizer import OffloadAdamW

    path = {"path": os.path.join(folder, "store")} if options["tier"] == "disk" else {}
    return OffloadAdamW(model, **path, **options)


def _weights_on_host(model: Any) -> dict[str, Any]:
    """Return a copy of the weights; an engine may move them to the host between steps."""
    return {key: value.to("cpu", copy=True) for key, value in model.state_dict().items()}


def try_steps(name: str, device: str, folder: str) -> float:
    """Train a few steps and return the seconds of the last one.

    Raises
    ------
    sluiceway.errors.Error
        The loss is not finite, or no weight has changed.
    """
    import torch
    from torch import nn

    torch.manual_seed(0)
    where = torch.device("cpu" if device == "host" else device)
    # A list of blocks, as zeroth order wants one; 256 x 256 is the smallest weight with a core.
    model = nn.ModuleDict({"enter": nn.Linear(16, 256), "leave": nn.Linear(256, 8)})
    model["blocks"] = nn.ModuleList(nn.Linear(256, 256) for _ in range(2))
    model.to(where)
    inputs, wanted = torch.randn(32, 16, device=where), torch.randn(32, 8, device=where)
    before = _weights_on_host(model)
    made = _optimizer(name, model, folder)
    closing: AbstractContextManager[Any] = made if hasattr(made, "close") else nullcontext(made)
    with closing as optimizer:

        def loss_of() -> Any:
            x = model["enter"](inputs)
            for block in model["blocks"]:
                x = x + block(x).tanh()
            return nn.functional.mse_loss(model["leave"](x), wanted)

        for _ in range(STEPS):
            began = time.monotonic()
            if name.startswith("zo"):
                loss = optimizer.step(loss_of)
            else:
                loss = loss_of()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            value = float(loss)
            after = _weights_on_host(model)
            seconds = time.monotonic() - began
    if not all(bool(v.isfinite().all()) for v in after.values()) or value != value:
        raise Error(f"after {STEPS} steps the loss is {value}, or a weight is not finite")
    if all(bool((after[key] == old).all()) for key, old in before.items()):
        raise Error(f"no weight has changed in {STEPS} steps")
    return seconds


def try_each(device: str, folder: str, names: list[str]) -> None:
    """Try each name in turn, and print a line as soon as its trial has ended."""
    for name in names:
        line: dict[str, Any] = {"name": name}
        try:
            line["seconds"] = try_steps(name, device, folder)
        except Exception as error:  # Whatever it is, it is what the user has to know.
            line["error"] = f"{type(error).__name__}: {first_line(error)}"
        print(json.dumps(line), flush=True)


# ---- In the parent -------------------------------------------------------------------------------


def engine_findings(path: Path, device: str, seconds: float = SECONDS) -> Iterator[Finding]:
    """Yield a finding for each engine on a device, host or cuda:N.

    The disk tier uses the folder `path`, which is left as it was. The steps of one engine may take
    `seconds`.
    """
    left = list(TRIALS)
    while left:
        with tempfile.TemporaryDirectory(dir=path, prefix=".sluiceway-doctor-") as folder:
            for name, line in _lines_of_child(device, folder, left, seconds):
                left.remove(name)
                yield _finding(name, device, line)


def _finding(name: str, device: str, line: dict[str, Any]) -> Finding:
    title = f"engine {name}"
    if "error" in line:
        return Finding(title, f"fails on {device}: {line['error']}", MISSING, _ADVICE)
    text = f"{STEPS} steps on {device}, the last in {1000 * line['seconds']:.1f} ms"
    return Finding(title, text, figures={"seconds": line["seconds"]})


def _lines_of_child(
    device: str, folder: str, names: list[str], seconds: float
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Read the lines of one child until it has tried all names or has died."""
    command = [sys.executable, "-m", __name__, device, folder, *names]
    with tempfile.TemporaryFile() as complaints:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=complaints)
        assert child.stdout is not None
        try:
            for name in list(names):
                ready, _, _ = select.select([child.stdout], [], [], seconds)
                line = child.stdout.readline() if ready else b""
                if line:
                    yield name, json.loads(line)
                    continue
                yield name, {"error": _end_of(child, bool(ready), seconds, complaints)}
                return
        finally:
            child.kill()
            child.wait()
            child.stdout.close()


def _end_of(child: subprocess.Popen[bytes], ended: bool, seconds: float, complaints: Any) -> str:
    """Say why a child has stopped printing."""
    if not ended:
        return f"it did not end in {seconds:g} s"
    status = child.wait()
    complaints.seek(0)
    said = last_words(complaints.read().decode(errors="replace").splitlines())
    how = f"signal {-status} ended it" if status < 0 else f"it ended with {status}"
    return how + (f": {said}" if said else "")


if __name__ == "__main__":
    faulthandler.enable()
    try_each(sys.argv[1], sys.argv[2], sys.argv[3:])
