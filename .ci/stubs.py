"""Writes the types of the compiled module: `.ci/stubs.py FOLDER` makes FOLDER/sluiceway/_core.pyi.

They are read from the docstrings that pybind11 gives the installed module, so a C++ signature is
spelled once.
"""

import subprocess
import sys
from pathlib import Path

import torch  # noqa: F401  The module carries no path to libtorch, which must be loaded before it.
from pybind11_stubgen import main as generate

FOLDER = Path(sys.argv[1])
SETTINGS = Path(__file__).resolve().parents[1] / "pyproject.toml"

generate(["sluiceway._core", "--output-dir", str(FOLDER), "--exit-code"])
for action in (["check", "--fix", "--select", "I"], ["format"]):
    subprocess.run(
        [sys.executable, "-m", "ruff", *action, "--quiet", "--config", SETTINGS,
         FOLDER / "sluiceway" / "_core.pyi"],
        check=True,
    )  # fmt: skip
