"""Help and refusals of the command line: whole sentences, for somebody who does not know it."""

from __future__ import annotations

import pytest
from conftest import assert_short_error
from sluiceway.commands.cli import app
from typer.main import get_command

COMMANDS = get_command(app).commands
# Those of a group too, by both words.
ALL_COMMANDS = {
    **COMMANDS,
    **{
        f"{group} {name}": command
        for group, holder in COMMANDS.items()
        for name, command in getattr(holder, "commands", {}).items()
    },
}


def test_help_of_the_whole_names_every_command_in_a_sentence_that_is_not_cut(python_m_sluiceway):
    shown = python_m_sluiceway("--help").out
    for name, command in COMMANDS.items():
        (line,) = [line for line in shown.splitlines() if line.startswith(f"  {name} ")]
        assert line.partition(name)[2].strip() == command.help.splitlines()[0]
        assert line.endswith(".")
        assert not line.endswith("...")


@pytest.mark.parametrize("name", ALL_COMMANDS)
def test_every_argument_and_option_is_said_in_sentences(name):
    for parameter in ALL_COMMANDS[name].params:
        said = parameter.help or ""
        assert len(said.split()) >= 5, (name, parameter.name, said)
        assert said[0].isupper(), (name, parameter.name, said)
        assert said.endswith("."), (name, parameter.name)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["trian"], ["No such command 'trian'", "'train'", "see sluiceway --help"]),
        (["train"], ["Missing argument 'CONFIG'; see sluiceway train --help"]),
        (["train", "--foo", "x"], ["No such option: --foo", "see sluiceway train --help"]),
        (
            ["eval", "x", "--format", "xml"],
            ["'xml' is not one of 'auto', 'text', 'jsonl', 'csv', 'parquet'; see sluiceway eval"],
        ),
        (["eval", "x", "--sequences", "0"], ["expected greater than or equal to 1; see"]),
        (["export", "x"], ["Missing option '--to'; see sluiceway export --help"]),
    ],
)
def test_wrong_command_says_what_is_wrong_and_whose_help_to_read(sluiceway, arguments, words):
    assert_short_error(sluiceway(*arguments), 2, *words)
