"""`sluiceway init`: asks five questions, plans, and writes a config."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from sluiceway.base.sizes import parse_bytes
from sluiceway.commands.choose import check_files, check_new, choose
from sluiceway.config.schema import PYDOC
from sluiceway.errors import Error, InvalidArgument
from sluiceway.machine.catalogue import card_of
from sluiceway.model.folder import check_model_folder
from sluiceway.run.target_machine import describe_disk

_HERE = "this"


def init(config: Path) -> None:
    """Write the config of the best way for the answers.

    Raises
    ------
    sluiceway.errors.InvalidArgument
        The file exists; or an answer is wrong, and nobody is there to give another one.
    sluiceway.errors.OutOfMemory
        Nothing fits.
    """
    check_new(config)
    try:
        wanted = _answers()
    except typer.Abort:  # Ctrl-C, or no more answers.
        raise KeyboardInterrupt from None
    choose(write=config, **wanted)


def _answers() -> dict[str, Any]:
    """Return arguments of `choose`."""
    model = _ask("folder of the model", ".", lambda text: check_model_folder(text) and Path(text))
    data = _ask("file or folder to train on (pydoc: Python's manual)", PYDOC, _data)
    card = _ask("card, such as rtx4090; this: the device of this machine", _HERE, _card)
    ram, drive, default = None, "folder on the drive for states; none: no drive", "."
    if card is not None:
        ram = _ask("memory of that machine", "32GiB", _size)
        drive, default = "its drive: sata, gen3, gen4 or gen5, as gen4:2TB; none: no drive", "gen4"
    disk = _ask(drive, default, _disk)
    tokens = _ask("tokens of a step", "8192", _count)
    return {"model": model, "card": card, "ram": ram, "disk": disk, "tokens": tokens, "data": data}


def _ask(question: str, default: str, check: Callable[[str], Any]) -> Any:
    """Ask until the answer is right; without a terminal a wrong one ends the command."""
    while True:
        answer = typer.prompt(question, default=default, err=True)
        try:
            return check(answer)
        except Error as error:
            if not sys.stdin.isatty():
                raise
            print(error, file=sys.stderr)


def _size(text: str) -> int:
    if not (size := parse_bytes(text)):
        raise InvalidArgument("--ram is 0, expected more")
    return size


def _data(text: str) -> str:
    check_files(text)
    return text


def _card(text: str) -> str | None:
    return None if text == _HERE else card_of(text).name


def _disk(text: str) -> str:
    describe_disk(text)
    return text


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 2:
        raise InvalidArgument(f"--tokens is {text!r}, expected a whole number of at least 2")
    return int(text)
