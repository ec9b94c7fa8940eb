"""Starting points of fine-tunes.

small     the small base model of experiments/fidelity, which has read 2.9 MB of Python
young     the same shape after a tenth of that text, so further from any text; made when needed
scratch   the same shape with layers drawn from the seed; its byte embedding is that of `small`

In every start the byte embedding is tied to the head and frozen.
"""

from __future__ import annotations

import functools
import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from experiments.fidelity.tasks import REPOSITORY, load_model, load_text, read_model
from experiments.fidelity.train_one import mean_loss

STARTS = ("small", "young", "scratch")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
YOUNG = REPOSITORY / "runs/regimes/young"
YOUNG_STEPS = 140


def start_model(start: str, seed: int, dtype: str) -> torch.nn.Module:
    """Return one of STARTS, ready for training; `seed` matters to `scratch` alone."""
    if start == "scratch":
        model = _drawn(seed)
    elif start == "young":
        if not (YOUNG / "model.safetensors").exists():
            raise FileNotFoundError(f"{YOUNG}: the young model is missing; call make_young()")
        model = read_model(YOUNG)
    else:
        model = load_model(start)
    return model.to(DTYPES[dtype])


def _drawn(seed: int) -> torch.nn.Module:
    base = load_model("small")
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(base.config, dtype=torch.float32)
    embedding = model.get_input_embeddings().weight.requires_grad_(False)
    embedding.data.copy_(base.get_input_embeddings().weight.data)
    return model


def make_young() -> None:
    """Train and store `young` unless it exists: takes minutes, gives the same weights each time."""
    if (YOUNG / "model.safetensors").exists():
        return
    shape = ["--layers", "2", "--inner", "448"]
    YOUNG.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=YOUNG.parent) as scratch:
        base, stored = Path(scratch) / "base", Path(scratch) / "stored"
        for command in (
            ["train_base", "--steps", str(YOUNG_STEPS), "--seed", "1", *shape, "--out", base],
            ["store_model", "--run", base, "--out", stored],
        ):
            program = [sys.executable, "-m", f"experiments.quickstart.{command[0]}"]
            subprocess.run([*program, *map(str, command[1:])], check=True, cwd=REPOSITORY)
        stored.rename(YOUNG)


@functools.cache
def loss_before(start: str, seed: int, dtype: str, shift: str, part: str) -> float:
    """Return the held-out loss of a start."""
    return mean_loss(start_model(start, seed, dtype), getattr(load_text(shift), part))


@torch.no_grad()
def fingerprint(model: torch.nn.Module) -> str:
    """Return sixteen hex digits that change when any weight does."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().float().contiguous().numpy())
    return digest.hexdigest()[:16]
