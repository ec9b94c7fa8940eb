"""The demo: one model, one throttled link, fine-tuned six ways; then a table and a picture.

    python experiments/quickstart/demo.py        (what `make demo` runs)

First this machine's compute rate is measured, and the link is throttled to a laptop's ratio to it;
`--link-gbps` fixes the link's rate instead. Every number of the table comes from the run folders
that `sluiceway train` has just written.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import yaml
from link_rate import CARD_FLOP_PER_S, CARD_LINK_GBPS, CARD_TOKENS, measured
from rich import box
from rich.console import Console
from rich.table import Table
from run_folder import REPOSITORY, RunFolder, link_overrides, provenance, train

SPREAD = Path(__file__).with_name("native_spread.json")
NATIVE = {"engine": {"kind": "native", "embeddings": "frozen"}}
BARRIER = {"engine.codec": "identity", "schedule.order": "barrier"}
CORES = {"engine.codec": "block_random"}
# All of these train the same weights: the byte embedding and the tied head are frozen.
FROZEN = {
    "native AdamW": ("native", NATIVE),
    "full gradients": ("barrier", BARRIER),
    "cores": ("cores", CORES),
    "Sluiceway": ("sluiceway", {}),  # The default, which decides whether a core pays.
}


def difference(name: str) -> dict[str, Any]:
    """What a config with states on disk says that the quickstart does not, as overrides."""
    told = {
        each: yaml.safe_load((REPOSITORY / "configs" / f"{each}.yaml").read_text())
        for each in ("quickstart", name)
    }
    first, other = told["quickstart"], told[name]
    train = {k: v for k, v in other["train"].items() if v != first["train"].get(k)}
    return {
        **{key: other[key] for key in ("engine", "store", "budget")},
        **{f"train.{key}": value for key, value in train.items()},
    }


# Full AdamW of every weight, embedding and head too.
ON_DISK = {
    "AdamW on disk": ("disk", difference("quickstart_offload_disk")),
    "disk, codec": ("codec", difference("quickstart_offload_compressed")),
}
WAYS = {**FROZEN, **ON_DISK}


def mebibytes(count: float) -> str:
    """Format bytes as MiB with three digits, or as many as a column holds."""
    text = f"{count / 2**20:.3g}"
    return text if len(text) <= 5 else f"{count / 2**20:.3f}"


def choose_link(config: Path, fixed_gbps: float | None) -> dict[str, Any]:
    """Measure this machine, and take the link rate that follows from it, or the fixed one."""
    compute = measured(config)
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


def rates_line(link: dict[str, Any]) -> str:
    """Say what was measured, and which rate follows."""
    return (
        f"measured: {link['flop_per_s'] / 1e9:.3g} GFLOP/s on one core in {link['precision']}; "
        f"a laptop's link to that: {link['derived_gbps']:.3g} GB/s; taken: {link['gbps']:.3g} GB/s "
        f"({link['rate']})"
    )


def stands_for(link: dict[str, Any]) -> str:
    """Say for which tokens a step and which ratio of link to compute the table holds."""
    return (
        f"{link['tokens_per_step']:,} tokens a step; link {link['gbps']:.3g} GB/s, "
        f"{1e3 * link['bytes_per_flop']:.3g} bytes per kFLOP\n"
        f"(the laptop: {link['card_tokens_per_step']:,} tokens, "
        f"{1e3 * link['card_bytes_per_flop']:.3g} bytes per kFLOP)"
    )


def table_of(runs: dict[str, RunFolder], link: dict[str, Any]) -> Table:
    """Build the table; the first run is what the others are measured against."""
    table = Table(
        title="Six ways to fine-tune the same model over the same link\n" + stands_for(link),
        box=box.SIMPLE_HEAD,
        padding=0,
        pad_edge=False,
    )  # 80 columns hold it.
    columns = ("", "s per\nstep", "of\nnative", "d2h\nMiB", "h2d\nMiB", "stall\n%", "device\nMiB",
               "host\nMiB", "pinned\nMiB", "loss\nbefore", "loss\nafter")  # fmt: skip
    for column in columns:
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    native = next(iter(runs.values())).step_seconds
    for name, run in runs.items():
        table.add_row(
            name,
            f"{run.step_seconds:.3f}",
            f"{run.step_seconds / native:.2f}x",
            mebibytes(run.bytes_per_step("d2h")),
            mebibytes(run.bytes_per_step("h2d")),
            f"{100 * run.stall_share:.1f}",
            *(mebibytes(run.peak_bytes(tier)) for tier in ("device", "host", "pinned")),
            f"{run.loss_before:.3f}",
            f"{run.loss_after:.3f}",
        )
    return table


def kept_gain(runs: dict[str, RunFolder], spread: float) -> str:
    """Say what each other run kept of native's gain in held-out loss, or that it is level.

    Parameters
    ----------
    spread : float
        How far apart native ends from starts that differ by rounding: less says nothing.
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
    """Say what sets the runs with states on disk apart from those above them."""
    written = " and ".join(mebibytes(run.bytes_per_step("disk_written")) for run in runs.values())
    (whole, run), (codec, _) = runs.items()
    micro_batches = ON_DISK[codec][1]["train.accumulate"]
    return (
        f"{whole} and {codec} train all weights, embedding and head too, which the others leave "
        f"frozen: do not compare their losses; a step writes {written} MiB to the disk; {codec} "
        f"has {micro_batches} micro-batches a step, whose whole gradients would be "
        f"{mebibytes(micro_batches * run.bytes_per_step('d2h'))} MiB"
    )


def run_all(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Measure the machine, run all ways, and write what they say to demo.json."""
    console.rule("this machine")
    link = choose_link(args.config, args.link_gbps)
    console.print(rates_line(link))
    overrides: dict[str, object] = link_overrides(link["gbps"])
    if args.steps:
        overrides["train.steps"] = args.steps
    summaries = {}
    for place, (name, (folder, own)) in enumerate(WAYS.items(), start=1):
        console.rule(f"{place} of {len(WAYS)}: {name}")
        summaries[name] = train(args.config, args.out / folder, {**own, **overrides}).summary
    return {**provenance(), "link": link, "runs": summaries}


def main() -> None:
    """Run all ways, then print and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, default=REPOSITORY / "configs/quickstart.yaml")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "runs/demo")
    parser.add_argument("--steps", type=int, help="instead of the config's")
    parser.add_argument("--link-gbps", type=float, help="instead of the rate derived here")
    parser.add_argument("--show", action="store_true", help="table and picture of runs there are")
    args = parser.parse_args()
    from demo_picture import draw

    console = Console()
    began = time.monotonic()
    written, picture = args.out / "demo.json", args.out / "demo.png"
    if not args.show:
        written.parent.mkdir(parents=True, exist_ok=True)
        written.write_text(json.dumps(run_all(args, console), indent=1) + "\n")
    link = json.loads(written.read_text())["link"]
    runs = {name: RunFolder(args.out / folder) for name, (folder, _) in WAYS.items()}
    frozen = {name: runs[name] for name in FROZEN}
    draw(frozen, picture)
    console.print(table_of(runs, link))
    console.print(kept_gain(frozen, json.loads(SPREAD.read_text())["spread"]))
    console.print(on_disk({name: runs[name] for name in ON_DISK}))
    console.print(
        "full gradients: offloaded with barriers; cores: 1/16 of each gradient's elements; "
        "Sluiceway: its default, here "
        f"{runs['Sluiceway'].summary['codecs'][0]['codec']}; medians over steps; bytes of a step, "
        "highest bytes per tier; stall: the device waited for a link or the host"
    )
    console.print(rates_line(link))
    console.print(f"picture: {picture}   ({time.monotonic() - began:.0f} s in all)")


if __name__ == "__main__":
    main()
