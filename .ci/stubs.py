"""Write what Python knows of the compiled module without loading it: `.ci/stubs.py FOLDER`.

FOLDER/sluiceway/_core.pyi and _host_allocator.pyi have its types, read from the docstrings that
pybind11 gives the installed modules, and FOLDER/sluiceway/config/codec_names.py the names of its
codecs. So each C++ signature and each name is written once.
"""

import subprocess
import sys
from pathlib import Path

import torch  # noqa: F401  A module with CUDA finds its libraries where torch has loaded them.
from pybind11_stubgen import main as generate
from sluiceway import _core, _host_allocator  # noqa: F401

FOLDER = Path(sys.argv[1]) / "sluiceway"
SETTINGS = Path(__file__).resolve().parents[1] / "pyproject.toml"
NAMES = '''\
"""Names of the codecs that the compiled module offers; `make stubs` writes this file.

A config is checked before torch, and the compiled module with it, is loaded.
"""

OFFERED = {offered}
LEARNED = {learned}  # Their projectors are fitted to gradients.
'''

for module in ("_core", "_host_allocator"):
    generate([f"sluiceway.{module}", "--output-dir", sys.argv[1], "--exit-code"])
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
         FOLDER / "_core.pyi", FOLDER / "_host_allocator.pyi", names],
        check=True,
    )  # fmt: skip
