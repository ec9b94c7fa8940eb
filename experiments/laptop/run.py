"""Fine-tune a Llama of 1.3 G parameters within 4 or 7 GiB of a card, and print the needs first.

    python -m experiments.laptop.run --plan              # says what it needs, on any machine
    python -m experiments.laptop.run                     # and trains, on cuda:0 within 4 GiB
    python -m experiments.laptop.run --budget 7          # within 7 GiB, activations kept
    python -m experiments.laptop.run --model FOLDER      # a model of yours, of any shape

Without --model the weights are drawn at random and tokens are bytes: memory and seconds are those
of a model of this size, and losses mean nothing.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import Any

from sluiceway.base.sizes import format_bytes

from experiments.harness import REPOSITORY
from experiments.quickstart.byte_tokenizer import END_OF_TEXT_ID, write_tokenizer
from experiments.quickstart.run_folder import planned, train

CONFIG = REPOSITORY / "configs/laptop_1b_4gb.yaml"
SHAPE = REPOSITORY / "configs/shapes/llama_1_3b"
_SAMPLE = (1 << 22) - 3  # A prime, so that no two rows of a matrix are alike.
BUDGETS = {  # GiB of the device, with the changes that it makes to the config.
    4: {},
    7: {"budget.device": "7GiB", "model.checkpointing": "false"},
}


def write_model(shape: Path, folder: Path) -> Path:
    """Save random weights of a shape with a tokenizer of bytes; an existing model stays.

    All matrices repeat one sample of normal values, since drawing each value of a large model takes
    longer than a short training.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    if not (folder / "config.json").exists():
        config = AutoConfig.from_pretrained(shape)
        config.bos_token_id = config.eos_token_id = config.pad_token_id = END_OF_TEXT_ID
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        model.to_empty(device="cpu")
        drawn = torch.randn(_SAMPLE, generator=torch.Generator().manual_seed(0))
        sample = (config.initializer_range * drawn).to(torch.bfloat16)
        for name, parameter in model.named_parameters():
            flat = parameter.detach().view(-1)
            if parameter.dim() == 1:  # The scale of a norm, or a bias.
                flat.fill_(1.0 if "norm" in name else 0.0)
                continue
            for part in flat.split(_SAMPLE):
                part.copy_(sample[: len(part)])
        model.save_pretrained(folder)
        write_tokenizer(folder, config.max_position_embeddings)
    return folder


def needed(plan: dict[str, Any], steps: int, drawn: bool) -> dict[str, int | float]:
    """Bytes and seconds of a run.

    The disk holds the initial weights if they are drawn, and two saves of weights and moments while
    a save replaces the one before.
    """
    tiers, parameters = plan["peak_bytes"], plan["parameters"]
    weights = 2 * (parameters["trained"] + parameters["frozen"])
    return {
        "device": tiers["device"],
        "host": tiers["process"],
        "disk": (3 if drawn else 2) * weights + 2 * tiers["host"],
        "seconds a step": plan["seconds_per_step"],
        "seconds": plan["seconds_per_step"] * steps,
    }


def needs_lines(need: dict[str, int | float], plan: dict[str, Any], steps: int) -> list[str]:
    """Format the needs of a run as lines of text."""
    device, budget = plan["device"], plan["budget_bytes"]["device"]
    rate = f"{plan['assumed']['tflops']:.3g} TFLOP/s ({plan['assumed']['tflops_from']})"
    seen = "" if device["here"] else ", which was not seen on this machine"
    return [
        f"{plan['model']}: {plan['tokens_per_step']:,} tokens a step, {plan['codec']}",
        f"device: {format_bytes(need['device'])} of {format_bytes(budget)} on "
        f"{device['name']}{seen}; the driver's own context comes on top",
        f"host:   {format_bytes(need['host'])} in all, {format_bytes(plan['peak_bytes']['pinned'])}"
        " of it page-locked",
        f"disk:   up to {format_bytes(need['disk'])}",
        f"time:   {need['seconds a step']:.3g} s a step, {need['seconds']:.3g} s for {steps}, if "
        f"the device computes {rate}",
    ]


def main() -> None:
    """Plan, print the needs, train, and compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", type=int, choices=BUDGETS, default=4, help="GiB of the device")
    parser.add_argument("--device", default="cuda:0", help="or host")
    parser.add_argument("--model", type=Path, help="folder with weights; default: random ones")
    parser.add_argument("--shape", type=Path, default=SHAPE, help="folder with a config.json")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--folder", type=Path, default=REPOSITORY / "runs/laptop")
    parser.add_argument("--set", action="append", default=[], help="config override, a.b=c")
    parser.add_argument("--plan", action="store_true", help="train nothing, write nothing")
    args = parser.parse_args()
    overrides = {
        "device.name": args.device, "train.steps": args.steps, "train.warmup_steps": 0,
        "train.eval_every": 0, "train.save_every": 0, "train.eval_sequences": 4,
        **BUDGETS[args.budget], **dict(one.split("=", 1) for one in args.set),
    }  # fmt: skip
    plan = planned(CONFIG, {**overrides, "model.path": args.model or args.shape})
    need = needed(plan, args.steps, drawn=args.model is None)
    print("\n".join(needs_lines(need, plan, args.steps)), flush=True)
    if plan["over_budget"]:
        sys.exit(f"run.py: {plan['over_budget']}")
    if args.plan:
        return
    args.folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(args.folder).free
    if free < need["disk"]:
        sys.exit(f"run.py: {args.folder} has {format_bytes(free)} free, the run needs up to "
                 f"{format_bytes(need['disk'])}; give another --folder")  # fmt: skip
    model = args.model or write_model(args.shape, args.folder / "model")
    run = train(CONFIG, args.folder / "run", {**overrides, "model.path": model.resolve()})
    print(f"found: device {format_bytes(run.peak_bytes('device'))}, host "
          f"{format_bytes(run.peak_bytes('process'))}, {run.step_seconds:.3g} s a step, stall "
          f"{100 * run.stall_share:.1f} %")  # fmt: skip


if __name__ == "__main__":
    main()
