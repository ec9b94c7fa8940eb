"""Starting points of fine-tunes.

small     the small base model of experiments/fidelity, which has read 2.9 MB of Python
young     the same shape after a tenth of that text, so further from any text; made when needed
scratch   the same shape with layers drawn from the seed; its byte embedding is that of `small`

In every start the byte embedding is tied to the head and frozen.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib

import torch
from transformers import AutoModelForCausalLM

from experiments.fidelity.tasks import load_model, load_text, make_model, read_model
from experiments.fidelity.train_one import mean_loss
from experiments.harness import REPOSITORY

STARTS = ("small", "young", "scratch")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
YOUNG = REPOSITORY / "runs/regimes/young"
YOUNG_STEPS = 140


def start_model(start: str, seed: int, dtype: str) -> torch.nn.Module:
    """Return one of STARTS, ready for training; `seed` matters to `scratch` alone."""
    if start == "scratch":
        model = _drawn(seed)
    elif start == "young":
        make_young()
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
    """Train and store `young` unless it exists; another process that needs it waits."""
    YOUNG.parent.mkdir(parents=True, exist_ok=True)
    with YOUNG.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        make_model(YOUNG, YOUNG_STEPS)


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
