"""Write what Python knows of the compiled module without loading it: `.ci/stubs.py FOLDER`.

FOLDER/sluiceway/_core.pyi has its types, read from the docstrings that pybind11 gives the installed
module, and FOLDER/sluiceway/config/codec_names.py the names of its codecs. So each C++ signature
and each name is written once.
"""

import subprocess
import sys
from pathlib import Path

import torch  # noqa: F401  The module carries no path to libtorch, which must be loaded before it.
from pybind11_stubgen import main as generate
from sluiceway import _core

FOLDER = Path(sys.argv[1]) / "sluiceway"
SETTINGS = Path(__file__).resolve().parents[1] / "pyproject.toml"
NAMES = '''\
"""Names of the codecs that the compiled module offers; `make stubs` writes this file.

A config is checked before torch, and the compiled module with it, is loaded.
"""

OFFERED = {offered}
LEARNED = {learned}  # Their projectors are fitted to gradients.
'''

generate(["sluiceway._core", "--output-dir", sys.argv[1], "--exit-code"])
offered = [family for family in _core.codec_families() if family.offered]
names = FOLDER / "config" / "codec_names.py"
names.parent.mkdir(exist_ok=True)
names.write_text(
    NAMES.format(
        offered=tuple(family.name for family in offered),
        learned=tuple(family.name for family in offered if family.learns),
    )
)
for action in (["check", "--fix", "--select", "I"], ["format"]):
    subprocess.run(
        [sys.executable, "-m", "ruff", *action, "--quiet", "--config", SETTINGS,
         FOLDER / "_core.pyi", names],
        check=True,
    )  # fmt: skip
