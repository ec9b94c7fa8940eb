"""Options and arguments of the command line, with their help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from sluiceway.base.sizes import parse_bytes
from sluiceway.errors import InvalidArgument


def _option(kind: Any, help: str, *names: str, **more: Any) -> Any:
    return Annotated[kind, typer.Option(*names, help=help, **more)]


def _argument(kind: Any, help: str, **more: Any) -> Any:
    return Annotated[kind, typer.Argument(help=help, **more)]


# ---- Several commands ----

Settings = _option(
    list[str] | None,
    "Override one value of the config, such as train.lr=1e-4; may be repeated.",
    "--set",
    metavar="a.b=c",
)
DEBUG = "--debug"
Debug = _option(bool, "Show the Python traceback of an error.", DEBUG)
AsJson = _option(bool, "Print the result as one JSON object, and nothing else.", "--json")
ConfigFile = _argument(
    Path, "YAML file that describes the run: model, data, training, engine.", metavar="CONFIG"
)
RunPath = _argument(Path, "Run folder, which sluiceway train made.", metavar="DIR")
Dtype = Literal["fp32", "bf16", "fp16"]

# ---- train ----

NewRun = _option(
    Path | None,
    "Folder to make for the run; must be new or empty. Default: runs/NAME-DATE-TIME, NAME being "
    "the config's.",
)
DryRun = _option(
    bool,
    "Train nothing; read the data, show the first sequence and what of it is learned, and print "
    "what the run would need, as sluiceway plan does.",
    "--dry-run",
)

# ---- plan ----

TrialFolder = _option(
    Path | None,
    "Also train a few steps with random weights and as many blocks of the model as fit, at most 4,"
    " and print what they took beside the plan for these blocks. FOLDER is on the disk to try; "
    "files of the trial are removed when it ends.",
    "--measure",
    metavar="FOLDER",
)

ConfigOrModel = _argument(
    Path,
    "YAML file that describes a run; or a folder with a model's config.json, without weights if "
    "need be.",
    metavar="CONFIG_OR_MODEL",
)
CardName = _option(
    str | None,
    "Card to plan for, such as rtx4090 or rtx4060-laptop. Default: the device of this machine.",
)


_LEAST_SIZE = 1 << 20  # Bytes; who says less has left out the unit.


def _size(text: str | int) -> int:
    try:
        size = parse_bytes(text)
    except InvalidArgument as error:
        raise typer.BadParameter(str(error)) from None
    if not size:
        raise typer.BadParameter("is 0, expected more")
    if size < _LEAST_SIZE:
        raise typer.BadParameter(f"{text} is {size:,} bytes; give a unit, such as {text}GiB")
    return size


DeviceMemory = _option(
    int | None,
    "Memory of the card, such as 24GiB. Without --card it is as fast as a desktop's card of this "
    "size.",
    parser=_size,
    metavar="SIZE",
)
HostMemory = _option(
    int | None,
    "Memory of the machine, such as 32GiB, which is also assumed of a machine elsewhere.",
    parser=_size,
    metavar="SIZE",
)
DiskOrDrive = _option(
    str | None,
    "Folder on a drive of this machine, whose rate is measured; or a drive elsewhere, one of sata,"
    " gen3, gen4, gen5, with its size if that is not 1 TB, such as gen4:2TB; or none. Default: the"
    " working directory, or gen4 of a machine elsewhere.",
    metavar="DISK",
)
StepTokens = _option(int | None, "Tokens of a step. Default: 8192.", min=2, max=1 << 20)
TrainedOn = _option(str | None, "Data for the config that --write makes.", metavar="FILE")
NewConfig = _option(Path | None, "YAML file to write, with the best way's config.", metavar="FILE")
ConfigToMake = _argument(Path, "YAML file to write; it must not exist yet.", metavar="CONFIG")

# ---- resume ----

Previous = _option(
    bool,
    "Continue from the save before the last. This drops the last save, and the metrics after the "
    "save before it.",
    "--previous",
)
FromSave = _option(
    bool,
    "Continue from the last save, even if a store holds later commits. This drops the later steps "
    "and their metrics.",
    "--last-save",
)

# ---- eval ----

RunOrModel = _argument(
    Path, "Run folder, or a folder with a model for transformers.", metavar="DIR_OR_MODEL"
)
HeldOut = _option(
    list[str] | None,
    "Text to measure on: a file, a folder, a quoted glob, or pydoc for Python's own manual; may be"
    " repeated. Default: the run's own held-out text.",
    metavar="FILE",
)
Format = _option(
    Literal["auto", "text", "jsonl", "csv", "parquet"] | None,
    "Format of the files. Default: as in the run; for a model auto, which goes by each file's name"
    " and content.",
)
SequenceLength = _option(
    int | None,
    "Tokens of a sequence. Default: as in the run; for a model 256, or its context if that is "
    "shorter.",
    min=2,
)
Packing = _option(
    bool | None,
    "Join documents and cut the text into equal sequences, or make each document one sequence. "
    "Default: as in the run; packing for a model.",
    "--packing/--no-packing",
)
MostSequences = _option(
    int | None,
    "Largest number of sequences to measure on. Default: the number in the config for the run's "
    "own text; all sequences of any other text.",
    min=1,
)
HeldAs = _option(
    Dtype | None, "Precision of the weights in memory. Default: as in the run; fp32 for a model."
)

# ---- chat ----

Prompt = _option(str | None, "Answer this alone, and end.", metavar="TEXT")
SystemText = _option(
    str | None, "Text of the system, if the chat template has a place.", metavar="TEXT"
)
AnswerTokens = _option(int, "Largest number of tokens of an answer.", min=1)
Temperature = _option(
    float, "Spread of the draw; 0 takes the likeliest token each time.", min=0.0, max=100.0
)
ChatSeed = _option(int, "Seed of the draws, if there are any.", "--seed", min=0, max=2**63 - 1)

# ---- export ----

ModelFolder = _option(
    Path, "Folder to make; must be new or empty, unless --force is given.", metavar="FOLDER"
)
ConvertTo = _option(
    Dtype | None, "Convert the weights to this precision. Default: leave them as they are."
)
StepOfLog = _option(
    int | None,
    "Export the weights of step N of a run that logs every step: engine.kind zo with engine.tier "
    "host or disk, mode log. N is at most the step of the last save, and on disk at least the step"
    " of the base. Default: the last save.",
    min=0,
    metavar="N",
)
Force = _option(bool, "Replace the model that FOLDER holds, if it holds one.", "--force")
PushTo = _option(
    str | None,
    "Also upload the folder to this repository of the Hugging Face hub, which is made private if "
    "it is new.",
    metavar="OWNER/NAME",
)

# ---- report, doctor and bench ----

RunPaths = _argument(list[Path], "Run folders, which sluiceway train made.", metavar="DIR...")
PageFile = _option(
    Path | None,
    "HTML file to write. Default: report.html, in the run folder if there is one run, in the "
    "working directory if there are several.",
)
CheckedFolder = _option(Path, "A folder on the disk to check, such as the one for run folders.")
Quick = _option(bool, "Measure no rates, and train no step.", "--quick")
Roof = _argument(
    Literal["link", "disk", "kernels", "step"] | None,
    "Measure copies between host and device, the disk, the optimizer's kernels, or whole training "
    "steps. Default: all but step.",
)
BenchConfig = _option(
    Path | None, "For step: the YAML file of the run to measure.", metavar="CONFIG"
)
BenchSteps = _option(
    int,
    "For step: how many to train, first with plain AdamW and then with the config's engine; the "
    "first three of each are not timed.",
    min=1,
)
BenchFolder = _option(Path, "For disk: a folder on the disk to measure.")

# ---- store ----

StorePaths = _argument(
    list[Path],
    "Folder that holds drive0.sws and so on; all folders, in order, if the drives of a store are "
    "in several; or the drive files or devices themselves, in order.",
    metavar="PATH...",
)
