"""Options and arguments of the command line, with their help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from sluiceway.base.sizes import parse_bytes
from sluiceway.errors import InvalidArgument

# ---- Several commands ----

Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="a.b=c",
        help="Override one value of the config, such as train.lr=1e-4; may be repeated.",
    ),
]
DEBUG = "--debug"
Debug = Annotated[bool, typer.Option(DEBUG, help="Show the Python traceback of an error.")]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print the result as one JSON object, and nothing else.")
]
ConfigFile = Annotated[
    Path,
    typer.Argument(
        metavar="CONFIG", help="YAML file that describes the run: model, data, training, engine."
    ),
]
RunPath = Annotated[
    Path, typer.Argument(metavar="DIR", help="Run folder, which sluiceway train made.")
]
Dtype = Literal["fp32", "bf16", "fp16"]

# ---- train ----

NewRun = Annotated[
    Path | None,
    typer.Option(
        help="Folder to make for the run; must be new or empty. Default: runs/NAME-DATE-TIME, "
        "NAME being the config's.",
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Train nothing; read the data, show the first sequence and what of it is learned, and "
        "print what the run would need, as sluiceway plan does.",
    ),
]

# ---- plan ----

TrialFolder = Annotated[
    Path | None,
    typer.Option(
        "--measure",
        metavar="FOLDER",
        help="Also train a few steps with random weights and as many blocks of the model as fit, "
        "at most 4, and print what they took beside the plan for these blocks. FOLDER is on the "
        "disk to try; files of the trial are removed when it ends.",
    ),
]

ConfigOrModel = Annotated[
    Path,
    typer.Argument(
        metavar="CONFIG_OR_MODEL",
        help="YAML file that describes a run; or a folder with a model's config.json, without "
        "weights if need be.",
    ),
]
CardName = Annotated[
    str | None,
    typer.Option(
        help="Card to plan for, such as rtx4090 or rtx4060-laptop. Default: the device of this "
        "machine.",
        show_default=False,
    ),
]


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


DeviceMemory = Annotated[
    int | None,
    typer.Option(
        parser=_size,
        metavar="SIZE",
        help="Memory of the card, such as 24GiB. Without --card it is as fast as a desktop's card "
        "of this size.",
        show_default=False,
    ),
]
HostMemory = Annotated[
    int | None,
    typer.Option(
        parser=_size,
        metavar="SIZE",
        help="Memory of the machine, such as 32GiB, which is also assumed of a machine elsewhere.",
        show_default=False,
    ),
]
DiskOrDrive = Annotated[
    str | None,
    typer.Option(
        metavar="DISK",
        help="Folder on a drive of this machine, whose rate is measured; or a drive elsewhere, one "
        "of sata, gen3, gen4, gen5, with its size if that is not 1 TB, such as gen4:2TB; or none. "
        "Default: the working directory, or gen4 of a machine elsewhere.",
        show_default=False,
    ),
]
StepTokens = Annotated[
    int | None,
    typer.Option(min=2, max=1 << 20, help="Tokens of a step. Default: 8192.", show_default=False),
]
TrainedOn = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Data for the config that --write makes."),
]
NewConfig = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="YAML file to write, with the best way's config."),
]
ConfigToMake = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="YAML file to write; it must not exist yet.")
]

# ---- resume ----

Previous = Annotated[
    bool,
    typer.Option(
        "--previous",
        help="Continue from the save before the last. This drops the last save, and the metrics "
        "after the save before it.",
    ),
]
FromSave = Annotated[
    bool,
    typer.Option(
        "--last-save",
        help="Continue from the last save, even if a store holds later commits. This drops the "
        "later steps and their metrics.",
    ),
]

# ---- eval ----

RunOrModel = Annotated[
    Path,
    typer.Argument(
        metavar="DIR_OR_MODEL", help="Run folder, or a folder with a model for transformers."
    ),
]
HeldOut = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FILE",
        help="Text to measure on: a file, a folder, a quoted glob, or pydoc for Python's own "
        "manual; may be repeated. Default: the run's own held-out text.",
    ),
]
Format = Annotated[
    Literal["auto", "text", "jsonl", "csv", "parquet"] | None,
    typer.Option(
        help="Format of the files. Default: as in the run; for a model auto, which goes by each "
        "file's name and content.",
        show_default=False,
    ),
]
SequenceLength = Annotated[
    int | None,
    typer.Option(
        min=2,
        help="Tokens of a sequence. Default: as in the run; for a model 256, or its context if "
        "that is shorter.",
    ),
]
Packing = Annotated[
    bool | None,
    typer.Option(
        "--packing/--no-packing",
        help="Join documents and cut the text into equal sequences, or make each document one "
        "sequence. Default: as in the run; packing for a model.",
        show_default=False,
    ),
]
MostSequences = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Largest number of sequences to measure on. Default: the number in the config for the "
        "run's own text; all sequences of any other text.",
    ),
]
HeldAs = Annotated[
    Dtype | None,
    typer.Option(
        help="Precision of the weights in memory. Default: as in the run; fp32 for a model.",
        show_default=False,
    ),
]

# ---- chat ----

Prompt = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="Answer this alone, and end."),
]
SystemText = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="Text of the system, if the chat template has a place."),
]
AnswerTokens = Annotated[int, typer.Option(min=1, help="Largest number of tokens of an answer.")]
Temperature = Annotated[
    float,
    typer.Option(
        min=0.0, max=100.0, help="Spread of the draw; 0 takes the likeliest token each time."
    ),
]
ChatSeed = Annotated[
    int, typer.Option("--seed", min=0, max=2**63 - 1, help="Seed of the draws, if there are any.")
]

# ---- export ----

ModelFolder = Annotated[
    Path,
    typer.Option(
        metavar="FOLDER", help="Folder to make; must be new or empty, unless --force is given."
    ),
]
ConvertTo = Annotated[
    Dtype | None,
    typer.Option(
        help="Convert the weights to this precision. Default: leave them as they are.",
        show_default=False,
    ),
]
StepOfLog = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="N",
        help="Export the weights of step N of a run that logs every step: engine.kind zo with "
        "engine.tier host or disk, mode log. N is at most the step of the last save, and on disk "
        "at least the step of the base. Default: the last save.",
        show_default=False,
    ),
]
Force = Annotated[
    bool, typer.Option("--force", help="Replace the model that FOLDER holds, if it holds one.")
]
PushTo = Annotated[
    str | None,
    typer.Option(
        metavar="OWNER/NAME",
        help="Also upload the folder to this repository of the Hugging Face hub, which is made "
        "private if it is new.",
        show_default=False,
    ),
]

# ---- report, doctor and bench ----

RunPaths = Annotated[
    list[Path], typer.Argument(metavar="DIR...", help="Run folders, which sluiceway train made.")
]
PageFile = Annotated[
    Path | None,
    typer.Option(
        help="HTML file to write. Default: report.html, in the run folder if there is one run, in "
        "the working directory if there are several.",
    ),
]
CheckedFolder = Annotated[
    Path, typer.Option(help="A folder on the disk to check, such as the one for run folders.")
]
Quick = Annotated[bool, typer.Option("--quick", help="Measure no rates, and train no step.")]
Roof = Annotated[
    Literal["link", "disk", "kernels", "step"] | None,
    typer.Argument(
        help="Measure copies between host and device, the disk, the optimizer's kernels, or whole "
        "training steps. Default: all but step.",
        show_default=False,
    ),
]
BenchConfig = Annotated[
    Path | None,
    typer.Option(metavar="CONFIG", help="For step: the YAML file of the run to measure."),
]
BenchSteps = Annotated[
    int,
    typer.Option(
        min=1,
        help="For step: how many to train, first with plain AdamW and then with the config's "
        "engine; the first three of each are not timed.",
    ),
]
BenchFolder = Annotated[Path, typer.Option(help="For disk: a folder on the disk to measure.")]

# ---- store ----

StorePaths = Annotated[
    list[Path],
    typer.Argument(
        metavar="PATH...",
        help="Folder that holds drive0.sws and so on; all folders, in order, if the drives of a "
        "store are in several; or the drive files or devices themselves, in order.",
    ),
]
