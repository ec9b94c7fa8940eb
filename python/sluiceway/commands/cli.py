"""The command line: `sluiceway train | resume | eval | export | report | plan | doctor | bench`.

Modules that need torch are imported by the command that runs, after its config was found good.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from sluiceway import __version__
from sluiceway.base.exit_codes import DONE, FAILED, INTERRUPTED, WRONG, exit_code, say
from sluiceway.base.interrupt import Interrupt
from sluiceway.errors import OutOfMemory

app = typer.Typer(
    name="sluiceway",
    help="Fine-tune language models on machines whose GPU, memory or bus is too small for it.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="a.b=c", help="Change one key of the config.")
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object, and nothing else.")]
Dtype = Literal["fp32", "bf16", "fp16"]
Out = Annotated[Path | None, typer.Option(help="Run folder, new or empty.")]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"sluiceway {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it and stop.")
    ] = False,
    debug: Debug = False,
) -> None:
    pass


@app.command()
def train(
    config: Path,
    out: Out = None,
    settings: Settings = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only plan.")] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Train what CONFIG, a YAML file, describes."""
    from sluiceway.config.file import load_config
    from sluiceway.config.schema import with_absolute_paths

    checked = with_absolute_paths(load_config(config, settings))
    if dry_run:
        _plan(checked, as_json)
        return
    from sluiceway.run.run_folder import RunFolder

    path = out or Path("runs") / f"{config.stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    RunFolder.check_new(path)
    with Interrupt() as interrupt:
        from sluiceway.run.run import Run
        from sluiceway.run.session import read_inputs

        inputs = read_inputs(checked, Path(checked.model.path))
        folder = RunFolder.create(path, checked)
        try:
            with _progress_to(as_json) as sink:
                summary = Run(checked, folder, interrupt, sink).train(inputs)
        except BaseException:
            folder.discard_if_unused()
            raise
        finally:
            folder.close()
    _report(path, summary, as_json)


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a run.")],
    settings: Settings = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Go on from the last save, bit for bit."""
    from sluiceway.config.changes import changes
    from sluiceway.config.file import load_config
    from sluiceway.config.schema import with_absolute_paths
    from sluiceway.run.last_save import config_of_save
    from sluiceway.run.run_folder import CONFIG_FILE, RunFolder

    RunFolder.check(folder)
    after = with_absolute_paths(load_config(folder / CONFIG_FILE, settings))
    for key, (was, now) in changes(config_of_save(folder), after).items():
        print(f"sluiceway: {key} was {was}, is now {now}", file=sys.stderr)
    with Interrupt() as interrupt, contextlib.closing(RunFolder.reopen(folder)) as run_folder:
        from sluiceway.run.run import Run

        with _progress_to(as_json) as sink:
            summary = Run(after, run_folder, interrupt, sink).train()
    _report(folder, summary, as_json)


@app.command()
def plan(
    config: Path, settings: Settings = None, as_json: AsJson = False, debug: Debug = False
) -> None:
    """Predict memory, traffic and step time; reads config.json alone."""
    from sluiceway.config.file import load_config

    _plan(load_config(config, settings), as_json)


@app.command("eval")
def evaluate(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR_OR_MODEL", help="Folder of a run, or of a model.")
    ],
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="File, quoted glob or pydoc; may be repeated. Default: the run's data.eval.",
        ),
    ] = None,
    format: Annotated[
        Literal["text", "jsonl"] | None,
        typer.Option(help="Of the files. Default: the run's, else text.", show_default=False),
    ] = None,
    sequence_length: Annotated[
        int | None,
        typer.Option(min=2, help="Tokens. Default: the run's, else 256 or the model's context."),
    ] = None,
    packing: Annotated[
        bool | None,
        typer.Option(
            "--packing/--no-packing",
            help="Join documents and cut. Default: the run's, else yes.",
            show_default=False,
        ),
    ] = None,
    sequences: Annotated[
        int | None,
        typer.Option(min=1, help="At most so many. Default: as the run on its own data, else all."),
    ] = None,
    dtype: Annotated[
        Dtype | None,
        typer.Option(help="Of weights. Default: the run's, else fp32.", show_default=False),
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Held-out loss of a run's last save, or of a model."""
    from sluiceway.commands.evaluate import Asked, describe
    from sluiceway.commands.evaluate import evaluate as measure

    figures = measure(folder, Asked(data, format, sequence_length, packing, dtype, sequences))
    print(_json(figures) if as_json else describe(figures))


@app.command()
def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a run.")],
    to: Annotated[Path, typer.Option(metavar="FOLDER", help="A new folder.")],
    dtype: Annotated[
        Dtype | None,
        typer.Option(help="Convert weights. Default: as they are.", show_default=False),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a model folder that is there.")
    ] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Write the last save as a transformers folder."""
    from sluiceway.base.sizes import format_bytes
    from sluiceway.commands.export import export as write

    with Interrupt():
        done = write(folder, to, dtype, force)
    if as_json:
        print(_json(done))
    else:
        print(f"{to}: weights of step {done['step']}, {format_bytes(done['bytes'])}")


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders of runs.")],
    out: Annotated[Path | None, typer.Option(help="The page; default: DIR/report.html.")] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Write one HTML page about runs, side by side."""
    from sluiceway.base.sizes import format_bytes
    from sluiceway.report import write_report

    written = write_report(folders, out)
    if as_json:
        print(_json(written))
    else:
        names = ", ".join(run["name"] for run in written["runs"])
        print(f"{written['report']}: {names}, {format_bytes(written['bytes'])}")


@app.command()
def doctor(
    path: Annotated[Path, typer.Option(help="Folder on the disk to look at.")] = Path("."),
    quick: Annotated[bool, typer.Option("--quick", help="Measure no rates.")] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """What this machine offers, and what is missing."""
    from sluiceway.commands import doctor

    findings = doctor.examine(path, quick)
    print(_json(doctor.as_json(findings)) if as_json else doctor.describe(findings))
    doctor.check(findings)


@app.command()
def bench(
    what: Annotated[
        Literal["link", "disk", "kernels", "step"] | None,
        typer.Argument(help="Default: all but step.", show_default=False),
    ] = None,
    config: Annotated[Path, typer.Option(help="Of step: which run.", show_default=True)] = Path(
        "configs/quickstart.yaml"
    ),
    settings: Settings = None,
    steps: Annotated[int, typer.Option(min=1, help="Of step: how many, of each engine.")] = 8,
    path: Annotated[Path, typer.Option(help="Of disk: a folder on it.")] = Path("."),
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Roofs of this machine, and how close we come."""
    from sluiceway.config.file import load_config

    checked = load_config(config, settings) if what == "step" else None
    with Interrupt() as interrupt:
        from sluiceway.commands.bench import Bench

        found = {}
        for name, figures, text in Bench(checked, steps, path, interrupt).measure(what):
            found[name] = figures
            if not as_json:
                print(text, flush=True)
    if as_json:
        print(_json(found))


def _plan(config: Any, as_json: bool) -> None:
    from sluiceway.commands.plan import make_plan, print_plan

    figures = make_plan(config)
    if as_json:
        print(_json(figures))
    else:
        print_plan(figures)
    if figures["over_budget"]:
        raise OutOfMemory(figures["over_budget"])


def _json(figures: dict[str, Any]) -> str:
    from sluiceway.run.run_folder import finite

    return json.dumps(finite(figures))


@contextlib.contextmanager
def _progress_to(as_json: bool):
    if not as_json:
        yield sys.stdout
        return
    with open(os.devnull, "w") as nowhere:
        yield nowhere


def _report(path: Path, summary: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(_json({"folder": str(path), **summary}))
        return
    ratio = summary.get("native_ratio")
    held_out, first = summary.get("final_eval_loss"), summary.get("first_eval_loss")
    parts = [f"{path}: {summary['steps']} steps"]
    if summary.get("final_loss") is not None:
        parts.append(f"loss {summary['final_loss']:.4f}")
    if held_out is not None and first is not None:
        parts.append(f"held-out loss {first:.4f} to {held_out:.4f}")
    if ratio:
        parts.append(f"{ratio:.3f} x native per step")
    if summary["data"]["replaced_bytes"]:
        parts.append(f"{summary['data']['replaced_bytes']} bytes were not UTF-8")
    if summary["parameters"]["frozen_names"]:
        parts.append("frozen: " + ", ".join(summary["parameters"]["frozen_names"][:3]))
    print(", ".join(parts))


def main() -> None:
    """Run the command line and exit."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command; return its exit code."""
    try:
        result = app(args=arguments, prog_name="sluiceway", standalone_mode=False)
        code = result if isinstance(result, int) else DONE
        sys.stdout.flush()
        if code == INTERRUPTED:  # typer swallows a KeyboardInterrupt, and says nothing.
            say(KeyboardInterrupt())
        return code
    except SystemExit as ending:  # Shell completion ends this way.
        return ending.code if isinstance(ending.code, int) else DONE
    except BrokenPipeError:
        # Whoever read us has gone; say nothing more, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (Exception, KeyboardInterrupt) as error:
        if hasattr(error, "format_message"):  # The command itself is wrong.
            text = error.format_message()
            if text.startswith("Usage:"):
                print(text)
            else:
                print(f"sluiceway: {text.rstrip('.')}; see sluiceway --help", file=sys.stderr)
            return WRONG
        if "--debug" in arguments:
            traceback.print_exc()
        say(error)
        return exit_code(error)
