"""Every Python program of docs/examples.md runs, and trains."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from conftest import REPOSITORY
from safetensors.torch import load_file

PAGE = (REPOSITORY / "docs/examples.md").read_text(encoding="utf-8")
_PROGRAM = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
PROGRAMS = {
    part.partition("\n")[0]: found[1]
    for part in PAGE.split("\n## ")[1:]
    if (found := _PROGRAM.search(part))
}
ELSEWHERE = {"Lightning", "LLaMA-Factory"}  # The first in check_lightning.py; none of us has both.
_CONFIG = 'DPOConfig("out", '
# What makes a program run without a card, with a small model, in this folder.
CHANGES = {
    "Qwen/Qwen3-1.7B": "model",
    "path/to/model": "model",
    "/mnt/nvme/run1": "states",
    _CONFIG: _CONFIG + 'use_cpu=True, bf16=False, max_steps=3, report_to="none", ',
    "lightning.Trainer(": 'lightning.Trainer(accelerator="cpu", logger=False, ',
    "Accelerator(": "Accelerator(cpu=True, ",
    'path="states", frozen_codec': 'path="states", chunk=65536, frozen_codec',
}


def test_the_page_has_the_programs():
    assert len(PROGRAMS) >= 6


@pytest.mark.parametrize("name", sorted(set(PROGRAMS) - ELSEWHERE))
def test_program_trains(small_model, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    run_program(name, small_model)


def run_program(name, model):
    """Run a program of the page in an empty folder, which is the working folder."""
    shutil.copytree(model, "model")
    Path("model/chat_template.jinja").write_text(
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
    )
    generator = torch.Generator().manual_seed(0)
    ids = [torch.randint(0, 250, (2, 16), generator=generator) for _ in range(8)]
    torch.save([{"input_ids": each, "labels": each} for each in ids], "batches.pt")
    pairs = [
        {key: [{"role": role, "content": f"{key} {k}"}] for key, role in _TURNS.items()}
        for k in range(8)
    ]
    Path("pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    program = PROGRAMS[name]
    for theirs, ours in CHANGES.items():
        program = program.replace(theirs, ours)
    exec(compile(program, name, "exec"), {"__name__": name})
    written = [*Path().glob("result/*.safetensors"), *Path().glob("result.pt")]
    assert written
    if written[0].name == "model.safetensors":
        before, after = load_file("model/model.safetensors"), load_file(written[0])
        assert any(not torch.equal(after[key].to(before[key].dtype), before[key]) for key in after)


_TURNS = {"prompt": "user", "chosen": "assistant", "rejected": "assistant"}
