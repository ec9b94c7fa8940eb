"""Makes summary.json: the results of a run, its machine, and the versions of its software."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch
import transformers

from sluiceway import __version__
from sluiceway.base.sizes import format_count
from sluiceway.config.schema import Config
from sluiceway.machine.placement import processor_name
from sluiceway.run.checkpoint import Position
from sluiceway.run.loop import RunContext
from sluiceway.run.step_figures import step_figures


def summarise(
    config: Config,
    context: RunContext,
    position: Position,
    lines: list[dict[str, Any]],
    status: str,
    native: dict[str, Any] | None,
) -> dict[str, Any]:
    """Return the whole summary.

    Parameters
    ----------
    status : str
        "done", "interrupted", "diverged" or "failed".
    native : dict or None
        Summary of the run that `compare: native` measured first.
    """
    inputs, of_engine, figures = context.inputs, context.engine.summary(), step_figures(lines)
    summary = {
        "status": status,
        "steps": position.step,
        "tokens": position.tokens,
        "skipped_steps": position.skipped,
        "seconds": position.seconds,
        "first_eval_loss": position.first_eval_loss,
        "final_eval_loss": position.last_eval_loss,
        "best_eval_loss": position.best_eval_loss,
        "best_step": position.best_step,
        "keeps_best": config.train.keep_best,
        "stopped_early": status == "done" and position.step < config.train.steps,
        **figures,
    }
    if native:
        mine, theirs = figures.get("median_step_seconds"), native.get("median_step_seconds")
        summary["native_ratio"] = mine / theirs if mine and theirs else None
        kept = ("median_step_seconds", "first_eval_loss", "final_eval_loss", "peak_bytes")
        summary["native"] = {key: native.get(key) for key in kept}
    return {
        **summary,
        **of_engine,
        "engine": config.engine.kind,
        "precision": {
            "weights": config.model.dtype,
            "autocast": inputs.placement.autocast,
            "why": inputs.placement.autocast_reason,
        },
        "parameters": _parameters(context.model) | of_engine.get("parameters", {}),
        "data": inputs.counts,
        "versions": {
            "sluiceway": __version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
        },
        "machine": machine(),
        "commit": commit(),
        "config_hash": config_hash(config),
    }


def _parameters(model: torch.nn.Module) -> dict[str, Any]:
    frozen = [name for name, p in model.named_parameters() if not p.requires_grad]
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return {
        "trained": trained,
        "frozen": sum(p.numel() for p in model.parameters()) - trained,
        "frozen_names": frozen,
    }


def describe_parameters(model: torch.nn.Module) -> str:
    """Say how much of a model is trained."""
    found = _parameters(model)
    trained, everything = found["trained"], found["trained"] + found["frozen"]
    return f"trains {format_count(trained)} of {format_count(everything)} parameters"


def config_hash(config: Config) -> str:
    """Sixteen hex digits of a hash of the resolved config."""
    text = json.dumps(config.resolved(), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def machine() -> dict[str, Any]:
    """Return processor, cores, memory and GPU."""
    return {
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def commit() -> str | None:
    """Return the git commit of this source, or None outside of a checkout."""
    here = Path(__file__).resolve().parent
    git = ["git", "-C", str(here)]
    try:
        tracked = subprocess.run(
            [*git, "ls-files", "--error-unmatch", Path(__file__).name],
            capture_output=True,
            check=False,
        )
        if tracked.returncode:
            return None
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, check=False)
    except OSError:
        return None
    return head.stdout.decode().strip() or None
