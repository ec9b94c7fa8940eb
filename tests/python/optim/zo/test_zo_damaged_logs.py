"""Logs of ZoSgd and of runs that were cut or changed: what holds goes on, what is lost is said."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import sluiceway
import torch
from conftest import assert_short_error
from sluiceway.engines.state_file import read_state, write_state
from sluiceway.optim.common.state import STATE_KEY
from sluiceway.run import manifest
from zo_models import OPTIONS, decoder, same, zo_train

from experiments.kill_resume.kills import loss_lines, weights_hash

STEPS, HEADER = 5, 128


def cut(log: bytes) -> bytes:
    return log[:-7]


def flipped(log: bytes, at: int) -> bytes:
    return log[:at] + bytes([log[at] ^ 4]) + log[at + 1 :]


def flipped_in_the_middle(log: bytes) -> bytes:
    return flipped(log, HEADER + (len(log) - HEADER) // STEPS * 2 + 20)


def flipped_in_the_last(log: bytes) -> bytes:
    return flipped(log, len(log) - 20)


# With the steps that are left, and what is said of the rest.
DAMAGES = pytest.mark.parametrize(
    ("damage", "left", "said"),
    [
        (cut, 4, r"57 bytes \(0 whole entries\) after it are lost, .* from step 4 \(the last en"),
        (flipped_in_the_middle, 2, r"192 bytes \(3 whole entries\) .* goes on from step 2 \(.*sum"),
        (flipped_in_the_last, 4, r"64 bytes \(1 whole entries\) after .* goes on from step 4 \("),
    ],
    ids=["cut", "in-the-middle", "in-the-last"],
)


@pytest.fixture(params=["host", "disk"])
def logged(request: pytest.FixtureRequest, tmp_path: Path) -> Callable:
    """A new model, and an optimizer of it that goes on with the log and the base that are there."""

    def opened() -> tuple[torch.nn.Module, sluiceway.ZoSgd]:
        model, place = decoder(), {}
        if request.param == "disk":
            place["store"] = sluiceway.StoreOptions(path=tmp_path / "store")
        path = tmp_path / "log"
        return model, sluiceway.ZoSgd(model, tier=request.param, path=path, **place, **OPTIONS)

    return opened


@DAMAGES
def test_what_holds_goes_on_and_what_is_lost_is_named_and_kept(
    logged: Callable, tmp_path: Path, damage: Callable, left: int, said: str
) -> None:
    model, opt = logged()
    losses = zo_train(opt, model, range(STEPS))
    last = copy.deepcopy(model.state_dict())
    opt.rollback(left)
    at_left = copy.deepcopy(model.state_dict())
    opt.close(theta=False)
    log = tmp_path / "log" / "scalars.log"
    whole = log.read_bytes()[: HEADER + 64 * STEPS]  # Without the return.
    spoilt = damage(whole)
    log.write_bytes(spoilt)
    with pytest.warns(
        RuntimeWarning, match=rf"{log} holds up to byte {HEADER + 64 * left}, .*{said}"
    ):
        model, opt = logged()
    assert opt.committed_steps == left
    assert same(at_left, model)
    assert log.read_bytes() == spoilt  # A look changes nothing.
    assert zo_train(opt, model, range(left, STEPS)) == losses[left:]
    assert same(last, model)
    opt.close(theta=False)
    assert log.read_bytes() == whole
    kept = [path.read_bytes() for path in log.parent.glob("scalars.log.lost.*")]
    rest = spoilt[HEADER + 64 * left :]
    assert kept == ([rest] if len(rest) >= 64 else [])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, opt = logged()  # Nothing is lost any more.
    opt.close(theta=False)


def test_a_damaged_header_is_refused_with_its_path_and_stays(
    logged: Callable, tmp_path: Path
) -> None:
    model, opt = logged()
    zo_train(opt, model, range(1))
    opt.close(theta=False)
    log = tmp_path / "log" / "scalars.log"
    for spoilt in (flipped(log.read_bytes(), 20), b""):
        log.write_bytes(spoilt)
        with pytest.raises(sluiceway.Corrupt, match=rf"{log}: .*; replace it with a copy"):
            logged()
        assert log.read_bytes() == spoilt


@pytest.mark.filterwarnings("ignore:scalar log")
@DAMAGES
def test_a_state_whose_log_is_damaged_is_refused_and_changes_nothing(
    logged: Callable, damage: Callable, left: int, said: str
) -> None:
    model, opt = logged()
    state = copy.deepcopy(opt.state_dict())
    losses = zo_train(opt, model, range(STEPS))
    frame = copy.deepcopy(opt.state_dict())[STATE_KEY]
    opt.load_state_dict(state)
    opt.close(theta=False)
    log = Path(opt.options.path) / "scalars.log"
    log.write_bytes(log.read_bytes()[:HEADER])
    model, opt = logged()
    before = copy.deepcopy(model.state_dict())
    frame["log"]["log"] = damage(frame["log"]["log"])
    with pytest.raises(sluiceway.Corrupt, match=rf"expected 5 entries up to step 5 \({left} whole"):
        opt.load_state_dict(state | {STATE_KEY: frame})
    assert opt.committed_steps == 0
    assert same(before, model)
    assert zo_train(opt, model, range(STEPS)) == losses
    opt.close(theta=False)


# ---- A run ----


def spoil(save: Path, damage: Callable) -> None:
    state = read_state(save / "optimizer.pt")
    state[STATE_KEY]["log"]["log"] = damage(state[STATE_KEY]["log"]["log"])
    write_state(state, save / "optimizer.pt")


@pytest.fixture
def run(sluiceway, tiny_model, write_config, tmp_path: Path) -> Path:
    """One of 5 steps, with saves of step 3 and of step 5."""
    config = write_config(
        tiny_model, engine={"kind": "zo", "tier": "host"}, data={"eval": []},
        train={"steps": STEPS, "save_every": 3, "lr": 1e-4, "schedule": "constant"},
    )  # fmt: skip
    done = sluiceway("train", config, "--out", tmp_path / "run")
    assert done.code == 0, done.err
    return tmp_path / "run"


@DAMAGES
def test_a_save_whose_log_is_damaged_is_refused_and_the_one_before_goes_on(
    sluiceway, run: Path, damage: Callable, left: int, said: str
) -> None:
    whole, lines = weights_hash(run), loss_lines(run)
    spoil(run / "checkpoint", damage)
    done = sluiceway("resume", run, "--set", "train.steps=6")
    assert_short_error(done, 1, "optimizer.pt", "expected", "of step 3, is whole", "--previous")
    assert loss_lines(run) == lines
    done = sluiceway("resume", run, "--previous")
    assert done.code == 0, done.err
    assert (weights_hash(run), loss_lines(run)) == (whole, lines)


@DAMAGES
def test_a_log_that_was_damaged_before_it_was_saved_is_refused_in_a_line_or_two(
    sluiceway, run: Path, damage: Callable, left: int, said: str
) -> None:
    save, lines = run / "checkpoint", loss_lines(run)
    spoil(save, damage)
    told = json.loads((save / "state.json").read_text())
    del told["xxh3"]
    told["files"]["optimizer.pt"] = manifest.sums_of(save)["optimizer.pt"]
    (save / "state.json").write_bytes(manifest.sealed(told))
    done = sluiceway("resume", run, "--set", "train.steps=6")
    assert done.code == 1
    assert "Traceback" not in done.err
    assert f"the state's log is damaged, expected 5 entries up to step 5 ({left} whole" in done.err
    assert loss_lines(run) == lines
