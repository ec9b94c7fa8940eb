"""Saves of `kind: zo`, mode write_back, that are written while steps go on."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import threading
from functools import partial
from pathlib import Path

import pytest
from conftest import read_lines
from safetensors.torch import load_file
from sluiceway.base.interrupt import Interrupt, Interrupted
from sluiceway.base.side_thread import run_aside
from sluiceway.config.file import load_config
from sluiceway.engines import engine_of
from sluiceway.engines.state_file import read_state
from sluiceway.engines.zo import Zo
from sluiceway.errors import IoError
from sluiceway.model.weight_stream import StreamedWeights
from sluiceway.run import checkpoint, saves
from sluiceway.run.run import Run
from sluiceway.run.run_folder import RunFolder
from sluiceway.run.session import read_inputs
from sluiceway.run.timeline import Timeline
from sluiceway.text.batches import in_order

from experiments.kill_resume.kills import loss_lines, weights_hash

WRITE_BACK = {"kind": "zo", "tier": "host", "mode": "write_back"}


@pytest.fixture
def config_of(tiny_model, write_config):
    """A config of mode write_back; sections given by name are merged in."""

    def write(name: str = "run.yaml", **sections):
        sections["engine"] = {**WRITE_BACK, **sections.get("engine", {})}
        sections["train"] = {"lr": 1e-3, "eval_sequences": 2, **sections.get("train", {})}
        return write_config(tiny_model, name=name, **sections)

    return write


@pytest.mark.parametrize(
    ("dtype", "engine"),
    [
        ("fp32", {"depth": 8}),
        ("bf16", {}),
        ("bf16", {"master": "bf16"}),
        ("fp32", {"wire": "bf16"}),
        ("bf16", {"wire": "bf16", "depth": 8}),
    ],
    ids=["fp32", "bf16", "at-random", "narrow", "narrow-bf16"],
)
def test_a_save_beside_steps_has_the_bytes_of_one_between_them(config_of, tmp_path, dtype, engine):
    config = load_config(config_of(model={"dtype": dtype}, engine=engine))
    inputs = read_inputs(config, Path(config.model.path))
    batches = list(in_order(inputs.train, 2, 14))
    between, beside = tmp_path / "between", tmp_path / "beside"
    for folder in (between, beside):
        folder.mkdir()
        with contextlib.closing(engine_of(config)) as zo:
            zo.open(Path(config.model.path), inputs.placement, None)
            for batch in batches[:3]:
                zo.update([batch], Timeline(None))
            if folder == between:
                zo.save(folder)
                assert same_weights(folder, zo)
                continue
            begun = zo.begin_save()
            writing = run_aside("save", partial(begun.write, folder))
            for batch in batches[3:]:
                zo.update([batch], Timeline(None))
            assert begun.finish()
            writing.result()
            begun.close()
    names = {path.name for path in between.iterdir()}
    assert {"model.safetensors", "optimizer.pt"} <= names
    assert names == {path.name for path in beside.iterdir()}
    for name in names:
        assert (between / name).read_bytes() == (beside / name).read_bytes(), name


def same_weights(folder: Path, zo: Zo) -> bool:
    """Tell whether the save has the state of model and optimizer."""
    saved, model = load_file(folder / "model.safetensors"), zo.model.state_dict()
    state, own = read_state(folder / "optimizer.pt"), zo.optimizer.state_dict()
    assert saved.keys() == {name for name, _ in zo.model.named_parameters()}
    assert own["state"].keys() == state["state"].keys()
    masters = [
        (own["state"][n]["master"], values["master"]) for n, values in state["state"].items()
    ]
    return all((saved[name] == model[name]).all() for name in saved) and all(
        (one == other).all() for one, other in masters
    )


# ---- A run ----


class Commanded:
    """A run in this process, and what its saves are to wait for or to raise."""

    def __init__(self, config: Path, path: Path, monkeypatch) -> None:
        self.path, self.out, self.interrupt = path, io.StringIO(), Interrupt()
        self._config = load_config(config)
        self.puts = 0  # Tensors that saves were given.
        self.before_put = lambda: None
        put = StreamedWeights.put

        def watched(file, name, value):
            self.puts += 1
            self.before_put()
            put(file, name, value)

        monkeypatch.setattr(StreamedWeights, "put", watched)
        monkeypatch.setattr(saves, "_SECONDS", 0.01)

    def train(self) -> None:
        with contextlib.closing(RunFolder.create(self.path, self._config)) as folder:
            Run(self._config, folder, self.interrupt, self.out).train()

    @property
    def saved_step(self) -> int:
        position, _ = checkpoint.load_state(self.path / "checkpoint")
        return position.step


@pytest.fixture
def run_of(config_of, tmp_path, monkeypatch):
    """A run of mode write_back with bf16 weights."""

    def make(**sections) -> Commanded:
        config = config_of(**{"model": {"dtype": "bf16"}, **sections})
        return Commanded(config, tmp_path / "run", monkeypatch)

    return make


def test_lines_and_trace_say_when_a_save_was_under_way_and_the_next_waits_for_it(run_of):
    run = run_of(train={"steps": 4, "save_every": 1}, trace=True)
    waited = threading.Event()  # A save is held up until the next one waits for it.
    told = []

    def before_put():
        assert waited.wait(60)

    def tell(_, step):
        told.append(step)
        waited.set()

    run.before_put = before_put
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("sluiceway.run.progress.Progress.saving", tell)
        run.train()
    assert told[0] == 1
    assert run.saved_step == 4
    assert [line.get("saving") for line in read_lines(run.path)[1:]] == [None, 1, 1, 1]
    trace = (run.path / "trace.json").read_text()
    assert all(f'"save {step}"' in trace for step in (1, 2, 3, 4))


def test_a_full_disk_ends_the_run_and_leaves_the_save_before(run_of, sluiceway):
    run = run_of(train={"steps": 50, "save_every": 2, "schedule": "constant"})
    count = []

    def before_put():
        if run.saved_puts is None and (run.path / "checkpoint").exists():
            run.saved_puts = run.puts
        if run.saved_puts is not None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        count.append(1)

    run.saved_puts, run.before_put = None, before_put
    with pytest.raises(IoError, match=r"could not be written, No space left .* is untouched"):
        run.train()
    assert count
    assert run.saved_step == 2
    assert not (run.path / "checkpoint.new").exists()
    assert json.loads((run.path / "summary.json").read_text())["status"] == "failed"
    assert sluiceway("resume", run.path, "--set", "train.steps=6").code == 0
    assert [line["step"] for line in read_lines(run.path)] == list(range(7))


@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt])
def test_a_step_that_raises_waits_for_the_save_unless_nobody_waits(run_of, monkeypatch, kind):
    run = run_of(train={"steps": 9, "save_every": 2})
    raised = threading.Event()
    update = Zo.update

    def failing(zo, batches, ranges):
        if zo.optimizer.committed_steps < 2:
            return update(zo, batches, ranges)
        raised.set()
        raise kind("planted")

    run.before_put = lambda: raised.wait(60)
    monkeypatch.setattr(Zo, "update", failing)
    with pytest.raises(kind, match="planted"):
        run.train()
    if kind is RuntimeError:
        assert run.saved_step == 2
    else:
        assert not (run.path / "checkpoint").exists() or run.saved_step == 2


def test_a_signal_waits_for_the_save_under_way_and_saves(run_of):
    run = run_of(train={"steps": 9, "save_every": 3})

    def before_put():
        run.interrupt.requested = True

    run.before_put = before_put
    with pytest.raises(Interrupted):
        run.train()
    assert run.saved_step == read_lines(run.path)[-1]["step"]
    assert 3 <= run.saved_step < 9


def test_a_run_that_saves_beside_steps_goes_on_with_the_same_bits(sluiceway, config_of, tmp_path):
    whole, two = tmp_path / "whole", tmp_path / "two"
    train = {"schedule": "constant", "steps": 9}
    config = config_of(model={"dtype": "bf16"}, train=train, engine={"wire": "bf16"})
    assert sluiceway("train", config, "--out", whole).code == 0
    config = config_of("saving.yaml", model={"dtype": "bf16"}, engine={"wire": "bf16"},
                       train={**train, "save_every": 1, "steps": 6})  # fmt: skip
    assert sluiceway("train", config, "--out", two).code == 0
    assert sluiceway("eval", two).code == 0
    done = sluiceway("resume", two, "--previous", "--set", "train.steps=9")
    assert done.code == 0, done.err
    assert (weights_hash(whole), loss_lines(whole)) == (weights_hash(two), loss_lines(two))
