"""`python -m sluiceway` is `sluiceway`."""

from sluiceway.commands.cli import main

if __name__ == "__main__":
    main()
