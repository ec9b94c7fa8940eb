"""`sluiceway plan MODEL`: shows with which engines a model trains on a machine, and how fast."""

from __future__ import annotations

import glob
import os
import sys
from pathlib import Path
from typing import Any

import yaml

from sluiceway.base.atomic import replace_file
from sluiceway.base.columns import columns
from sluiceway.base.json_text import json_text
from sluiceway.base.sizes import format_bytes, format_count
from sluiceway.commands.plan import data_lines, inputs_of, tell_refusal
from sluiceway.config.file import load_config
from sluiceway.config.schema import PYDOC, DataSection, is_local, with_absolute_paths
from sluiceway.config.shape import CONFIG_FILE
from sluiceway.errors import InvalidArgument, IoError, OutOfMemory, Unavailable
from sluiceway.machine.wear import RATED_TB, tb_per_day
from sluiceway.run.choices import Choices, Way, find_choices
from sluiceway.run.target_machine import TargetMachine, target_machine

_STEPS = 1000
_EPOCHS = 3
_FEW_STEPS = 30
_RATE = 1e-5  # Learning rate of AdamW for large pretrained models; zo has its own default.
_PLACES = {
    "device": "on the device",
    "host": "in host memory",
    "disk": "on disk",
    "auto": "in host memory and on disk",
}


def choose(
    model: Path,
    write: Path | None,
    as_json: bool = False,
    *,
    tokens: int,
    card: str | None = None,
    device: int | None = None,
    ram: int | None = None,
    disk: str | None = None,
    data: str | None = None,
) -> None:
    """Print a table with each engine's fastest way that fits, and write the config of the first.

    A step has so many `tokens`, and the config trains on `data`.

    Raises
    ------
    sluiceway.errors.OutOfMemory
        No way fits the machine.
    """
    if write is not None:
        check_new(write)
    if data is not None:
        check_files(data)
    model = model.parent if model.name == CONFIG_FILE else model
    machine = target_machine(card, device, ram, disk)
    if not sys.stderr.isatty():
        print("sluiceway: planning every engine, which may take a minute", file=sys.stderr)
    found = find_choices(str(model), machine, tokens, _note)
    if as_json:
        print(json_text(_figures(str(model), machine, found)), flush=True)
    else:
        print(_text(model, machine, found), flush=True)
    best = next((way for way in found.ways if not way.short), None)
    if best is None:
        raise OutOfMemory(_nothing_fits(found))
    if write is not None:
        replace_file(write, config_text(best, machine, data, found.tokens).encode())
        first = "" if data else "set data.train in it, then "
        print(
            f"{write}: {best.name}, which gives up {best.gives_up}; next: {first}sluiceway train "
            f"{write}",
            file=sys.stderr,
        )
        if data is not None and not as_json:
            _show_data(write)


def _show_data(written: Path) -> None:
    """Say what was found in the data of a new config, or why `train` would be refused."""
    try:
        config, found = inputs_of(load_config(written))
    except (InvalidArgument, IoError, Unavailable) as error:
        tell_refusal(error)
        return
    print(*data_lines(config, found), sep="\n", flush=True)
    if config.train.steps < _FEW_STEPS:
        print(
            f"{written}: a run of few steps learns little; fewer tokens of a step, or more "
            "train.epochs, make more of them",
            file=sys.stderr,
        )


def check_new(config: Path) -> None:
    """Raise InvalidArgument unless the file can be made."""
    if config.exists():
        raise InvalidArgument(f"{config} exists; name a new file, or remove it first")
    if not config.absolute().parent.is_dir():
        raise InvalidArgument(f"{config}: there is no folder {config.parent}; make it first")


def check_files(data: str) -> None:
    """Raise InvalidArgument unless the data is there."""
    if is_local(data) and not glob.glob(os.path.expanduser(data)):
        raise InvalidArgument(
            f"--data: there is no {data}; name a file, a folder, a glob or {PYDOC}"
        )


def _note(engine: str) -> None:
    if sys.stderr.isatty():
        print(f"planning {engine}", file=sys.stderr)


def _nothing_fits(found: Choices) -> str:
    nearest = found.ways[0].short if found.ways else "; ".join(found.impossible.values())
    name = f"{found.ways[0].name}, the nearest, " if found.ways else ""
    return (
        f"plan: nothing fits; {name}{nearest}; try fewer --tokens, more --ram, a larger --disk, or "
        "a smaller model"
    )


def options_of(way: Way) -> list[str]:
    """Describe in words what the way chose, where it is not what everybody has."""
    engine, train = way.config.engine, way.config.train
    found = []
    if getattr(engine, "weights", "resident") == "streamed":
        found.append("weights streamed")
    if engine.kind == "offload":
        found.append(f"states {_PLACES[engine.tier]}")
    if engine.kind == "zo":
        found.append(f"weights {_PLACES[engine.tier]}")
    if (place := getattr(engine, "activations", "device")) != "device":
        found.append(f"inputs of blocks {_PLACES[place]}")
    elif way.config.model.checkpointing:
        found.append("checkpointing")
    if train.accumulate > 1:
        block_wise = getattr(engine, "order", "step") == "block"
        found.append(f"{train.accumulate} micro-batches" + (" through each block" * block_wise))
    if train.loss == "sliced":
        found.append("loss in slices")
    return found


def _days(way: Way, machine: TargetMachine) -> float | None:
    """Days of training until the drive is worn; None if nothing is written."""
    if not way.written:
        return None
    return RATED_TB * machine.drive_bytes / 1e12 / tb_per_day(way.written, way.seconds)


def _figures(model: str, machine: TargetMachine, found: Choices) -> dict[str, Any]:
    """Return the table as plain values; programs may rely on the keys."""
    return {
        "model": model,
        "parameters": found.parameters,
        "tokens_per_step": found.tokens,
        "sequence_length": found.sequence_length,
        "machine": {
            "device_bytes": machine.device_bytes,
            "host_bytes": machine.host_bytes,
            "disk_bytes": machine.disk_bytes,
            "rates": machine.rates,
            "text": machine.lines,
        },
        "ways": [
            {
                "name": way.name,
                "fits": not way.short,
                "too_small": way.short or None,
                "gives_up": way.gives_up,
                "seconds_per_step": way.seconds,
                "tokens_per_second": found.tokens / way.seconds,
                "peak_bytes": way.tiers,
                "bytes_per_step": way.links,
                "days_to_worn_drive": _days(way, machine),
                "options": options_of(way),
                "config": _tree(way, machine, None),
            }
            for way in found.ways
        ],
        "impossible": found.impossible,
    }


def _text(model: Path, machine: TargetMachine, found: Choices) -> str:
    count = found.tokens // found.sequence_length
    sequences = f"{count} sequence" + "s" * (count > 1)
    rows = [["", "s a step", "tokens/s", "device", "host", "disk", "drive worn in", "gives up"]]
    for way in (way for way in found.ways if not way.short):
        tiers, days = way.tiers, _days(way, machine)
        rows.append(
            [
                way.name,
                f"{way.seconds:.3g}",
                f"{found.tokens / way.seconds:,.0f}",
                format_bytes(tiers["device"]),
                format_bytes(tiers["host"] + tiers["pinned"]),
                format_bytes(tiers["disk"]) if tiers.get("disk") else "-",
                "-" if days is None else f"{days:,.0f} days",
                way.gives_up,
            ]
        )
    described = {way.name: ", ".join(options_of(way)) for way in found.ways if not way.short}
    others = {way.name: way.short for way in found.ways if way.short} | found.impossible
    timed = "rates were measured here" if machine.is_here else "nothing was timed"
    return "\n".join(
        [
            f"{model.resolve().name}: {format_count(found.parameters)} parameters; a step has "
            f"{found.tokens:,} tokens in {sequences} of {found.sequence_length:,}",
            *machine.lines,
            *filter(None, [found.note]),
            f"modelled, {timed}; a drive is worn after {RATED_TB} TB for each of its TB",
            *([columns(rows, "123456")] if len(rows) > 1 else []),
            *(f"{name}: {options}" for name, options in described.items() if options),
            *(f"{name} does not fit: {why}" for name, why in others.items()),
        ]
    )


def _budgets(way: Way, machine: TargetMachine) -> dict[str, int]:
    """Return bytes by tier; where device and host share a memory, both together have no more."""
    limits = {tier: getattr(way.config.budget, tier) for tier in ("device", "host", "pinned")}
    if not machine.shares_memory:
        return limits
    device, host = way.tiers["device"], way.tiers["host"] + way.tiers["pinned"]
    spare = max(0, machine.host_bytes - device - host) // 2
    on_host = min(limits["host"], host + spare)
    return {"device": device + spare, "host": on_host, "pinned": on_host}


def _tree(way: Way, machine: TargetMachine, data: str | None) -> dict[str, Any]:
    """Return the config of a way, without what is as by default."""
    train_on = DataSection(
        train=[data or "data.jsonl"], sequence_length=way.config.data.sequence_length
    )
    config = with_absolute_paths(way.config.model_copy(update={"data": train_on}))
    engine = config.engine
    model = {"path": config.model.path, "dtype": config.model.dtype}
    model |= {"autocast": config.model.autocast} if config.model.autocast else {}
    model |= {"checkpointing": True} if config.model.checkpointing else {}
    length = {"steps": _STEPS} if data is None else {"epochs": _EPOCHS}
    train: dict[str, Any] = {**length, "micro_batch": config.train.micro_batch}
    train |= {"accumulate": config.train.accumulate} if config.train.accumulate > 1 else {}
    train |= {"loss": "sliced"} if config.train.loss == "sliced" else {}
    if engine.kind != "zo":
        train |= {"lr": _RATE, "warmup_steps": 0.05}
    tree = {
        "model": model,
        "data": {"train": config.data.train, "sequence_length": config.data.sequence_length},
        "train": train,
        "engine": {"kind": engine.kind} | engine.model_dump(mode="json", exclude_defaults=True),
        "budget": {tier: f"{size >> 20}MiB" for tier, size in _budgets(way, machine).items()},
    }
    if machine.folder is not None and getattr(engine, "tier", None) in ("disk", "auto"):
        name = Path(config.model.path).resolve().name
        tree["store"] = {"path": str(machine.folder / f"{name}-states")}
    return tree


def _assumed(rates: dict[str, Any]) -> str:
    """Return rates of a machine that is not here as a section of a config, on one line."""
    link = {way: rates[way] for way in ("d2h_gbps", "h2d_gbps")}
    names = ("tflops", "memory_gbps", "host_gbps", "disk_gbps")
    section = {"name": "cuda:0", "link": link} | {n: rates[n] for n in names if n in rates}
    tree = {"device": section}
    return yaml.safe_dump(tree, sort_keys=False, default_flow_style=True, width=200).strip()[1:-1]


def config_text(way: Way, machine: TargetMachine, data: str | None, tokens: int) -> str:
    """Return YAML that trains in this way, with its plan as comments."""
    peak = ", ".join(f"{tier} {format_bytes(count)}" for tier, count in way.tiers.items() if count)
    head = [
        ": ".join(filter(None, (way.name, ", ".join(options_of(way))))) + ".",
        f"Gives up: {way.gives_up}.",
        f"Planned: {way.seconds:.3g} s for a step of {tokens:,} tokens; {peak}.",
        *machine.lines,
    ]
    if data is None:
        head.append("Set data.train to your files; docs/guide.md, section 4, has their formats.")
    if not machine.is_here:
        head.append("Plans of this file on another machine need what was assumed of this one:")
        head.append(_assumed(machine.rates))
    shown = yaml.safe_dump(_tree(way, machine, data), sort_keys=False, default_flow_style=None)
    return "".join(f"# {line}\n" for line in head) + "\n" + shown
