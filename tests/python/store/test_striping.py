"""A store of several drives: weights by measured rates, the same bits, refusals by the folder."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
from pathlib import Path

import pytest
import sluiceway as sw
from conftest import assert_short_error, read_lines
from offload_models import offload, run, words
from sluiceway import _core
from sluiceway.config.file import load_config
from sluiceway.errors import IoError
from sluiceway.machine import striping
from sluiceway.machine.striping import striped_rate, striping_weights
from sluiceway.store.drives import drive_path
from small_models import same_bits
from small_store import make_store
from zo_models import decoder, on_host, same, zo_train

from experiments.kill_resume.kills import kill_at_step, loss_lines, weights_hash

TRAIN = {"steps": 6, "accumulate": 2, "max_norm": 0.5}
ENGINE = {"kind": "offload", "gradients": "bf16", "tier": "disk"}

pytestmark = pytest.mark.filterwarnings("ignore:.*has no direct I/O:RuntimeWarning")


@pytest.fixture
def memory_disk(memory_folder) -> Path:
    """A folder of another file system than `tmp_path`, which has no direct I/O."""
    return memory_folder


@pytest.fixture
def rates(monkeypatch) -> dict[Path, float]:
    """Set the rates of disks by folder; measuring any other folder fails."""
    said: dict[Path, float] = {}

    def disk_rates(folder, mixes, io, size):
        assert mixes == ("both",)
        return {"both": {"gbps": said[folder]}}

    monkeypatch.setattr(striping, "disk_rates", disk_rates)
    return said


def drives_of(paths: list[Path]) -> list[dict]:
    store = _core.open_store([str(p / f"drive{n}.sws") for n, p in enumerate(paths)])
    found = store.describe()["drives"]
    store.close()
    return found


# ---- Weights ----


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([3.1], [1]),
        ([2.0, 2.0, 2.0], [1, 1, 1]),
        ([2.0, 2.08], [1, 1]),
        ([7.0, 3.5], [2, 1]),
        ([3.0, 2.0], [3, 2]),
        ([1.0, 1.3], [3, 4]),
        ([0.15, 3.0], [1, 20]),
        ([1e-12, 1.0], [1, 10**6]),
        ([0.0, 1.0], [1, 10**6]),
    ],
)
def test_weights_are_the_smallest_that_stand_as_rates_do(given, expected):
    assert striping_weights(given) == expected


def test_weights_are_within_five_percent_of_any_rates():
    draw = random.Random(1)
    for _ in range(2000):
        given = [10 ** draw.uniform(-2, 1) for _ in range(draw.randint(1, 8))]
        weights = striping_weights(given)
        assert 1 <= min(weights) <= 10
        for (a, wa), (b, wb) in itertools.combinations(zip(given, weights, strict=True), 2):
            assert 0.95 / 1.05 <= (wa / wb) / (a / b) <= 1.05 / 0.95
        assert striped_rate(given, weights) >= 0.95 / 1.05 * sum(given)


def test_together_drives_give_what_the_one_that_is_done_last_allows():
    assert striped_rate([3.0, 2.0], [3, 2]) == pytest.approx(5)
    assert striped_rate([3.0, 2.0], [1, 1]) == pytest.approx(4)


# ---- Stores ----


@pytest.mark.parametrize("io", ["posix", "auto"])
def test_two_drives_have_the_bits_of_one_and_of_memory(tmp_path, memory_disk, rates, io):
    models = [words() for _ in range(3)]
    paths = [tmp_path / "a", memory_disk / "b"]
    rates.update({paths[0]: 2.1, paths[1]: 0.7})
    for model, path in zip(models, (None, tmp_path / "one", paths), strict=True):
        with offload(model, path, io=io, max_norm=0.1) as opt:
            run(model, opt, 3)
    assert same_bits(models[1], models[0])
    assert same_bits(models[2], models[0])
    assert [[f.name for f in path.iterdir()] for path in paths] == [["drive0.sws"], ["drive1.sws"]]
    drives = drives_of(paths)
    assert [drive["weight"] for drive in drives] == [3, 1]
    assert drives[0]["bytes"] > 2 * drives[1]["bytes"]


def test_a_store_goes_on_with_the_weights_that_it_was_made_with(tmp_path, memory_disk, rates):
    paths = [tmp_path / "a", memory_disk / "b"]
    rates.update({paths[0]: 1.0, paths[1]: 5.0})
    expected, model = words(), words()
    with offload(expected) as opt:
        run(expected, opt, 5)
    with offload(model, paths) as opt:
        run(model, opt, 3)
        state = opt.state_dict()
    rates.clear()  # Nothing is measured again.
    again = words(seed=9)
    with offload(again, tuple(paths)) as opt:
        opt.load_state_dict(state)
        run(again, opt, 2, first=3)
    assert same_bits(again, expected)
    assert [drive["weight"] for drive in drives_of(paths)] == [1, 5]


def test_folders_of_one_disk_are_alike_without_a_measurement(tmp_path, rates):
    offload(words(), [tmp_path / "a", tmp_path / "b"]).close()
    assert [drive["weight"] for drive in drives_of([tmp_path / "a", tmp_path / "b"])] == [1, 1]


def test_folders_of_one_disk_share_its_rate(tmp_path, memory_disk, rates):
    paths = [tmp_path / "a", memory_disk, tmp_path / "c"]
    for path in paths:
        path.mkdir(exist_ok=True)
    rates.update({paths[0]: 4.0, memory_disk: 6.0})
    assert striping.rates_of_disks(paths, "auto") == [2.0, 6.0, 2.0]


def test_disks_are_measured_by_what_they_do(tmp_path, memory_disk):
    found = striping.rates_of_disks([tmp_path, memory_disk], "posix")
    assert all(rate > 0 for rate in found)
    assert not list(tmp_path.iterdir())


def test_a_disk_that_cannot_be_measured_is_said_and_shares_alike(
    tmp_path, memory_disk, monkeypatch
):
    def refuse(*_):
        raise IoError(f"{tmp_path}: cannot be measured, No space left on device", 28, "x")

    monkeypatch.setattr(striping, "disk_rates", refuse)
    paths = [tmp_path / "a", memory_disk / "b"]
    with pytest.warns(
        RuntimeWarning, match="OffloadAdamW: its drives share all chunks equally, .*No"
    ):
        offload(words(), paths).close()
    assert [drive["weight"] for drive in drives_of(paths)] == [1, 1]


def test_weights_on_two_drives_train_as_those_in_memory(tmp_path, memory_disk, rates):
    paths = [tmp_path / "a", memory_disk / "b"]
    rates.update({paths[0]: 1.0, paths[1]: 2.0})
    models = [decoder(), decoder()]
    store = sw.StoreOptions(path=paths, chunk=8192)
    opts = [
        sw.ZoSgd(models[0], tier="disk", store=store, path=tmp_path / "log", lr=0.02),
        on_host(models[1], lr=0.02),
    ]
    for opt, model in zip(opts, models, strict=True):
        zo_train(opt, model, range(3))
        opt.close()
    assert same(models[0].state_dict(), models[1])
    assert [drive["weight"] for drive in drives_of(paths)] == [1, 2]


# ---- Refusals ----


def refused(
    paths: object, *words_of: str, error: type = sw.InvalidArgument, **options: object
) -> None:
    with pytest.raises(error) as raised:
        offload(words(), paths, **options)
    assert all(word in str(raised.value) for word in words_of), raised.value


def test_no_path_and_the_same_one_twice_are_refused(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "a")
    refused([], "path is [], expected a path")
    refused([tmp_path / "a", 3], ", 3], expected a valid string or an instance of PathLike")
    refused([tmp_path / "a", tmp_path / "a"], f"path has {tmp_path / 'a'} twice; give each")
    refused(
        [tmp_path / "a", tmp_path / "link"],
        f"path has {tmp_path / 'link'} twice, which is {tmp_path / 'a'}",
    )
    assert [p.name for p in tmp_path.iterdir()] == ["link"]
    with pytest.raises(sw.InvalidArgument, match="path is 'a' and 'b', but tier is 'host'"):
        sw.OffloadAdamW(words(), path=["a", "b"])


def test_a_folder_that_is_gone_or_empty_is_named_and_not_made(tmp_path):
    paths = [tmp_path / "a", tmp_path / "b"]
    offload(words(), paths).close()
    (tmp_path / "b").rename(tmp_path / "kept")
    refused(paths, f"{paths[1]} does not exist, but {paths[0]} holds drives of a store")
    assert not paths[1].exists()
    paths[1].mkdir()
    refused(paths, f"{paths[1]} holds no drive, but {paths[0]} holds drives of a store")
    refused(
        [paths[0], tmp_path / "no" / "b"], "no does not exist; choose an existing", error=sw.IoError
    )
    refused([paths[0]], "drive0.sws is drive 0 of 2 of store", "expected drive 0 of 1")
    paths[1].rmdir()
    (tmp_path / "kept").rename(paths[1])
    refused(paths[::-1], "drive1.sws is drive 1 of 2", "expected drive 0 of 2")
    offload(words(), paths).close()


def test_a_store_whose_making_was_interrupted_is_told_from_one_that_lost_a_header(tmp_path):
    paths = [tmp_path / "a", tmp_path / "b"]
    for number, path in enumerate(paths):  # As a kill leaves them: headers are written last.
        path.mkdir()
        drive_path(path, number).write_bytes(bytes(1 << 20))
        if number == 0:
            refused(paths, "drive0.sws has no header of a drive", "remove these files")
    drives = [drive_path(path, number) for number, path in enumerate(paths)]
    refused(paths, f"{drives[0]} and {drives[1]} have no header", "remove these files")
    for drive in drives:
        drive.unlink()
    offload(words(), paths).close()
    whole = drives[1].read_bytes()
    drives[1].write_bytes(bytes(4096) + whole[4096:])
    refused(
        paths,
        f"{drives[1]} has no header of a drive, but {drives[0]} has one",
        "Bring back the original drive; or, if nothing was trained yet",
    )
    drives[1].write_bytes(whole)
    offload(words(), paths).close()


def test_a_device_that_is_none_is_refused_and_not_made(tmp_path):
    (tmp_path / "file").write_bytes(bytes(1 << 20))
    places = (tmp_path / "none", "does not exist"), (tmp_path / "file", "is not a block device")
    for path, what in places:
        refused([path], f"{path} {what}", "io='block' needs a block device", io="block")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("path", ["", ["a", ""]])
def test_an_empty_name_is_not_the_current_folder(path):
    with pytest.raises(sw.InvalidArgument, match=r"is the empty text, expected the name of a"):
        sw.OffloadAdamW(words(), tier="disk", path=path)


def test_a_folder_with_a_drive_of_another_store_is_refused_and_kept(tmp_path):
    paths = [tmp_path / "a", tmp_path / "b"]
    make_store(paths[1])
    before = (paths[1] / "drive0.sws").read_bytes()
    refused(paths, f"{paths[0]} does not exist, but {paths[1]} holds drives of a store")
    shutil.rmtree(paths[1])
    offload(words(), paths).close()
    offload(words(), [tmp_path / "c", tmp_path / "d"]).close()
    refused([paths[0], tmp_path / "d"], "drive1.sws is drive 1 of 2 of store", "expected drive 1")
    shutil.rmtree(paths[0])
    make_store(paths[0])
    refused([paths[0], tmp_path / "d"], "drive0.sws is drive 0 of 1 of store")
    assert (paths[0] / "drive0.sws").read_bytes() != before  # Of a new id.


# ---- Runs ----


@pytest.fixture
def config(tiny_model, write_config):
    return write_config(tiny_model, train=TRAIN, engine=ENGINE, store={"chunk": "64KiB"})


def test_a_run_on_two_drives_is_killed_and_resumed_with_the_bits_of_one(
    sluiceway, config, tmp_path, memory_disk
):
    two, there = tmp_path / "two", os.path.relpath(memory_disk / "b", tmp_path)
    kill_at_step(
        sluiceway, config, two, 2, "--set", f"store.path=[a, {there}]",
        "--set", "train.steps=4000", "--set", "train.schedule=constant", cwd=tmp_path,
    )  # fmt: skip
    paths = [str(tmp_path / "a"), str(memory_disk / "b")]
    assert load_config(two / "config.yaml").store.path == paths
    for verb in ("inspect", "verify"):
        done = sluiceway("store", verb, *paths, "--json")
        assert done.code == 0, done.err
    assert len(json.loads(sluiceway("store", "inspect", *paths, "--json").out)["drives"]) == 2
    moved = sluiceway("resume", two, "--set", f"store.path=[{paths[1]}, {paths[0]}]")
    assert_short_error(moved, 2, f"{paths[1]}/drive1.sws is drive 1 of 2 of store")
    reached = read_lines(two)[-1]["step"]
    done = sluiceway("resume", two, "--set", f"train.steps={reached + 3}")
    assert done.code == 0, done.err
    whole = tmp_path / "whole"
    done = sluiceway("train", config, "--out", whole, "--set", f"train.steps={reached + 3}",
                     "--set", "train.schedule=constant", "--set", "engine.tier=host")  # fmt: skip
    assert done.code == 0, done.err
    assert weights_hash(two) == weights_hash(whole)
    assert loss_lines(two) == loss_lines(whole)

    shutil.move(paths[1], memory_disk / "kept")
    done = sluiceway("resume", two, "--set", "train.steps=9000")
    assert_short_error(done, 2, f"{paths[1]} does not exist")
    done = sluiceway("store", "verify", *paths)
    assert_short_error(done, 2, f"{paths[1]} does not exist")


def test_a_plan_adds_what_the_disks_give(sluiceway, config, tmp_path, memory_disk):
    asked = ["plan", config, "--json", "--set", f"store.path=[{tmp_path}, {memory_disk}/new]"]
    done = sluiceway(*asked)
    assert done.code == 0, done.err
    assumed = json.loads(done.out)["assumed"]
    assert assumed["disk_gbps"] > 0
    assert assumed["disk_gbps_from"] == f"measured in {tmp_path} and {memory_disk}"
    assert not list(memory_disk.iterdir())
