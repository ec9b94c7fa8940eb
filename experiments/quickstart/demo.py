"""Run the demo: fine-tune one model over one throttled link in six ways; show table and picture.

    python -m experiments.quickstart.demo        (what `make demo` runs)

First the demo measures this machine's compute rate, and throttles the link to a laptop's ratio of
link to compute; `--link-gbps` fixes the link's rate instead. The ways take turns, a few steps at a
time, so that a busy machine slows them alike. Every number of the table comes from the run folders
that the ways have just written. If there is a usable card, it computes, and each way that uses the
link runs twice: over the card's own link, and over a link paced to a laptop's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from experiments.harness import REPOSITORY, provenance
from experiments.quickstart.demo_ways import IN_MEMORY, ON_DISK, WAYS, paced, ways_on
from experiments.quickstart.interleaved import TURN_STEPS, take_turns
from experiments.quickstart.link_rate import CARD_FLOP_PER_S, CARD_LINK_GBPS, CARD_TOKENS, measured
from experiments.quickstart.run_folder import RunFolder
from experiments.quickstart.turn_ratio import TurnRatio, turn_ratio

SPREAD = Path(__file__).with_name("native_spread.json")
BUSY_SHARE = 0.05  # Warn when other programs keep a larger share of the cores busy.


def mebibytes(count: float) -> str:
    """Format bytes as MiB with three digits, or as many as a column holds."""
    text = f"{count / 2**20:.3g}"
    return text if len(text) <= 5 else f"{count / 2**20:.3f}"


def choose_link(
    config: Path, fixed_gbps: float | None, device: str | None = None
) -> dict[str, Any]:
    """Measure a device, and return the link rate derived from it, or the fixed one."""
    compute = measured(config, device)
    derived = compute.pop("link_gbps")
    gbps = derived if fixed_gbps is None else fixed_gbps
    return {
        "gbps": gbps,
        "rate": "derived" if fixed_gbps is None else "fixed",
        "derived_gbps": derived,
        "bytes_per_flop": 1e9 * gbps / compute["flop_per_s"],
        "card_bytes_per_flop": 1e9 * CARD_LINK_GBPS / CARD_FLOP_PER_S,
        "card_tokens_per_step": CARD_TOKENS,
        **compute,
    }


def computes(link: dict[str, Any]) -> str:
    """Name the device that the measured rate belongs to."""
    return "one core" if link["device"] == "host" else link["device"]


def own_link(link: dict[str, Any]) -> str:
    """Describe a card's link; return nothing for the host device, whose link is its memory."""
    if link["device"] == "host":
        return ""
    rates = link["own_link_gbps"]
    return f"its own link: {rates['d2h']:.3g} GB/s down, {rates['h2d']:.3g} GB/s up; "


def rates_line(link: dict[str, Any]) -> str:
    """State the measured rate, and the link rate that follows from it."""
    return (
        f"measured: {link['flop_per_s'] / 1e9:.3g} GFLOP/s on {computes(link)} in "
        f"{link['precision']}; {own_link(link)}"
        f"a laptop's link to that: {link['derived_gbps']:.3g} GB/s; taken: {link['gbps']:.3g} GB/s "
        f"({link['rate']})"
    )


def stands_for(link: dict[str, Any]) -> str:
    """State the tokens a step and the ratio of link to compute that the table holds for."""
    which = "link" if link["device"] == "host" else "paced link"
    return (
        f"{link['tokens_per_step']:,} tokens a step; {which} {link['gbps']:.3g} GB/s, "
        f"{1e3 * link['bytes_per_flop']:.3g} bytes per kFLOP\n"
        f"(the laptop: {link['card_tokens_per_step']:,} tokens, "
        f"{1e3 * link['card_bytes_per_flop']:.3g} bytes per kFLOP)"
    )


def title_of(link: dict[str, Any]) -> str:
    """Title of the table: the compared ways, and the machine that it stands for."""
    over = (
        "the same model over the same link"
        if link["device"] == "host"
        else f"the same model on {link['device']}, over its own link and over a laptop's"
    )
    return f"Six ways to fine-tune {over}\n{stands_for(link)}"


def ratios_of(runs: dict[str, RunFolder]) -> dict[str, TurnRatio]:
    """Return each run's step time over that of the first run, which is native's."""
    native = next(iter(runs.values())).rounds
    return {name: turn_ratio(run.rounds, native) for name, run in runs.items()}


def table_of(runs: dict[str, RunFolder], link: dict[str, Any]) -> Table:
    """Build the table; the first run is the baseline of the others."""
    table = Table(
        title=title_of(link),
        box=box.SIMPLE_HEAD,
        padding=0,
        pad_edge=False,
    )  # Fits 80 columns.
    columns = ("", "s per\nstep", "of\nnative", "d2h\nMiB", "h2d\nMiB", "stall\n%", "device\nMiB",
               "host\nMiB", "pinned\nMiB", "loss\nbefore", "loss\nafter")  # fmt: skip
    for column in columns:
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    ratios = ratios_of(runs)
    for name, run in runs.items():
        table.add_row(
            name if name in WAYS else "  paced",
            f"{run.step_seconds:.3f}",
            f"{ratios[name].median:.2f}x",
            mebibytes(run.bytes_per_step("d2h")),
            mebibytes(run.bytes_per_step("h2d")),
            f"{100 * run.stall_share:.1f}",
            *(mebibytes(run.peak_bytes(tier)) for tier in ("device", "host", "pinned")),
            f"{run.loss_before:.3f}",
            f"{run.loss_after:.3f}",
        )
    return table


def spread_line(runs: dict[str, RunFolder]) -> str:
    """Say how far the ratio of each way spreads over the rounds."""
    _, *others = ratios_of(runs).items()
    rounds = len(next(iter(runs.values())).rounds)
    return f"of native: median over {rounds} rounds; their middle half: " + ", ".join(
        f"{r.low:.2f} to {r.high:.2f} ({name})" for name, r in others
    )


def load_line(others_cores: list[float], cores: int) -> str:
    """Say how busy other programs kept the machine, and which ratios that changes.

    Parameters
    ----------
    others_cores : list of float
        Cores that other programs kept busy in each round, on average.
    """
    mean, most = statistics.fmean(others_cores), max(others_cores)
    said = (
        f"others kept {mean:.2f} of {cores} cores busy, and {most:.2f} in the busiest of "
        f"{len(others_cores)} rounds"
    )
    if mean <= BUSY_SHARE * cores:
        return f"{said}: the machine was quiet"
    return (
        f"{said}: the machine was busy; ways that wait for a link or a disk, or whose lanes need a "
        "second core, have other ratios on a quiet one"
    )


def kept_gain(runs: dict[str, RunFolder], spread: float) -> str:
    """Say what share of native's gain in held-out loss each other run kept, or that it is level.

    Parameters
    ----------
    spread : float
        Distance between native's final losses from starts that differ by rounding. A smaller
        difference means nothing.
    """
    (_, native), *others = runs.items()
    gain = native.loss_before - native.loss_after

    def kept(run: RunFolder) -> str:
        if abs(run.loss_after - native.loss_after) <= spread:
            return "level"
        return f"{100 * (run.loss_before - run.loss_after) / gain:.0f} % of that kept"

    return (
        f"native gained {gain:.3f} nats a byte on held-out text; starts that differ by 1e-7 end "
        f"up to {spread:.3f} apart; beside it: "
        + ", ".join(f"{name} {kept(run)}" for name, run in others)
    )


def on_disk(runs: dict[str, RunFolder]) -> str:
    """Say what the runs with states on disk write, and how the codec divides a step."""
    written = " and ".join(mebibytes(run.bytes_per_step("disk_written")) for run in runs.values())
    (whole, run), (codec, _) = runs.items()
    micro_batches = ON_DISK[codec][1]["train.accumulate"]
    return (
        f"a step of {whole} and {codec} writes {written} MiB to the disk; {codec} has "
        f"{micro_batches} micro-batches a step, whose whole gradients would be "
        f"{mebibytes(micro_batches * run.bytes_per_step('d2h'))} MiB"
    )


def lessons(runs: dict[str, RunFolder]) -> str:
    """Say in plain words what the table shows, with its figures."""
    ratios = ratios_of(runs)

    def times(name: str) -> str:
        return f"{ratios[name].median:.2f} times native's step"

    usual, ours, disk = (runs[name] for name in ("full gradients", "Sluiceway", "AdamW on disk"))
    native = runs["native AdamW"]
    return "\n".join(
        [
            "What to take from this:",
            "- native AdamW is the fastest, if its states fit beside the weights: "
            f"{mebibytes(native.peak_bytes('device'))} MiB here. The other ways are for when they "
            "do not.",
            "- The usual way out sends whole gradients to the host and waits for them: "
            f"{times('full gradients')}, of which {100 * usual.stall_share:.0f} % is waiting.",
            f"- Sluiceway's default waits {100 * ours.stall_share:.0f} %: {times('Sluiceway')}, in "
            f"{mebibytes(ours.peak_bytes('device'))} MiB, and ends at loss {ours.loss_after:.3f} "
            f"(native: {native.loss_after:.3f}).",
            "- AdamW with its states on a drive has native's mathematics with "
            f"{mebibytes(disk.peak_bytes('host') + disk.peak_bytes('pinned'))} MiB of host memory: "
            f"{times('AdamW on disk')}. A model of any size takes no more.",
            "Your model on your machine: sluiceway plan MODEL; your data: sluiceway init",
        ]
    )


def run_all(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Measure the machine, run all ways in turns, and return the contents of demo.json."""
    console.rule("this machine")
    link = choose_link(args.config, args.link_gbps, device="auto")
    console.print(rates_line(link))
    more = {"train.steps": args.steps, "train.eval_every": args.steps}
    ways = ways_on(link["device"], link["gbps"])
    placed = {name: (args.out / folder, {**own, **more}) for name, (folder, own) in ways.items()}
    console.rule(f"{len(ways)} runs, {TURN_STEPS} steps of each in turn")
    others_cores = take_turns(args.config, placed, console.print)
    runs = folders(args.out, link)
    return {
        **provenance(),
        "link": link,
        "turns": {
            "steps": TURN_STEPS,
            "cores": len(os.sched_getaffinity(0)),
            "others_cores": others_cores,
        },
        "of_native": {name: asdict(ratio) for name, ratio in ratios_of(runs).items()},
        "runs": {name: run.summary for name, run in runs.items()},
    }


def folders(out: Path, link: dict[str, Any]) -> dict[str, RunFolder]:
    """Return the run of each way."""
    ways = ways_on(link["device"], link["gbps"])
    return {name: RunFolder(out / folder, TURN_STEPS) for name, (folder, _) in ways.items()}


def main() -> None:
    """Run all ways, then print and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, default=REPOSITORY / "configs/quickstart.yaml")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "runs/demo")
    parser.add_argument("--steps", type=int, default=60, help="steps of each run")
    parser.add_argument("--link-gbps", type=float, help="replaces the derived link rate")
    parser.add_argument("--show", action="store_true", help="table and picture of finished runs")
    args = parser.parse_args()
    from experiments.quickstart.demo_picture import draw

    console = Console()
    began = time.monotonic()
    written, picture = args.out / "demo.json", args.out / "demo.png"
    if not args.show:
        written.parent.mkdir(parents=True, exist_ok=True)
        written.write_text(json.dumps(run_all(args, console), indent=1) + "\n")
    result = json.loads(written.read_text())
    link, turns = result["link"], result["turns"]
    runs = folders(args.out, link)
    first = {name: runs[name] for name in IN_MEMORY}
    draw({name: runs.get(paced(name), run) for name, run in first.items()}, picture)
    console.print(table_of(runs, link))
    console.print(spread_line(runs))
    console.print(load_line(turns["others_cores"], turns["cores"]))
    console.print(
        kept_gain({name: runs[name] for name in WAYS}, json.loads(SPREAD.read_text())["spread"])
    )
    console.print(on_disk({name: runs[name] for name in ON_DISK}))
    console.print(
        "full gradients: offloaded with barriers; cores: 1/16 of each gradient's elements; "
        "Sluiceway: its default, here "
        f"{runs['Sluiceway'].summary['codecs'][0]['codec']}; medians over steps; bytes of a step, "
        "highest bytes per tier; stall: the device waited for a link or the host"
    )
    console.print(rates_line(link))
    console.print(f"picture: {picture}   ({time.monotonic() - began:.0f} s in all)")
    console.print(lessons(runs))


if __name__ == "__main__":
    main()
