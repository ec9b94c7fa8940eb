"""Four bytes flipped at a random place of a save: refused by resume, or a bit-identical result.

    pytest tests/python/run/test_flipped_bytes.py [--flips 200] [--flip-seed N]

Every flip is resumed by the command a user types. The places cover every file in turn; the seed is
a fresh one, and is in the name of each case.
"""

from __future__ import annotations

import random
import shutil

import pytest
from conftest import assert_short_error

from experiments.kill_resume.kills import loss_lines, weights_hash

FILES = 8  # Of a save of these models; the test of it says when that changes.


@pytest.fixture(scope="module", params=["native", "subspace"])
def whole(request, sluiceway, tmp_path_factory, tiny_model, small_model, prose):
    """A run that was taken to its end, and a copy of it as it was before its last sitting."""
    import yaml

    here = tmp_path_factory.mktemp(request.param)
    model = small_model if request.param == "subspace" else tiny_model
    config = {
        "model": {"path": str(model)},
        "data": {"train": [str(prose)], "eval": [str(prose)], "sequence_length": 32},
        "train": {"steps": 2, "micro_batch": 1, "lr": 1e-2, "eval_sequences": 2,
                  "schedule": "constant"},
        "engine": {"kind": request.param},
        "device": {"name": "host", "threads": 1},
    }  # fmt: skip
    (here / "run.yaml").write_text(yaml.safe_dump(config))
    begun, ended = here / "begun", here / "ended"
    outcome = sluiceway("train", here / "run.yaml", "--out", begun)
    assert outcome.code == 0, outcome.err
    shutil.copytree(begun, ended)
    outcome = go_on(sluiceway, ended)
    assert outcome.code == 0, outcome.err
    return begun, ended


def go_on(sluiceway, folder):
    return sluiceway("resume", folder, "--set", "train.steps=3")


def files_of(folder):
    save = folder / "checkpoint"
    return sorted(path for path in save.rglob("*") if path.is_file())


def flip(path, generator):
    """Change four bytes that lie side by side; give their place."""
    raw = bytearray(path.read_bytes())
    place = generator.randrange(len(raw) - 3)
    for k in range(4):
        raw[place + k] ^= generator.randrange(1, 256)
    path.write_bytes(raw)
    return place


def test_save_has_as_many_files_as_are_flipped(whole):
    assert len(files_of(whole[0])) == FILES


def test_flipped_bytes_are_refused_or_change_no_bit(sluiceway, whole, tmp_path, flip_case):
    number, seed = flip_case
    begun, ended = whole
    folder = tmp_path / "run"
    shutil.copytree(begun, folder)
    path = files_of(folder)[number % FILES]
    place = flip(path, random.Random(seed))
    outcome = go_on(sluiceway, folder)
    if outcome.code == 0:
        assert weights_hash(folder) == weights_hash(ended), (path, place)
        assert loss_lines(folder) == loss_lines(ended), (path, place)
    else:
        assert_short_error(outcome, 1, str(path), "the save is not usable", "there is none before")
    shutil.rmtree(folder)  # Hundreds of them are a disk full.
