"""What a run will need and take, predicted from the model's config.json before anything is made."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from sluiceway.base.columns import columns
from sluiceway.base.json_text import json_text
from sluiceway.base.sizes import format_bytes
from sluiceway.config.schema import Config
from sluiceway.engines import engine_of
from sluiceway.engines.plan import EnginePlan, trained_elements
from sluiceway.errors import OutOfMemory
from sluiceway.machine.card import card_memory
from sluiceway.machine.footprint import FIRST_USE_BYTES, resident_bytes
from sluiceway.machine.placement import (
    DTYPES,
    Placement,
    choose_placement,
    denormals,
    is_here,
    too_many_threads,
    with_threads_of_this_machine,
)
from sluiceway.machine.wear import RATED_TB, hiding_tokens, tb_per_day
from sluiceway.model.folder import check_context, check_model_folder
from sluiceway.model.rehearsal import Rehearsal, rehearse
from sluiceway.model.skeleton import build_skeleton
from sluiceway.model.speeds import measure_speeds
from sluiceway.optim.common.tier_limits import planned_device_limit
from sluiceway.optim.subspace.fused.fusing import fused_lines


def make_plan(config: Config) -> dict[str, Any]:
    """Predict bytes per tier, bytes per link and seconds per step.

    Returns
    -------
    dict
        Plain numbers. `over_budget` is None, or says which tier is too small and by how much.
    """
    shape = check_model_folder(config.model.path, weights=False)
    check_context(shape, config.model.path, config.data.sequence_length)
    config = with_threads_of_this_machine(config)  # A plan may be for another one.
    placement = choose_placement(config, of_plan=True)
    if config.device.threads is not None:
        torch.set_num_threads(config.device.threads)
    engine = engine_of(config)

    def build(layers: int | None = None) -> torch.nn.Module:
        dtype = DTYPES[config.model.dtype]
        return engine.prepare(build_skeleton(config.model.path, dtype, layers))

    with torch.device("meta"):
        model = build()
    resident = resident_bytes()  # What a run has imported too; a rehearsal imports more.
    plan = engine.plan(model)

    def rehearsal_of(make: Callable[[], torch.nn.Module], backward: bool) -> Rehearsal:
        sizes = config.train.micro_batch, config.data.sequence_length
        return rehearse(make, plan.freed, *sizes, placement.autocast_dtype, backward)

    rehearsal = rehearsal_of(lambda: plan.as_trained(build()), plan.backward)
    like_native = plan.backward and "fused" not in plan.figures
    plain = rehearsal if like_native else rehearsal_of(build, True)
    with denormals(config, placement):
        speeds = measure_speeds(config, placement, build, disk="disk_read" in plan.links())
    plan.choose(rehearsal, speeds, lambda: planned_device_limit(config.budget.device, placement))
    tiers = plan.tiers(rehearsal)
    tiers["process"] = resident + FIRST_USE_BYTES + _in_process(placement, tiers)
    trained = trained_elements(model)
    card = _card(placement)
    links, seconds = plan.links(), plan.seconds(rehearsal, speeds)
    return {
        "model": config.model.path,
        "device": {"name": placement.name, "here": is_here(placement.name), **card},
        "engine": config.engine.kind,
        **plan.figures,
        "parameters": {
            "trained": trained,
            "frozen": sum(p.numel() for p in model.parameters()) - trained,
        },
        "peak_bytes": tiers,
        "budget_bytes": {tier: _limit(config, tier) for tier in tiers},
        "bytes_per_step": links,
        "seconds_per_step": seconds,
        **({"disk": _disk(plan, links, trained, seconds, speeds)} if "disk_read" in links else {}),
        "native_device_bytes": _native_bytes(config, plain, trained),
        "tokens_per_step": config.tokens_per_step,
        "assumed": speeds,
        "over_budget": _over_budget(config, tiers, plan)
        or _over_card(placement.name, card, tiers["device"], plan),
    }


def _disk(
    plan: EnginePlan, links: dict[str, int], trained: int, seconds: float, speeds: dict[str, Any]
) -> dict[str, Any]:
    """What the traffic of the disk asks for; None where the disk's rate is not known.

    What is written counts with a step's share of what comes now and then.
    """
    each = (links["disk_read"] + links["disk_written"]) / trained
    gbps = speeds["disk_gbps"]
    written = links["disk_written"] + plan.figures.get("consolidation", {}).get(
        "written_per_step", 0
    )
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
    """Bytes of the tiers that are memory of the process; the host device is one of them."""
    on_gpu = placement.device.type == "cuda"
    elsewhere = {"disk", "device"} if on_gpu else {"disk"}
    return sum(count for tier, count in tiers.items() if tier not in elsewhere)


def _card(placement: Placement) -> dict[str, int]:
    """Memory of the card that is here, if the device is one."""
    has_one = placement.name != "host" and is_here(placement.name)
    return card_memory(placement.device) if has_one else {}


def _limit(config: Config, tier: str) -> int | None:
    """The budget of a tier; the process as a whole has none."""
    return getattr(config.budget, tier, None)


def _native_bytes(config: Config, rehearsal: Rehearsal, trained: int) -> int:
    """What plain AdamW on the same trained weights would hold: gradients and moments whole."""
    element = DTYPES[config.model.dtype].itemsize
    gradients = max(rehearsal.after_forward_bytes, rehearsal.weight_bytes + element * trained)
    return max(gradients, rehearsal.peak_bytes) + 2 * element * trained


def _over_budget(config: Config, tiers: dict[str, int], plan: EnginePlan) -> str | None:
    for tier, count in tiers.items():
        limit = _limit(config, tier)
        if limit is not None and count > limit:
            return (
                f"budget.{tier}: the run needs {count} bytes ({format_bytes(count)}), "
                f"the budget is {limit} bytes ({format_bytes(limit)}); "
                + (plan.on_device if tier == "device" else plan.advice)
            )
    return None


def _over_card(name: str, card: dict[str, int], needed: int, plan: EnginePlan) -> str | None:
    """The card of this machine, whatever budget.device says; without the driver's own share."""
    if needed <= card.get("memory_bytes", needed):
        return None
    total = card["memory_bytes"]
    return (
        f"{name}: the run needs {needed} bytes ({format_bytes(needed)}), "
        f"the card has {total} bytes ({format_bytes(total)}); {plan.on_device}"
    )


def planned(config: Config, folder: Path, quiet: bool) -> Config:
    """The config of a run in a folder with what it leaves to the plan; prints why, if not quiet."""
    plan = make_plan(config.engine.in_folder(config, folder))
    for line in () if quiet else _chosen(plan):
        print(f"{config.engine.kind}: {line}", flush=True)
    return config.model_copy(update={"engine": config.engine.planned(plan)})


def show_plan(config: Config, as_json: bool) -> None:
    """Print the plan.

    Raises
    ------
    sluiceway.errors.OutOfMemory
        A budget is too small for it.
    """
    if said := too_many_threads(config):
        print(f"sluiceway: train would be refused here: {said}", file=sys.stderr)
    figures = make_plan(config)
    print(json_text(figures) if as_json else describe_plan(figures), flush=True)
    if figures["over_budget"]:
        raise OutOfMemory(figures["over_budget"])


def describe_plan(plan: dict[str, Any]) -> str:
    """The table that a person gets."""
    rows = [["", "predicted", "budget"]]
    for tier, count in plan["peak_bytes"].items():
        budget = plan["budget_bytes"][tier]
        name = tier if tier == "disk" else f"{tier} memory"
        rows.append([name, format_bytes(count), format_bytes(budget)])
    for link, count in plan["bytes_per_step"].items():
        rows.append([f"{link} a step", format_bytes(count), ""])
    rows.append(["seconds a step", f"{plan['seconds_per_step']:.3g}", ""])
    if "codec_seconds" in plan:
        rows.append(["of the host for the codec", f"{plan['codec_seconds']:.3g}", ""])
    for part in ("trained", "frozen"):
        rows.append([f"parameters {part}", f"{plan['parameters'][part]:,}", ""])
    rows.append(["native AdamW: device", format_bytes(plan["native_device_bytes"]), ""])
    fused = "".join(f"\n{line}" for line in fused_lines(plan.get("fused")))
    engine = f"{plan['engine']} {plan.get('codec') or ''}".rstrip()
    why = f" ({plan['why']})" if plan.get("why") else ""
    speeds = plan["assumed"]
    return (
        f"{Path(plan['model']).name}: {engine}{why}{fused}\n{columns(rows, '12')}\n"
        f"times assume {speeds['tflops']:.3g} TFLOP/s ({speeds['tflops_from']}), "
        f"{speeds['memory_gbps']:.3g} GB/s of device memory and {speeds['host_gbps']:.3g} GB/s "
        f"of host memory ({speeds['host_gbps_from']})"
        + _describe_disk(plan)
        + "".join(f"\n{line}" for line in _chosen(plan))
        + _describe_consolidation(plan)
        + _describe_slots(plan)
        + _describe_card(plan)
        + _elsewhere(plan)
    )


def _describe_card(plan: dict[str, Any]) -> str:
    """One more line where there is a card: its memory and link, and what of a budget it has not."""
    device, speeds = plan["device"], plan["assumed"]
    if "memory_bytes" not in device:
        return ""
    total, free = device["memory_bytes"], device["free_bytes"]
    budget = plan["budget_bytes"]["device"]
    less = budget is not None and budget > total
    short = plan["peak_bytes"]["device"] > free
    return (
        f"\n{device['name']}: {format_bytes(total)}, {format_bytes(free)} of it free"
        + (", which is less than the run needs" if short else "")
        + (f"; budget.device is more than it has, {format_bytes(budget)}" if less else "")
        + f"; link {speeds['d2h_gbps']:.3g} GB/s to the host, {speeds['h2d_gbps']:.3g} GB/s to the "
        f"device ({speeds['link_gbps_from']})"
    )


def _elsewhere(plan: dict[str, Any]) -> str:
    """One more line where the device was not seen."""
    if plan["device"]["here"]:
        return ""
    return (
        f"\n{plan['device']['name']} was not seen on this machine: planned for another one, whose "
        "rates are the config's; what it does not give was measured on this processor"
    )


def _chosen(plan: dict[str, Any]) -> list[str]:
    """A line for each thing that the plan has chosen."""
    said = {"directions": "directions", "new_bases": "new bases", "spill": "spill"}
    return [f"{name}: {plan[key]['why']}" for key, name in said.items() if key in plan]


def _describe_slots(plan: dict[str, Any]) -> str:
    """Two more lines where weights are streamed: what the device holds."""
    if "ring" not in plan:
        return ""
    parts = {name: format_bytes(part) for name, part in plan["device_parts"].items() if part}
    said = {
        "slots": "of slots",
        "resident": "of norms, biases and what else stays",
        "forwards": "of what forwards hold",
        "factors": "of factors and sums of updates",
    }
    listed = ", ".join(f"{size} {said[name]}" for name, size in parts.items())
    return f"\ndevice: {listed}\n{plan['ring']}"


def _describe_consolidation(plan: dict[str, Any]) -> str:
    """One more line where a base is written anew now and then."""
    if "consolidation" not in plan:
        return ""
    new = plan["consolidation"]
    return (
        f"\nconsolidation: a new base every {new['every']:,} steps, in {new['seconds']:.3g} s, "
        f"{format_bytes(new['bytes_read'])} read and as much written; a step's share is "
        f"{new['seconds_per_step']:.3g} s, which its seconds have, and "
        f"{format_bytes(round(new['written_per_step']))} written, which its bytes have not; a step "
        f"takes least with one every {new['cheapest']:,} steps"
    )


def _describe_disk(plan: dict[str, Any]) -> str:
    """Two more lines where there is a disk: what hides its traffic, and what is written."""
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
