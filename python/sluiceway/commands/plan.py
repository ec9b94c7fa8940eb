"""`sluiceway plan`: predicts memory, traffic and step time of a run, and prints them."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluiceway.base.columns import columns
from sluiceway.base.json_text import json_text
from sluiceway.base.sizes import format_bytes
from sluiceway.config.schema import Config
from sluiceway.engines.plan import EnginePlan, trained_elements
from sluiceway.errors import InvalidArgument, IoError, OutOfMemory, Unavailable
from sluiceway.machine.card import card_memory
from sluiceway.machine.footprint import FIRST_USE_BYTES
from sluiceway.machine.placement import (
    DTYPES,
    Placement,
    choose_placement,
    is_here,
    too_many_threads,
)
from sluiceway.machine.storage import check_folder
from sluiceway.machine.wear import RATED_TB, hiding_tokens, tb_per_day
from sluiceway.model.folder import load_tokenizer
from sluiceway.model.rehearsal import Rehearsal
from sluiceway.run.planning import predict
from sluiceway.text.batches import describe_length, describe_sequences
from sluiceway.text.files import missing_files
from sluiceway.text.sequences import show_first

if TYPE_CHECKING:
    from sluiceway.run.session import Inputs


@dataclass(frozen=True)
class RunPlan:
    """Memory, traffic and step time of a run, as figures for programs and text for people."""

    # Plain numbers; `over_budget` is None, or a text with the tier that is too small.
    figures: dict[str, Any]
    engine: EnginePlan  # Prints the lines that only this engine has.

    def text(self) -> str:
        """Return the table for people, with lines above and below it."""
        plan, engine = self.figures, self.engine
        codec = plan["engine"] + (f" with codec {plan['codec']}" if plan.get("codec") else "")
        why = f" ({plan['why']})" if plan.get("why") else ""
        speeds = plan["assumed"]
        rates = (
            f"times assume {speeds['tflops']:.3g} TFLOP/s ({speeds['tflops_from']}), "
            f"{speeds['memory_gbps']:.3g} GB/s of device memory and {speeds['host_gbps']:.3g} GB/s "
            f"of host memory ({speeds['host_gbps_from']})"
        )
        return "\n".join(
            [
                f"{Path(plan['model']).name}: {codec}{why}",
                *engine.layers(),
                columns(_rows(plan, engine), "12"),
                rates + _describe_disk(plan),
                *engine.chosen(),
                *engine.notes(),
                *_card_lines(plan),
                *_elsewhere_lines(plan),
            ]
        )


def make_plan(config: Config, speeds: dict[str, Any] | None = None) -> RunPlan:
    """Predict bytes per tier, bytes per link and seconds per step.

    `speeds` are rates that another plan assumed; None measures them.
    """
    found = predict(config, speeds)
    config, plan, speeds, placement = found.config, found.plan, found.speeds, found.placement
    tiers = plan.tiers(found.rehearsal)
    tiers["process"] = found.process_bytes + FIRST_USE_BYTES + _in_process(placement, tiers)
    budgets = {tier: getattr(config.budget, tier, None) for tier in tiers}  # The process has none.
    trained, here = trained_elements(found.model), is_here(placement.name)
    card = card_memory(placement.device) if here and placement.name != "host" else {}
    links, seconds = plan.links(), plan.seconds(found.rehearsal, speeds)
    figures = {
        "model": config.model.path,
        "device": {"name": placement.name, "here": here, **card},
        "engine": config.engine.kind,
        **plan.figures,
        "parameters": {
            "trained": trained,
            "frozen": sum(p.numel() for p in found.model.parameters()) - trained,
        },
        "peak_bytes": tiers,
        "budget_bytes": budgets,
        "bytes_per_step": links,
        "seconds_per_step": seconds,
        **({"disk": _disk(plan, links, trained, seconds, speeds)} if "disk_read" in links else {}),
        "native_device_bytes": _native_bytes(config, found.rehearse_native(), trained),
        "tokens_per_step": config.tokens_per_step,
        "assumed": speeds,
        "over_budget": _too_small(tiers, budgets, placement.name, card, plan),
    }
    return RunPlan(figures, plan)


def _disk(
    plan: EnginePlan, links: dict[str, int], trained: int, seconds: float, speeds: dict[str, Any]
) -> dict[str, Any]:
    """Return figures on the disk's traffic; None for figures that need an unknown rate.

    They include bytes written between steps, divided by the number of steps.
    """
    each = (links["disk_read"] + links["disk_written"]) / trained
    gbps = speeds["disk_gbps"]
    written = links["disk_written"] + plan.written_between_steps()
    daily = tb_per_day(written, seconds) if gbps else None
    return {
        "bytes_per_parameter": each,
        "hiding_tokens": hiding_tokens(each, speeds["tflops"], gbps, plan.token_flop)
        if gbps
        else None,
        "written_tb_per_day": daily,
        f"days_to_{RATED_TB}_tb": RATED_TB / daily if daily else None,
    }


def _in_process(placement: Placement, tiers: dict[str, int]) -> int:
    """Bytes of the tiers that are memory of the process, including the host device."""
    on_gpu = placement.device.type == "cuda"
    elsewhere = {"disk", "device"} if on_gpu else {"disk"}
    return sum(count for tier, count in tiers.items() if tier not in elsewhere)


def _native_bytes(config: Config, rehearsal: Rehearsal, trained: int) -> int:
    """Device bytes of plain AdamW on the same trained weights, with whole gradients and moments."""
    element = DTYPES[config.model.dtype].itemsize
    gradients = max(rehearsal.after_forward_bytes, rehearsal.weight_bytes + element * trained)
    return max(gradients, rehearsal.peak_bytes) + 2 * element * trained


def _too_small(
    tiers: dict[str, int],
    budgets: dict[str, int | None],
    device: str,
    card: dict[str, int],
    plan: EnginePlan,
) -> str | None:
    """Say which budget is too small, or that the card is, whatever budget.device says."""
    limits = [(tier, f"budget.{tier}", "budget is", limit) for tier, limit in budgets.items()]
    limits.append(("device", device, "card has", card.get("memory_bytes")))
    for tier, name, said, limit in limits:
        if limit is not None and tiers[tier] > limit:
            return (
                f"{name}: the run needs {tiers[tier]} bytes ({format_bytes(tiers[tier])}), "
                f"the {said} {limit} bytes ({format_bytes(limit)}); "
                + (plan.on_device if tier == "device" else plan.advice)
            )
    return None


def show_plan(
    config: Config, as_json: bool, trial: Path | None = None, reads_data: bool = False
) -> None:
    """Print the plan.

    In the folder `trial`, if there is one, measure a few steps with random weights and as many
    blocks as fit. With `reads_data` say what was found in the data, and show the first sequence.

    Raises
    ------
    sluiceway.errors.OutOfMemory
        A budget is too small for the run.
    """
    tell_refusal(too_many_threads(config))
    data = None
    if config.train.epochs is not None:  # The plan needs their steps.
        try:
            config, data = inputs_of(config)
        except (InvalidArgument, IoError, Unavailable) as error:
            if reads_data:
                raise
            tell_refusal(f"{error}; planned with {config.train.steps} steps")
            train = config.train.model_copy(update={"epochs": None})
            config = config.model_copy(update={"train": train})
    elif not reads_data:
        tell_refusal(missing_files(config.data))
    if trial is not None:  # Before the plan takes its time.
        check_folder(trial, "--measure")
        choose_placement(config)
    plan = make_plan(config)
    figures, over = plan.figures, plan.figures["over_budget"]
    if reads_data:
        try:  # Only now: the plan counts the memory of this process.
            data = data or inputs_of(config)[1]
        except (InvalidArgument, IoError, Unavailable) as error:
            tell_refusal(error)
        figures["data"] = data and data.counts
        if data and not as_json:
            print(*data_lines(config, data), "", sep="\n")
    if not as_json:
        print(plan.text(), flush=True)
    if trial is not None and not over:
        from sluiceway.commands.measured_plan import describe_measured, measure_plan

        figures["measured"] = found = measure_plan(config, figures, trial)
        if not as_json:
            print(describe_measured(found), flush=True)
    if as_json:
        print(json_text(figures), flush=True)
    if over:
        raise OutOfMemory(
            f"{over}\nsluiceway plan {config.model.path} lists what fits this machine; --device, "
            "--ram and --disk describe another one"
        )


def tell_refusal(reason: object) -> None:
    """Print why `train` would be refused, if there is a reason."""
    if reason:
        print(f"sluiceway: train would be refused here: {reason}", file=sys.stderr)


def inputs_of(config: Config) -> tuple[Config, Inputs]:
    """Read the data; return it, and the config with the steps that its epochs make of it.

    Raises
    ------
    sluiceway.errors.Error
        `train` would be refused, for model folder, machine or data.
    """
    from sluiceway.run.session import read_inputs, with_steps

    inputs = read_inputs(config, Path(config.model.path))
    return with_steps(config, inputs), inputs


def data_lines(config: Config, data: Inputs) -> list[str]:
    """Say what was found in the data, and show the first sequence."""
    return [
        *describe_sequences(config.data, data.counts),
        describe_length(config.train, data.train),
        *show_first(data.train, load_tokenizer(config.model.path)),
    ]


def plan_rows(figures: dict[str, Any]) -> list[tuple[str, str]]:
    """Return names and values of the figures that a plan and a run share."""
    rows = [
        (tier if tier == "disk" else f"{tier} memory", format_bytes(count))
        for tier, count in figures["peak_bytes"].items()
    ]
    for link, count in figures["bytes_per_step"].items():
        rows.append((f"{link} a step", format_bytes(count)))
    return [*rows, ("seconds a step", f"{figures['seconds_per_step']:.3g}")]


def _rows(plan: dict[str, Any], engine: EnginePlan) -> list[list[str]]:
    budgets = [format_bytes(count) for count in plan["budget_bytes"].values()]
    rows = [["", "predicted", "budget"]]
    for (name, value), budget in zip_longest(plan_rows(plan), budgets, fillvalue=""):
        rows.append([name, value, budget])
    rows += [[name, value, ""] for name, value in engine.rows()]
    for part in ("trained", "frozen"):
        rows.append([f"parameters {part}", f"{plan['parameters'][part]:,}", ""])
    rows.append(["native AdamW: device", format_bytes(plan["native_device_bytes"]), ""])
    return rows


def _card_lines(plan: dict[str, Any]) -> list[str]:
    """One line if there is a card: its memory, its link, and what exceeds its memory."""
    device, speeds = plan["device"], plan["assumed"]
    if "memory_bytes" not in device:
        return []
    total, free = device["memory_bytes"], device["free_bytes"]
    budget = plan["budget_bytes"]["device"]
    less = budget is not None and budget > total
    short = plan["peak_bytes"]["device"] > free
    return [
        f"{device['name']}: {format_bytes(total)}, {format_bytes(free)} of it free"
        + (", which is less than the run needs" if short else "")
        + (f"; budget.device is more than it has, {format_bytes(budget)}" if less else "")
        + f"; link {speeds['d2h_gbps']:.3g} GB/s to the host, {speeds['h2d_gbps']:.3g} GB/s to the "
        f"device ({speeds['link_gbps_from']})"
    ]


def _elsewhere_lines(plan: dict[str, Any]) -> list[str]:
    """One line if this machine does not have the device."""
    if plan["device"]["here"]:
        return []
    return [
        f"{plan['device']['name']} was not seen on this machine: this plan for another machine "
        "uses the config's rates, and for missing ones rates measured on this processor"
    ]


def _describe_disk(plan: dict[str, Any]) -> str:
    """Two more lines if there is a disk: the tokens that hide its traffic, and bytes written."""
    if "disk" not in plan:
        return ""
    disk, speeds = plan["disk"], plan["assumed"]
    if speeds["disk_gbps"] is None:
        return f"; the disk's time is not in them ({speeds['disk_gbps_from']})"
    tokens, daily = disk["hiding_tokens"], disk["written_tb_per_day"]
    written = "nothing is written while it trains"
    if daily:
        days = disk[f"days_to_{RATED_TB}_tb"]
        written = (
            f"{daily:.3g} TB written in a day of training; {RATED_TB} TB, assumed of a drive of "
            f"1 TB, in {days:.3g} days"
        )
    return (
        f", {speeds['disk_gbps']:.3g} GB/s of disk ({speeds['disk_gbps_from']})\n"
        f"disk: {disk['bytes_per_parameter']:.3g} bytes a parameter and step, hidden behind the "
        f"computing from {tokens:,.0f} tokens a step on, here are {plan['tokens_per_step']:,}\n"
        f"disk: {written}"
    )
