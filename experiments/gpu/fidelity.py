"""Measure what a model of 100 M parameters learns in a few hundred steps of each way, on a card.

    python -m experiments.gpu.fidelity --device cuda:0 --out FILE --base BASE.pt

A minute of pretraining on the Python sources of transformers makes the base model, whose tokens are
bytes. Every way then trains the base on the C++ headers of torch at one rate, with two seeds.
Weights are fp32 and products bf16; embedding and head are frozen. Each run is a separate process
with a time limit; several runs share the card, since no times are compared. The script writes FILE
after each run. Repeat the same command to run what FILE lacks and to retry failed runs. Rows of
another base are dropped. Exit status: 0, even if --seconds ran out; 1 if a run failed.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import math
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import sluiceway as sw
import torch
from sluiceway.model.folder import prepare_model, quiet_transformers
from transformers import AutoModelForCausalLM, LlamaConfig

from experiments.gpu.part_tables import fidelity_table
from experiments.gpu.peers import Make, native, ours
from experiments.harness import check_document, read_rows, write_rows
from experiments.quickstart.limited import row_of
from experiments.quickstart.stdlib_corpus import encode, is_held_out
from experiments.step.step_turn import failure, torch_device, train_step
from experiments.step.step_ways import fused, hooks

_VOCABULARY = 257  # Byte values, and the end of a text.
_BASE_LR, _LR = 6e-4, 3e-4
_WARMUP = 20
_EVALUATED = 64  # Sequences in a held-out part.
_TEXT_BYTES = 32 << 20
_START_S = 45  # Seconds of a process beside its training.
_PYTHON, _CPP = ("transformers", "*.py"), ("torch", "include/**/*.h")


def default(model: torch.nn.Module, args: argparse.Namespace) -> sw.SubspaceAdamW:
    """Return SubspaceAdamW with the options that it chooses for these runs."""
    tokens = args.batch * args.sequence
    return ours(tokens_per_step=tokens, total_steps=args.steps)(model, args)


# The others are compared with the first.
WAYS: dict[str, Make] = {
    "torch AdamW": native,
    "Sluiceway, default": default,
    "Sluiceway, cores f = 1/4": ours(**hooks(0.25)),
    "Sluiceway, svd f = 1/2": ours(codec="svd", ratio=0.5),
    "Sluiceway, fused f = 1/2": ours(**fused(0.5)),
}


class Text:
    """Bytes of the files of an installed package: one part to train on, another held out.

    Parameters
    ----------
    package, pattern : str
        Which files; every twentieth, by the hash of its name, is held out.
    sequence : int
        Tokens of a sequence.
    device : torch.device
    """

    def __init__(self, package: str, pattern: str, sequence: int, device: torch.device) -> None:
        root = Path(importlib.util.find_spec(package).submodule_search_locations[0])
        parts: dict[bool, list[bytes]] = {False: [], True: []}
        size = 0
        for path in sorted(root.rglob(pattern)):
            text = path.read_bytes()
            parts[is_held_out(path.relative_to(root).as_posix())].append(text)
            if (size := size + len(text)) > _TEXT_BYTES:
                break
        self._trained, self._held_out = (
            torch.from_numpy(encode(parts[name])).to(device) for name in (False, True)
        )
        self._places = torch.arange(sequence, device=device)

    def batch(self, count: int, generator: torch.Generator) -> torch.Tensor:
        """Return sequences that begin anywhere in the training part."""
        most = len(self._trained) - len(self._places)
        starts = torch.randint(most, (count, 1), generator=generator).to(self._places.device)
        return self._trained[starts + self._places]

    def held_out(self, count: int) -> Iterator[torch.Tensor]:
        """Yield batches of sequences spread over the held-out part, the same each time."""
        most = len(self._held_out) - len(self._places)
        starts = torch.linspace(0, most, _EVALUATED, device=self._places.device).long()
        for some in starts.split(count):
            yield self._held_out[some[:, None] + self._places]


def make_model(args: argparse.Namespace, device: torch.device) -> torch.nn.Module:
    """Return a Llama with random weights."""
    quiet_transformers()
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=_VOCABULARY, hidden_size=args.hidden, intermediate_size=11 * args.hidden // 4,
        num_hidden_layers=args.layers, num_attention_heads=args.hidden // 64,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    with torch.device(device):
        return AutoModelForCausalLM.from_config(shape, dtype=torch.float32)


@torch.no_grad()
def mean_loss(model: torch.nn.Module, text: Text, args: argparse.Namespace) -> float:
    """Return nats a byte of the held-out part."""
    losses = []
    with torch.autocast(torch_device(args.device).type, dtype=torch.bfloat16):
        for ids in text.held_out(args.batch):
            losses.append(float(model(input_ids=ids, labels=ids, use_cache=False).loss))
    return sum(losses) / len(losses)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set one learning rate for every group of the optimizer."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def step_on(model: torch.nn.Module, optimizer: Any, text: Text, generator: torch.Generator,
            args: argparse.Namespace) -> torch.Tensor:  # fmt: skip
    """Take one step with products in bf16; return the loss, which the device may still compute."""
    with torch.autocast(torch_device(args.device).type, dtype=torch.bfloat16):
        return train_step(model, optimizer, text.batch(args.batch, generator))


def pretrain(args: argparse.Namespace) -> dict[str, Any]:
    """Train the base for `--pretrain-seconds`, with a falling rate in the last third; save it."""
    device = torch_device(args.device)
    text, generator = Text(*_PYTHON, args.sequence, device), torch.Generator().manual_seed(0)
    model = prepare_model(make_model(args, device), "trained", False)
    optimizer = native(model, args)
    began, steps, spent = time.monotonic(), 0, 0.0
    while spent < args.pretrain_seconds:
        left = 1 - spent / args.pretrain_seconds
        set_rate(optimizer, _BASE_LR * min(1.0, (steps + 1) / (5 * _WARMUP), 3 * left))
        loss = step_on(model, optimizer, text, generator, args)
        steps += 1
        if steps % 10 == 0:
            float(loss)  # Waits for the card; otherwise this thread would run ahead of it.
        spent = time.monotonic() - began
    state = {name: weight.cpu() for name, weight in model.state_dict().items()}
    whole = hashlib.sha256()
    for weight in state.values():
        whole.update(weight.numpy().tobytes())
    about = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "steps": steps,
        "loss": mean_loss(model, text, args),
        "id": whole.hexdigest()[:16],
        "hidden": args.hidden,
        "layers": args.layers,
    }
    new = args.base.with_suffix(".new")
    torch.save({"about": about, "state": state}, new)
    os.replace(new, args.base)
    return about


def fine_tune(way: str, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """Train the base on the other text, and evaluate on the held-out part before and after."""
    device = torch_device(args.device)
    text, generator = Text(*_CPP, args.sequence, device), torch.Generator().manual_seed(seed)
    saved = torch.load(args.base, weights_only=True, mmap=True)
    model = make_model(args, device)
    model.load_state_dict(saved["state"])
    before = mean_loss(model, text, args)
    model = prepare_model(model, "frozen", False)
    optimizer = WAYS[way](model, args)
    for step in range(args.steps):
        cosine = 0.5 * (1 + math.cos(math.pi * step / args.steps))
        set_rate(optimizer, _LR * min(cosine, (step + 1) / _WARMUP))
        step_on(model, optimizer, text, generator, args)
    getattr(optimizer, "synchronize", lambda: None)()
    after = mean_loss(model, text, args)
    getattr(optimizer, "close", lambda: None)()
    return {"base": saved["about"]["id"], "before": before, "after": after}


def command_of(args: argparse.Namespace, *what: str) -> list[str]:
    """Return the command line that starts one of this script's processes."""
    command = [sys.executable, "-m", __spec__.name, *what]
    command += ["--base", str(args.base), "--device", args.device]
    for name in ("hidden", "layers", "batch", "sequence", "steps", "pretrain_seconds"):
        command += [f"--{name.replace('_', '-')}", str(getattr(args, name))]
    return command


def base_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return the record of the base; train the base first if it is missing."""
    if args.base.exists():
        about = torch.load(args.base, weights_only=True, mmap=True)["about"]
        if (about["hidden"], about["layers"]) == (args.hidden, args.layers):
            return about
    args.base.parent.mkdir(parents=True, exist_ok=True)
    return row_of(command_of(args, "--pretrain"), args.pretrain_seconds + _START_S)


class Sitting:
    """The runs of one file.

    Parameters
    ----------
    args : argparse.Namespace
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self._args, self._end = args, time.monotonic() + args.seconds
        self._longest = 0.0  # Seconds of a run so far.
        self._base = base_of(args)
        self.rows = [row for row in read_rows(args.out) if row.get("base") == self._base.get("id")]

    def go_on(self) -> None:
        """Take every run that FILE lacks, one seed after the other, until the time is over."""
        done = {(row["way"], row["seed"]) for row in self.rows if "after" in row}
        self.rows = [row for row in self.rows if "after" in row]
        every = [(way, seed) for seed in range(self._args.seeds) for way in WAYS]
        left = [run for run in every if run not in done]
        self._write(len(left))
        if "failed" in self._base:
            return
        with ThreadPoolExecutor(self._args.at_once) as pool:
            for future in as_completed([pool.submit(self._take, *run) for run in left]):
                if (row := future.result()) is not None:
                    self.rows.append(row)
                    self.rows.sort(key=lambda row: every.index((row["way"], row["seed"])))
                    print(json.dumps({k: row[k] for k in row if k != "log"}), flush=True)
                    self._write(len(every) - len(self.rows))

    def _take(self, way: str, seed: int) -> dict[str, Any] | None:
        """Return a run's row; None if no time is left for it."""
        began = time.monotonic()
        if self._end - began < max(5.0, self._longest):
            return None
        command = command_of(self._args, "--one", way, "--seed", str(seed))
        found = row_of(command, min(self._args.run_limit, self._end - began))
        self._longest = max(self._longest, time.monotonic() - began)
        return {"way": way, "seed": seed, "base": self._base["id"], **found}

    @property
    def has_failed(self) -> bool:
        """Say whether pretraining or a run failed."""
        return any("failed" in row for row in [self._base, *self.rows])

    def _write(self, left: int) -> None:
        about = {"device": self._args.device, "steps": self._args.steps, "base": self._base}
        write_rows(self._args.out, self.rows, left=left, **about)


def parsed() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda:0", help="or host")
    parser.add_argument("--out", type=Path, help="JSON file, continued if it exists")
    parser.add_argument("--base", type=Path, required=True, help="the base's file, made if missing")
    parser.add_argument("--hidden", type=int, default=1024, help="width, a multiple of 64")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--batch", type=int, default=8, help="sequences of a step")
    parser.add_argument("--sequence", type=int, default=512, help="tokens of a sequence")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--pretrain-seconds", type=float, default=60)
    parser.add_argument("--at-once", type=int, default=3, help="runs that share the device")
    parser.add_argument("--run-limit", type=float, default=75, help="seconds of one run")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin none afterwards")
    parser.add_argument("--pretrain", action="store_true", help="make the base in this process")
    parser.add_argument("--one", choices=list(WAYS), help="make this run in this process")
    parser.add_argument("--seed", type=int, default=0, help="the seed of --one")
    args = parser.parse_args()
    if not args.pretrain and args.one is None and args.out is None:
        parser.error("--out is missing; name a JSON file for the results")
    return args


def main() -> int:
    """Run everything, or only the part that belongs to this process."""
    args = parsed()
    if args.pretrain:
        print(json.dumps(failure(lambda: pretrain(args))))
    elif args.one is not None:
        print(json.dumps(failure(lambda: fine_tune(args.one, args.seed, args))))
    else:
        check_document(args.out)
        sitting = Sitting(args)
        sitting.go_on()
        print(fidelity_table(json.loads(args.out.read_text())))
        return 1 if sitting.has_failed else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
