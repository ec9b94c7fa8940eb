"""Time the executor against its cost model; write results.json and README.md beside this file.

    python -m experiments.schedule.run BUILD_DIR [--steps 9] [--sets 20000] [--normal]
    python -m experiments.schedule.run --check-only

BUILD_DIR is a build without sanitizers. The script takes real-time priority where the system allows
it. With --normal it keeps normal priority and writes to results_normal.json. With --check-only it
runs nothing; it judges the figures of results.json again and rewrites README.md. The exit status is
1 if a measured step is beyond a bound.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
ORDERS = ("barrier", "fcfs", "paper", "edf")

Row = dict[str, Any]


def cpu_name() -> str:
    """The model that Linux reports, for the record."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def commit() -> str:
    """The commit that is checked out, with a mark when the tree differs from it."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    return done.stdout.strip() or "unknown"


def become_punctual() -> str:
    """Give this process and its children real-time priority, so that no other work delays them.

    Returns "normal" if the system does not allow it.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    except PermissionError:
        return "normal"
    return "fifo"


def run_experiment(build: Path, steps: int, sets: int, normal: bool) -> Row:
    """Run the binary of `build`; return its measurements, with place and time."""
    binary = build / "experiments" / "schedule" / "schedule_experiment"
    if not binary.exists():
        raise FileNotFoundError(f"{binary}: not built; build the target schedule_experiment")
    machine = {
        "cpu": cpu_name(),
        "processors": os.cpu_count(),
        "scheduling": "normal" if normal else become_punctual(),
        "load_before": round(os.getloadavg()[0], 2),
    }
    command = [str(binary), "--steps", str(steps), "--sets", str(sets)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    machine["load_after"] = round(os.getloadavg()[0], 2)
    head = {"commit": commit(), "build": build.name, "machine": machine}
    results: Row = {**head, **json.loads(done.stdout)}
    return results


def bound_s(row: Row) -> tuple[float, float]:
    """Return the bound in seconds of a step without norm barrier under edf, and its allowed factor.

    Equal layers: 5 % over the busiest resource plus the pipeline's fill. Unequal layers: 10 % over
    the busiest resource, plus the largest layer's d2h, host and h2d.
    """
    if row["layers"] == "equal":
        return row["lower_bound_s"] + row["pipeline_fill_s"], 1.05
    return 1.10 * row["lower_bound_s"] + row["largest_chain_s"], 1.0


def judge(results: Row) -> list[str]:
    """Return a line for every bound that does not hold."""
    failures = []
    for row in results["timed"]:
        name = " ".join((row["layers"], row["ratio"], "norm", row["norm_barrier"], row["order"]))
        ratio = row["measured_to_predicted"]
        if abs(ratio - 1) > 0.05:
            failures.append(f"{name}: measured is {ratio:.3f} of the model, expected 0.95 to 1.05")
        if row["order"] == "edf" and row["norm_barrier"] == "none":
            bound, factor = bound_s(row)
            if row["measured_s"] > factor * bound:
                failures.append(
                    f"{name}: {1e3 * row['measured_s']:.1f} ms, expected at most "
                    f"{1e3 * factor * bound:.1f} ms"
                )
    return failures


def judge_model(results: Row) -> list[str]:
    """Return a line for every kind of set in which edf loses more than 3 % somewhere."""
    return [
        f"model, {layer_counts(row)} layers, spread {row['spread']}, jitter {row['jitter']}, norm "
        f"{row['norm_barrier']}: edf loses more than 3 % in "
        f"{row['edf_lost_by_more_than_3_percent']} of {row['sets']} sets, at most "
        f"{row['edf_worst_loss']:.1%}"
        for row in results["model"]
        if row["edf_lost_by_more_than_3_percent"] > 0
    ]


def layer_counts(row: Row) -> str:
    """ "32" or "16 to 64"."""
    low, high = row["least_layers"], row["most_layers"]
    return str(low) if low == high else f"{low} to {high}"


def timed_table(results: Row) -> list[str]:
    """Format measured milliseconds a step and, in brackets, the ratio to the model."""
    cells: dict[tuple[str, str, str], dict[str, str]] = {}
    for row in results["timed"]:
        key = (row["layers"], row["ratio"], row["norm_barrier"])
        text = f"{1e3 * row['measured_s']:.1f} ({row['measured_to_predicted']:.3f})"
        cells.setdefault(key, {})[row["order"]] = text
    lines = [
        "| layers | ratio | norm barrier | " + " | ".join(ORDERS) + " |",
        "|---|---|---|" + "---|" * len(ORDERS),
    ]
    for key, by_order in cells.items():
        lines.append("| " + " | ".join([*key, *(by_order[order] for order in ORDERS)]) + " |")
    return lines


def bound_table(results: Row) -> list[str]:
    """Compare edf without norm barrier with the busiest resource."""
    lines = [
        "| layers | ratio | edf, ms | busiest, ms | fill or largest layer, ms | bound, ms |",
        "|---|---|---|---|---|---|",
    ]
    for row in results["timed"]:
        if row["order"] != "edf" or row["norm_barrier"] != "none":
            continue
        bound, factor = bound_s(row)
        extra = row["pipeline_fill_s"] if row["layers"] == "equal" else row["largest_chain_s"]
        figures = [row["measured_s"], row["lower_bound_s"], extra, factor * bound]
        cells = [row["layers"], row["ratio"], *(f"{1e3 * x:.1f}" for x in figures)]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def launched_table(results: Row) -> list[str]:
    """Format milliseconds a step by which thread waits for a late update."""
    lines = [
        "| ratio | launch, ms | the thread waits, ms | the device waits, ms | thread / device |",
        "|---|---|---|---|---|",
    ]
    for row in results["launched"]:
        cells = [row["ratio"], f"{1e3 * row['launch_s']:.2f}"]
        cells += [f"{1e3 * row[way]:.1f}" for way in ("thread_waits_s", "device_waits_s")]
        lines.append("| " + " | ".join([*cells, f"{row['thread_to_device']:.3f}"]) + " |")
    return lines


def model_table(results: Row) -> list[str]:
    """Table that compares edf with the best other order on random sets of layers."""
    lines = [
        "| layers | spread, jitter | norm barrier | sets | lost | by over 3 % | worst | mean |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in results["model"]:
        cells = [
            layer_counts(row),
            f"{row['spread']}, {row['jitter']}",
            row["norm_barrier"],
            str(row["sets"]),
            str(row["edf_lost"]),
            str(row["edf_lost_by_more_than_3_percent"]),
            f"{row['edf_worst_loss']:+.2%}",
            f"{row['edf_mean_loss']:+.2%}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def normal_section() -> list[str]:
    """Section on the run without real-time priority, if results_normal.json exists."""
    path = HERE / "results_normal.json"
    if not path.exists():
        return []
    results = json.loads(path.read_text(encoding="utf-8"))
    machine = results["machine"]
    ratios = sorted(row["measured_to_predicted"] for row in results["timed"])
    return [
        "## Without real-time priority",
        "",
        f"The same at normal priority (`results_normal.json`, load {machine['load_before']} before "
        f"and {machine['load_after']} after):",
        f"measured is {ratios[0]:.3f} to {ratios[-1]:.3f} of the model, median "
        f"{ratios[len(ratios) // 2]:.3f}, over {len(ratios)} cases; {len(judge(results))} bounds "
        "are missed.",
        "Then sleepers queue for a processor, and that is what is measured.",
        "",
    ]


def readme(results: Row, failures: list[str]) -> str:
    """Write README.md from the figures of results.json, as one string."""
    machine = results["machine"]
    verdict = ["Every bound holds."] if not failures else [f"- {line}" for line in failures]
    lines = [
        "# The executor against its cost model",
        "",
        "Every hop of a payload, every forward and every backward is a wait of known length, run",
        "through the true executor and streams; so processors do not matter, and what is measured",
        "is the schedule. 32 layers; a hop takes 1.5 to 4 ms on average, apply 0.3 ms. Unequal",
        "layers differ in size by up to half of the mean, each hop by a further tenth.",
        "",
        "The wall clock counts: what executor and streams add is in the figures. Real-time",
        "priority, where the system allows it, keeps other work on the machine from delaying the",
        "sleepers, which need a few percent of one processor.",
        "",
        f"`python -m experiments.schedule.run BUILD_DIR`, commit {results['commit']}, build",
        f"`{results['build']}`, {machine['cpu']}, {machine['processors']} processors,",
        f"scheduling {machine['scheduling']}, load {machine['load_before']} before and "
        f"{machine['load_after']} after; median of {results['steps']} steps after the first.",
        "",
        "## Measured, in ms a step, and the ratio to the model",
        "",
        *timed_table(results),
        "",
        "The bound is 0.95 to 1.05.",
        "",
        "## Without norm barrier: edf and the busiest resource",
        "",
        "Equal layers: at most 1.05 x (busiest resource + pipeline fill). Unequal: at most 1.10 x",
        "the busiest resource, plus the largest layer's d2h, host and h2d.",
        "",
        *bound_table(results),
        "",
        "## Who waits for an update that is late",
        "",
        "The device is a thread of its own, and another thread launches its work, layer by layer.",
        "A real device must not wait for the host (docs/schedule.md section 1), so the launching",
        "thread waits. While it waits it launches nothing: the next layer's launch then comes",
        "between the update and the forward. Equal layers, edf, no norm barrier.",
        "",
        *launched_table(results),
        "",
        *normal_section(),
        "## In the model: edf against the best of the other three",
        "",
        "Random sets of layers. `spread` is how far layers differ in size, `jitter` how far a hop",
        "differs from its layer's size. The aim is a loss of at most 3 %. No order that serves",
        "without interruption and without knowing the future is best for every set: a lane may",
        "just have begun a deep layer when layer 0 arrives. That costs edf about one layer's hop,",
        "which is much only for few or very unequal layers.",
        "",
        *model_table(results),
        "",
        "## What does not hold",
        "",
        *verdict,
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    """Run, judge, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path, nargs="?", help="a build without sanitizers")
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--sets", type=int, default=20000)
    parser.add_argument("--normal", action="store_true")
    parser.add_argument("--check-only", action="store_true")
    args = parser.parse_args()
    path = HERE / "results.json"
    if args.check_only:
        results = json.loads(path.read_text(encoding="utf-8"))
    elif args.build is None:
        parser.error("BUILD_DIR is missing")
    else:
        results = run_experiment(args.build, args.steps, args.sets, args.normal)
        if args.normal:
            path = HERE / "results_normal.json"
        path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if args.normal:  # README.md compares it with the run at real-time priority.
        results = json.loads((HERE / "results.json").read_text(encoding="utf-8"))
    failures = judge(results)
    beyond = failures + judge_model(results)
    (HERE / "README.md").write_text(readme(results, beyond), encoding="utf-8")
    for line in beyond:
        print(line, file=sys.stderr)
    print(f"schedule: {len(failures)} measured steps are beyond a bound; see README.md")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
