"""Make small runs with the Python class; each side's interpreter runs this same file.

    PYTHON experiments/same_bits/small_runs.py FOLDER [--only NAME]

The runs use nothing of the package but `import sluiceway`, so old and new checkouts can run them.
Each leaves weights.safetensors, optimizer.pt and losses.jsonl in FOLDER/NAME, or error.txt.
"""

from __future__ import annotations

import argparse
import copy
import json
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

STEPS = 8
RESUMED_AT, BAD_STEP = 4, 3


@dataclass(frozen=True)
class SmallRun:
    """One run: arguments of SubspaceAdamW, and the events around them."""

    options: dict[str, Any]
    refresh: dict[str, Any] = field(default_factory=dict)
    backwards: int = 1
    dtype: str = "float32"
    autocast: str | None = None
    tied: bool = False
    checkpointing: bool = False
    groups: bool = False  # Matrices have decay, the rest none.
    schedule: bool = False  # A learning rate scheduler of torch.
    clip: float | None = None  # Clips with torch, outside of the optimizer.
    scaler: bool = False
    bad_step: bool = False  # At BAD_STEP the gradients of the first layer are infinite.
    resumed: bool = False  # Model and optimizer are made anew at RESUMED_AT, from the saved state.


RUNS = {
    "svd, edf, scheduler": SmallRun(
        {"codec": "svd", "schedule": "edf", "accumulate": 2, "max_norm": 0.5, "norm_mode": "exact"},
        backwards=2,
        schedule=True,
    ),
    "block_random, fcfs, groups": SmallRun(
        {"codec": "block_random", "schedule": "fcfs", "norm_mode": "exact", "max_norm": 0.3},
        backwards=3,
        groups=True,
    ),
    "block_pca, paper, refresh": SmallRun(
        {
            "codec": "block_pca",
            "schedule": "paper",
            "norm_mode": "speculative",
            "max_norm": 0.4,
            "second_moment": "full",
        },
        refresh={"every": 3},
        backwards=2,
        clip=0.6,
    ),
    "sparse_learned, barrier, refresh": SmallRun(
        {"codec": "sparse_learned", "schedule": "barrier", "accumulate": 1, "wire": "fp32"},
        refresh={"every": 3, "threshold": 0.0, "source": "closure", "learn_steps": 20},
    ),
    "sparse_random, tier device": SmallRun(
        {"codec": "sparse_random", "d": 64, "tier": "device", "nnz": 1, "max_norm": 0.5},
        schedule=True,
    ),
    "identity, tied": SmallRun(
        {"codec": "identity", "embeddings": "identity", "wire": "fp32", "schedule": "fcfs"},
        tied=True,
        clip=0.5,
    ),
    "none, checkpointing": SmallRun(
        {"codec": "none", "residual_every": 2, "loss_scale": "dynamic", "max_norm": 0.5},
        checkpointing=True,
        bad_step=True,
    ),
    "svd, fp16, GradScaler": SmallRun(
        {"codec": "svd", "accumulate": 2},
        backwards=2,
        autocast="float16",
        scaler=True,
        clip=0.5,
        bad_step=True,
    ),
    "block_random, bf16 stochastic, int8": SmallRun(
        {
            "codec": "block_random",
            "wire": "int8",
            "weight_update": "stochastic",
            "residual": "sign",
            "norm_mode": "speculative",
            "max_norm": 0.5,
        },
        dtype="bfloat16",
        tied=True,
    ),
    "svd, bf16 residual update, resumed": SmallRun(
        {"codec": "svd", "weight_update": "residual", "schedule": "paper", "accumulate": 2},
        backwards=2,
        dtype="bfloat16",
        autocast="bfloat16",
        resumed=True,
    ),
    "promised, skipped step": SmallRun(
        {"codec": "svd", "accumulate": 1, "max_norm": 0.5}, bad_step=True
    ),
}


def make_model(run: SmallRun) -> Any:
    """Make a Llama of two layers, whose key and value weights are too small to be compressed."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=256,
        hidden_size=256,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=run.tied,
    )
    model = LlamaForCausalLM(shape).to(getattr(torch, run.dtype)).train()
    if run.checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def loss_of(run: SmallRun, model: Any, number: int) -> Any:
    """Return the loss on tokens that are a function of `number` alone."""
    import torch

    tokens = torch.randint(256, (2, 24), generator=torch.Generator().manual_seed(1000 + number))
    dtype = getattr(torch, run.autocast or "bfloat16")
    with torch.autocast("cpu", dtype=dtype, enabled=run.autocast is not None):
        return model(input_ids=tokens, labels=tokens, use_cache=False).loss


def make_optimizer(run: SmallRun, model: Any) -> tuple[Any, Any]:
    """Make SubspaceAdamW and its scheduler, which may be None."""
    import sluiceway as sw
    import torch

    options = dict(run.options)
    if run.refresh:
        refresh = dict(run.refresh)
        if refresh.get("source") == "closure":
            refresh["closure"] = lambda: loss_of(run, model, 900)
        options["refresh"] = sw.Refresh(**refresh)
    if run.groups:
        matrices = [p for p in model.parameters() if p.dim() == 2]
        vectors = [p for p in model.parameters() if p.dim() != 2]
        options["param_groups"] = [
            {"params": matrices, "weight_decay": 0.05},
            {"params": vectors, "lr": 1e-3, "weight_decay": 0.0},
        ]
    opt = sw.SubspaceAdamW(model, lr=2e-3, **options)
    make_scheduler = torch.optim.lr_scheduler.CosineAnnealingLR
    return opt, make_scheduler(opt, T_max=STEPS) if run.schedule else None


def break_first_layer(model: Any) -> Any:
    """Make gradients that flow back into the first layer infinite, until the handle is removed."""

    def on_input(_: Any, arguments: tuple[Any, ...]) -> None:
        arguments[0].register_hook(lambda gradient: gradient * float("inf"))

    return model.model.layers[1].register_forward_pre_hook(on_input)


def one_step(run: SmallRun, model: Any, opt: Any, scaler: Any, step: int) -> dict[str, Any]:
    """Run backward and an update; return the line for losses.jsonl."""
    import torch

    broken = break_first_layer(model) if run.bad_step and step == BAD_STEP else None
    losses = []
    for micro in range(run.backwards):
        loss = loss_of(run, model, run.backwards * step + micro)
        losses.append(loss.item())
        if scaler is not None:
            loss = scaler.scale(loss)
        elif run.options.get("loss_scale"):
            loss = opt.scale_loss(loss)
        loss.backward()
    if broken is not None:
        broken.remove()
    if scaler is not None:
        scaler.unscale_(opt)
    line: dict[str, Any] = {"step": step, "loss": losses, "lr": opt.param_groups[0]["lr"]}
    if run.clip is not None:
        line["clipped_norm"] = torch.nn.utils.clip_grad_norm_(model.parameters(), run.clip).item()
    if scaler is None:
        opt.step()
    else:
        scaler.step(opt)
        scaler.update()
        line["scale"] = scaler.get_scale()
    line |= {"grad_norm": opt.stats().get("grad_norm"), "skipped": bool(opt.overflowed)}
    opt.zero_grad()
    return line


def train(run: SmallRun, folder: Path) -> None:
    """Train, and write weights, state and losses."""
    import torch
    from safetensors.torch import save_file

    model = make_model(run)
    opt, scheduler = make_optimizer(run, model)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0) if run.scaler else None
    lines = []
    for step in range(STEPS):
        if run.resumed and step == RESUMED_AT:
            saved = copy.deepcopy((opt.state_dict(), model.state_dict()))
            opt.close()
            model = make_model(run)
            opt, scheduler = make_optimizer(run, model)
            model.load_state_dict(saved[1])
            opt.load_state_dict(saved[0])
        lines.append(one_step(run, model, opt, scaler, step))
        if scheduler is not None:
            scheduler.step()
    state = opt.state_dict()
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    save_file(weights, folder / "weights.safetensors")
    torch.save(state, folder / "optimizer.pt")
    (folder / "losses.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    opt.close()


def main() -> None:
    """Run the list; a run that fails leaves its traceback and the other runs go on."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", choices=list(RUNS), default=list(RUNS))
    args = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    for name in args.only:
        folder = args.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        try:
            train(RUNS[name], folder)
        except Exception:
            (folder / "error.txt").write_text(traceback.format_exc())


if __name__ == "__main__":
    main()
