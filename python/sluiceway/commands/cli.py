"""The command line: `sluiceway train`, `resume`, `plan`, `eval`, `export`, `report` and so on.

Commands are declared here. The file with a command's name has its code and is imported when the
command runs, so that help comes at once. Modules that need torch are imported once the config is
checked.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import inspect
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from sluiceway import __version__
from sluiceway.base.exit_codes import DONE, FAILED, INTERRUPTED, WRONG, exit_code, say
from sluiceway.base.interrupt import Interrupt
from sluiceway.base.json_text import json_text
from sluiceway.base.sizes import format_bytes
from sluiceway.commands import options as o
from sluiceway.errors import InvalidArgument, IoError

_OURS = Path(__file__).parents[1]
_AS_PYTHON_DOES = warnings.formatwarning

app = typer.Typer(
    name="sluiceway",
    help="Fine-tune language models on machines whose GPU, memory or bus is too small for them.",
    epilog="To begin: sluiceway doctor, then sluiceway init, then sluiceway train run.yaml. "
    "Exit codes: 0 done, 1 failed while running, 2 wrong command or config, 3 refused, "
    "130 interrupted.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"sluiceway {__version__}")
        raise typer.Exit


def _with_debug(function: Callable[..., None]) -> Callable[..., None]:
    """Add the option --debug to a command; `run` reads the option, and the command does not."""

    @functools.wraps(function)
    def command(*, debug: bool, **given: Any) -> None:
        function(**given)

    own = inspect.signature(function, eval_str=True).parameters.values()
    debug = inspect.Parameter(
        "debug", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=o.Debug
    )
    command.__signature__ = inspect.Signature([*own, debug])
    command.__annotations__ = {one.name: one.annotation for one in (*own, debug)}
    return command


def _command(group: typer.Typer, name: str) -> Callable[[Callable[..., None]], Any]:
    """Declare a command that also takes --debug."""
    return lambda function: group.command(name)(_with_debug(function))


@app.callback()
@_with_debug
def _common(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    pass


@_command(app, "train")
def _train(
    config: o.ConfigFile,
    out: o.NewRun = None,
    settings: o.Settings = None,
    dry_run: o.DryRun = False,
    as_json: o.AsJson = False,
) -> None:
    """Train a model as CONFIG says, into a new run folder."""
    from sluiceway.commands.train import train

    train(config, out, settings, dry_run, as_json)


@_command(app, "resume")
def _resume(
    folder: o.RunPath,
    settings: o.Settings = None,
    previous: o.Previous = False,
    from_save: o.FromSave = False,
    as_json: o.AsJson = False,
) -> None:
    """Continue a run from its last save, bit for bit.

    The run ends as if it had never stopped. The command prints what --set changes. It ends with an
    error if a change would make it another run, or if any byte of the save has changed.
    """
    from sluiceway.commands.train import resume

    resume(folder, settings, previous, from_save, as_json)


@_command(app, "plan")
def _plan(
    path: o.ConfigOrModel,
    settings: o.Settings = None,
    measure: o.TrialFolder = None,
    card: o.CardName = None,
    device: o.DeviceMemory = None,
    ram: o.HostMemory = None,
    disk: o.DiskOrDrive = None,
    tokens: o.StepTokens = None,
    data: o.TrainedOn = None,
    write: o.NewConfig = None,
    as_json: o.AsJson = False,
) -> None:
    """Plan a run, or find the engine that fits a model and a machine.

    For a CONFIG it predicts memory, traffic and step time of that run. It reads only the
    config.json of the model, and trains nothing but with --measure. If a budget of the config is
    too small, the exit code is 3. configs/laptop_1b.yaml and configs/shapes/llama_7b come along,
    with others of which docs/guide.md has a list.

    For a MODEL it plans every engine on this machine, or on the one that --card, --device, --ram
    and --disk describe. It prints each engine's fastest way that fits, and --write makes a config
    of the first. If nothing fits, the exit code is 3.
    """
    from sluiceway.config.shipped import shipped

    path = shipped(path)
    if not path.exists() and path.suffix not in (".yaml", ".yml", ".json"):
        raise IoError(
            f"plan: there is no {path}; name a config, or a folder with a model, which you get by: "
            f"hf download {path} --local-dir {path.name}",
            errno.ENOENT,
            str(path),
        )
    of_model = {
        "--card": card, "--device": device, "--ram": ram, "--disk": disk, "--tokens": tokens,
        "--data": data, "--write": write,
    }  # fmt: skip
    if path.is_dir() or path.name == "config.json":
        _refuse({"--set": settings, "--measure": measure}, "a model", "give a config")
        from sluiceway.commands.choose import choose

        machine = {"card": card, "device": device, "ram": ram, "disk": disk}
        choose(path, write, as_json, tokens=tokens or 8192, data=data, **machine)
        return
    _refuse(of_model, "a config", "give a folder with a model")
    from sluiceway.config.file import load_config

    checked = load_config(path, settings)
    from sluiceway.commands.plan import show_plan

    show_plan(checked, as_json, measure)


@_command(app, "init")
def _init(config: o.ConfigToMake = Path("run.yaml")) -> None:
    """Ask for model, data and machine, and write a config that fits."""
    from sluiceway.commands.init import init

    init(config)


@_command(app, "eval")
def _eval(
    folder: o.RunOrModel,
    data: o.HeldOut = None,
    format: o.Format = None,
    sequence_length: o.SequenceLength = None,
    packing: o.Packing = None,
    sequences: o.MostSequences = None,
    dtype: o.HeldAs = None,
    as_json: o.AsJson = False,
) -> None:
    """Measure the loss of a run or a model on held-out text.

    For a run it measures the last save. The loss is in nats per token.
    """
    from sluiceway.commands.evaluate import Asked, describe, evaluate

    figures = evaluate(folder, Asked(data, format, sequence_length, packing, dtype, sequences))
    print(json_text(figures) if as_json else describe(figures))


@_command(app, "chat")
def _chat(
    folder: o.RunOrModel,
    prompt: o.Prompt = None,
    system: o.SystemText = None,
    tokens: o.AnswerTokens = 256,
    temperature: o.Temperature = 0.0,
    seed: o.ChatSeed = 0,
) -> None:
    """Talk with a run's last save, or with a model.

    It reads questions line by line; an empty line ends. Without a chat template the model goes on
    with each text.
    """
    from sluiceway.commands.chat import chat

    chat(folder, prompt, system, tokens, temperature, seed)


@_command(app, "export")
def _export(
    folder: o.RunPath,
    to: o.ModelFolder,
    step: o.StepOfLog = None,
    dtype: o.ConvertTo = None,
    force: o.Force = False,
    push: o.PushTo = None,
    as_json: o.AsJson = False,
) -> None:
    """Write a run's last save, or a step of it, as a model.

    The result is a folder that transformers can load. It appears only when it is complete.
    """
    from sluiceway.run.export import export
    from sluiceway.run.push import check_account, push_folder

    with Interrupt():
        if push is not None:
            check_account(push)
        done = export(folder, to, dtype, force, step)
        if push is not None:
            done["url"] = push_folder(to, push)
    said = (
        f"{to}: weights of step {done['step']}, {format_bytes(done['bytes'])}\n"
        f"for llama.cpp: python convert_hf_to_gguf.py {to} --outfile {to}.gguf"
    )
    if push is not None:
        said += f"\npushed to {done['url']}"
    print(json_text(done) if as_json else said)


@_command(app, "report")
def _report(folders: o.RunPaths, out: o.PageFile = None, as_json: o.AsJson = False) -> None:
    """Write one HTML page about runs: loss, speed, traffic, memory.

    It shows several runs side by side, each with its comparison.
    """
    from sluiceway.report import write_report

    written = write_report(folders, out)
    names = ", ".join(run["name"] for run in written["runs"])
    said = f"{written['report']}: {names}, {format_bytes(written['bytes'])}"
    print(json_text(written) if as_json else said)


@_command(app, "doctor")
def _doctor(
    path: o.CheckedFolder = Path("."), quick: o.Quick = False, as_json: o.AsJson = False
) -> None:
    """List what this machine offers, and what each missing thing costs."""
    from sluiceway.commands.doctor import doctor

    with Interrupt():
        doctor(path, quick, as_json)


@_command(app, "bench")
def _bench(
    what: o.Roof = None,
    config: o.BenchConfig = None,
    settings: o.Settings = None,
    steps: o.BenchSteps = 8,
    path: o.BenchFolder = Path("."),
    as_json: o.AsJson = False,
) -> None:
    """Measure this machine, and how close training comes to it."""
    from sluiceway.config.file import load_config

    if what == "step" and config is None:
        raise InvalidArgument("bench step: no run to measure; give --config CONFIG")
    checked = load_config(config, settings) if what == "step" else None
    with Interrupt() as interrupt:
        from sluiceway.commands.bench import measure

        found = {}
        for name, figures, text in measure(what, checked, steps, path, interrupt):
            found[name] = figures
            if not as_json:
                print(text, flush=True)
    if as_json:
        print(json_text(found))


_store = typer.Typer(
    help="Look into a chunk store, in which the disk tier keeps its states.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(_store, name="store")


@_command(_store, "inspect")
def _store_inspect(paths: o.StorePaths, as_json: o.AsJson = False) -> None:
    """List what a store holds: commits, regions, drives.

    It reads no chunk. If another process has the store open, the exit code is 3.
    """
    from sluiceway.commands.store import inspect_store

    inspect_store(paths, as_json)


@_command(_store, "verify")
def _store_verify(paths: o.StorePaths, as_json: o.AsJson = False) -> None:
    """Read every chunk of a store and check every checksum.

    If anything is damaged, it is listed and the exit code is 1. Nothing is written.
    """
    from sluiceway.commands.store import verify_store

    with Interrupt():
        verify_store(paths, as_json)


def main() -> None:
    """Run the command line and exit."""
    sys.exit(run(sys.argv[1:]))


def _refuse(options: dict[str, Any], given: str, instead: str) -> None:
    """Raise InvalidArgument if one of these options is set."""
    for name, value in options.items():
        if value not in (None, []):
            raise InvalidArgument(f"plan: {name} does not go with {given}; {instead}")


def _formatted(warning: Warning | str, kind: type[Warning], place: str, *line: Any) -> str:
    """Format a warning of this package without a line of its sources."""
    if Path(place).is_relative_to(_OURS):
        return f"sluiceway: {warning}\n"
    return _AS_PYTHON_DOES(warning, kind, place, *line)


def run(arguments: list[str]) -> int:
    """Run one command; return its exit code."""
    warnings.formatwarning = _formatted
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # The shell has closed it, as by >&-.
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - for the whole process.
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115 - for the whole process.
    with contextlib.suppress(AttributeError):  # Of tests, which read what we print.
        sys.stdout.reconfigure(errors="backslashreplace")  # Paths of any name can be printed.
    try:
        expanded = [_in_home(argument) for argument in arguments]
        result = app(args=expanded, prog_name="sluiceway", standalone_mode=False)
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
        if hasattr(error, "format_message"):
            return _wrong(error)
        if o.DEBUG in arguments:
            traceback.print_exc()
        say(error)
        return exit_code(error)


def _in_home(argument: str) -> str:
    """Put the home folder in the place of ~ after =, where shells leave it as it is."""
    option, equals, value = argument.partition("=")
    if not (equals and option.startswith("--") and value.startswith("~")):
        return argument
    from sluiceway.config.fields import in_home

    try:
        return f"{option}={in_home(value)}"
    except ValueError as error:
        raise InvalidArgument(f"{option} {error}") from None


def _wrong(error: Any) -> int:
    """Print typer's complaint about an invalid command in our words."""
    text = error.format_message()
    if text.startswith("Usage:"):
        print(text)
        return WRONG
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "sluiceway"
    text = text.replace("Value error, ", "").replace("Input should be", "expected").rstrip(".")
    print(f"sluiceway: {text}; see {command} --help", file=sys.stderr)
    return WRONG
