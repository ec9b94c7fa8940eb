"""A store on disk: the same bits as memory, taken up after any end, and refused by its reason."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
import sluiceway as sw
import torch
from conftest import REPOSITORY
from offload_models import loss_of, offload, run, words
from small_models import make, same_bits, weights_of

STEPS = 4


def train(steps: int = STEPS, folder: Path | None = None, **arguments: object) -> torch.nn.Module:
    model = words(dtype=torch.bfloat16)
    with offload(model, folder, max_norm=0.1, **arguments) as opt:
        for step in range(steps):
            for micro in range(2):
                loss_of(model, 2 * step + micro).backward()
            opt.step()
            opt.zero_grad()
    return model


def test_disk_has_the_bits_of_memory_through_every_back_end(tmp_path):
    expected = train()
    for io in ("posix", "auto"):
        assert same_bits(train(folder=tmp_path / io, io=io), expected)
        assert [p.name for p in (tmp_path / io).iterdir()] == ["drive0.sws"]


def test_a_store_is_taken_up_at_its_last_step(tmp_path):
    expected, model = words(), words()
    with offload(expected) as opt:
        run(expected, opt, 5)
    with offload(model, tmp_path / "s") as opt:
        assert opt.resume() == 0  # There is nothing: as it was.
        run(model, opt, 3)
    again = words(seed=9)
    with offload(again, tmp_path / "s") as opt:
        assert opt.resume() == 3
        assert same_bits(again, model)
        with pytest.raises(sw.InvalidArgument, match="3 steps were taken or loaded already"):
            opt.resume()
        run(again, opt, 2, first=3)
    assert same_bits(again, expected)


def test_a_store_that_nobody_took_up_is_neither_trained_nor_changed(tmp_path):
    model = words()
    with offload(model, tmp_path / "s") as opt:
        run(model, opt, 2)
    other = words(seed=9)
    say = "holds step 2 of this model; call opt.resume.. or load_state_dict"
    with offload(other, tmp_path / "s") as opt:
        before = weights_of(other)
        for act in (lambda: loss_of(other, 0), opt.step, opt.commit):
            with pytest.raises(sw.InvalidArgument, match=say):
                act()
        other.eval()
        with pytest.raises(sw.InvalidArgument, match=say):
            loss_of(other, 0).backward()
        assert all(torch.equal(w, before[name]) for name, w in weights_of(other).items())
    with offload(other, tmp_path / "s") as opt:
        assert opt.resume() == 2
        assert same_bits(other, model)


def test_a_state_asked_for_before_a_store_is_taken_up_loads_as_nothing(tmp_path):
    model, expected = words(), words()
    with offload(model, tmp_path / "s") as opt:
        run(model, opt, 2)
        of_two, at_two = opt.state_dict(), weights_of(model)
        run(model, opt, 1, first=2)
    other = words(seed=9)
    with offload(other, tmp_path / "s") as opt:
        before, commits = weights_of(other), opt.engine.generations
        opt.load_state_dict(opt.state_dict())  # Accelerate's first act.
        assert opt.engine.generations == commits
        assert all(torch.equal(w, before[name]) for name, w in weights_of(other).items())
        for act in (lambda: loss_of(other, 0), opt.step, opt.commit):
            with pytest.raises(sw.InvalidArgument, match="holds step 3 of this model"):
                act()
        opt.load_state_dict(of_two)
        assert all(torch.equal(w, at_two[name]) for name, w in weights_of(other).items())
        run(other, opt, 2, first=2)
    with offload(expected) as opt:
        run(expected, opt, 4)
    assert same_bits(other, expected)


def test_a_state_asked_for_before_a_store_is_taken_up_keeps_resume_possible(tmp_path):
    model, other = words(), words(seed=9)
    with offload(model, tmp_path / "s") as opt:
        run(model, opt, 3)
    with offload(other, tmp_path / "s") as opt:
        opt.load_state_dict(opt.state_dict())
        assert opt.resume() == 3
        assert same_bits(other, model)


def test_a_store_without_steps_is_begun_again_from_the_model_that_comes(tmp_path):
    offload(words(seed=5), tmp_path / "s").close()
    expected, model = words(), words()
    with offload(expected) as opt:
        run(expected, opt, 2)
    with offload(model, tmp_path / "s") as opt:
        run(model, opt, 2)
    assert same_bits(model, expected)


def test_commit_is_durable_and_what_follows_it_may_be_lost(tmp_path):
    model = words()
    opt = offload(model, tmp_path / "s")
    run(model, opt, 2)
    opt.commit()
    written = opt.engine.generations[0]
    run(model, opt, 1)
    assert opt.engine.generations[0] == written  # Enqueued, and not on the medium.
    loss_of(model, 3).backward()
    assert opt.engine.generations[0] == (written[0] + 1, 3)
    opt.close()
    opt.close()
    with pytest.raises(sw.InvalidArgument, match="optimizer is closed"):
        opt.commit()


def test_a_dropped_optimizer_commits_and_lets_go_of_its_store(tmp_path):
    model = words()
    opt = offload(model, tmp_path / "s")
    run(model, opt, 2)
    del opt
    gc.collect()
    with offload(words(), tmp_path / "s") as opt:
        assert opt.resume() == 2


_CHILD = """
import sys
import torch
from offload_models import offload, loss_of, words
model = words()
opt = offload(model, sys.argv[1], loss_scale="dynamic")
first = opt.resume()
for step in range(first, 10**6):
    for micro in range(2):
        opt.scale_loss(loss_of(model, 2 * step + micro)).backward()
    opt.step()
    opt.zero_grad()
    print(step, flush=True)
"""


def test_a_run_that_is_killed_goes_on_with_the_same_bits(tmp_path):
    tests = str(REPOSITORY / "tests/python")
    paths = os.pathsep.join(filter(None, [tests, os.environ.get("PYTHONPATH")]))
    threads = str(torch.get_num_threads())
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "PYTHONPATH": paths}
    last = 0
    for kill in range(2):
        child = subprocess.Popen(
            [sys.executable, "-c", _CHILD, str(tmp_path / "s")],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=REPOSITORY,
        )
        for line in child.stdout:
            last = int(line)
            if last >= 6 * (kill + 1):
                break
        time.sleep(0.01 * kill)
        os.kill(child.pid, signal.SIGKILL)
        child.stdout.close()
        child.wait()
    model, expected = words(seed=3), words()
    with offload(model, tmp_path / "s", loss_scale="dynamic") as opt:
        steps = opt.resume()
        scale = opt.loss_scale.state()
    assert steps >= last
    with offload(expected, loss_scale="dynamic") as opt:
        for step in range(steps):
            for micro in range(2):
                opt.scale_loss(loss_of(expected, 2 * step + micro)).backward()
            opt.step()
            opt.zero_grad()
        assert opt.loss_scale.state() == scale
    assert same_bits(model, expected)


# ---- Bad paths --------------------------------------------------------------------------------


def refused(kind: type[Exception], say: str, path: Path, **arguments: object) -> Exception:
    model = words()
    with pytest.raises(kind, match=say) as error:
        offload(model, path, **arguments)
    offload(model).close()  # It was given back.
    return error.value


def test_a_path_that_cannot_be_is_refused_by_its_reason(tmp_path):
    missing = tmp_path / "a" / "b"
    error = refused(sw.IoError, "cannot make the folder .*b, .*a does not exist", missing)
    assert error.filename == str(missing)
    assert error.errno == 2
    file = tmp_path / "file"
    file.write_text("x")
    assert refused(sw.IoError, "file is a file, expected a folder", file).errno == 17
    refused(sw.IoError, "cannot make the folder", Path("/proc/sluiceway"))
    assert file.read_text() == "x"


def test_a_folder_that_may_not_be_written_to(tmp_path, monkeypatch):
    (tmp_path / "s").mkdir()
    real = os.access
    monkeypatch.setattr(os, "access", lambda p, mode: Path(p) != tmp_path / "s" and real(p, mode))
    assert refused(sw.IoError, "s is not readable and writable", tmp_path / "s").errno == 13


def test_another_model_or_other_options_are_told_apart(tmp_path):
    offload(words(), tmp_path / "s").close()
    with pytest.raises(sw.InvalidArgument, match=r"tensor 0 is gain .*, expected enter.weight"):
        offload(make(), tmp_path / "s")
    refused(sw.InvalidArgument, 'gradient is "f32", expected "bf16"', tmp_path / "s",
            gradients="bf16")  # fmt: skip
    refused(sw.InvalidArgument, "chunk_elems is 4096, expected 8192", tmp_path / "s",
            chunk=32 << 10)  # fmt: skip


def test_two_optimizers_share_no_store(tmp_path):
    with offload(words(), tmp_path / "s"):
        error = refused(sw.IoError, "drive0.sws", tmp_path / "s")
        assert error.errno == 16
    offload(words(), tmp_path / "s").close()


def test_a_disk_that_is_too_small_keeps_nothing(tmp_path):
    error = refused(sw.OutOfMemory, "disk", tmp_path / "s", budget=sw.Budget(disk=1 << 16))
    assert "bytes" in str(error) or "KiB" in str(error)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_says_both_byte_counts_and_keeps_nothing(tmp_path):
    """A limit on the size of files stands for the disk."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        refused(sw.IoError, "s/drive0.sws.* bytes|s/drive0.sws.*MiB", tmp_path / "s")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, old)
    assert list(tmp_path.iterdir()) == []


def test_tmpfs_works_with_a_warning(memory_folder):
    model = words()
    with pytest.warns(RuntimeWarning, match="no direct I/O"):
        opt = offload(model, memory_folder / "s")
    with opt:
        run(model, opt, 1)


def test_a_paced_drive_takes_at_least_the_time_of_its_bytes(tmp_path):
    model, rate = words(), 0.02
    with offload(model, tmp_path / "s", rate_gbps=rate) as opt:
        began = time.perf_counter()
        run(model, opt, 2)
        opt.synchronize()
        took = time.perf_counter() - began
        moved = opt.stats()["bytes"]
    each = moved["disk_read"] + moved["disk_written"]
    assert each > 0
    assert took >= each / (1e9 * rate)  # Two steps have twice these bytes, less a last commit.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"io": "uring", "rate_gbps": 1}, "io is uring, which cannot pace"),
        ({"rate_gbps": 0}, "expected above 0 GB/s"),
        ({"rate_gbps": float("inf")}, "rate_gbps"),
    ],
)
def test_a_pace_that_no_drive_can_have_is_refused(tmp_path, options, message):
    with pytest.raises(sw.errors.InvalidArgument, match=message):
        offload(words(), tmp_path / "s", **options)
    assert not (tmp_path / "s").exists()


def test_a_pace_without_a_drive_is_refused():
    with pytest.raises(sw.errors.InvalidArgument, match="no drive to pace"):
        offload(words(), rate_gbps=1)


def test_a_store_on_a_disk_warns_of_nothing(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        offload(words(), tmp_path / "s", io="posix").close()


def test_a_flipped_bit_is_named_and_never_trained_on(tmp_path):
    model = words()
    with offload(model, tmp_path / "s") as opt:
        run(model, opt, 2)
    drive = tmp_path / "s" / "drive0.sws"
    content = bytearray(drive.read_bytes())
    half = len(content) // 2
    for place in range(half, len(content), 1 << 12):
        content[place] ^= 1
    drive.write_bytes(content)
    with offload(words(), tmp_path / "s") as opt, pytest.raises(sw.Corrupt, match="of region 0"):
        opt.resume()
    drive.write_bytes(b"something else")
    with pytest.raises(sw.Error, match=r"drive0\.sws"):
        offload(words(), tmp_path / "s")
    assert drive.read_bytes() == b"something else"
