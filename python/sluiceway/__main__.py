"""Runs the command `sluiceway` as `python -m sluiceway`."""

from sluiceway.commands.cli import main

if __name__ == "__main__":
    main()
