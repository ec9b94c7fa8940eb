"""Training with the states on a whole block device: the bits of host memory. `make check`, as root.

The Makefile looks whether there are loop devices; where there are none, this file is not run.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import assert_short_error

from experiments.kill_resume.kills import loss_lines, weights_hash

TRAIN = {"steps": 6, "accumulate": 2, "max_norm": 0.5, "save_every": 2}
ENGINE = {"kind": "offload", "gradients": "bf16"}
IMAGE_BYTES = 32 << 20


def output_of(*command: object) -> str:
    done = subprocess.run([str(x) for x in command], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@contextmanager
def looped(image: Path) -> Iterator[str]:
    """A loop device over an image of zeros."""
    image.touch()
    image.open("r+b").truncate(IMAGE_BYTES)
    device = output_of("/sbin/losetup", "-f", "--show", image)
    yield device
    output_of("/sbin/losetup", "-d", device)


@pytest.fixture
def loop_device(tmp_path: Path) -> Iterator[str]:
    with looped(tmp_path / "image") as device:
        yield device


@pytest.fixture
def second_device(tmp_path: Path) -> Iterator[str]:
    with looped(tmp_path / "second") as device:
        yield device


@pytest.fixture
def config(tiny_model, write_config):
    return write_config(tiny_model, train=TRAIN, engine=ENGINE, store={"chunk": "64KiB"})


def test_a_block_device_gives_the_bits_of_memory_and_is_taken_up_again(
    sluiceway, config, loop_device, tmp_path
):
    on_device = ["--set", "engine.tier=disk", "--set", f"store.path={loop_device}",
                 "--set", "store.io=block"]  # fmt: skip
    done = sluiceway("train", config, "--out", tmp_path / "host")
    assert done.code == 0, done.err
    done = sluiceway("train", config, "--out", tmp_path / "block", *on_device)
    assert done.code == 0, done.err
    assert weights_hash(tmp_path / "block") == weights_hash(tmp_path / "host")
    assert loss_lines(tmp_path / "block") == loss_lines(tmp_path / "host")
    assert sluiceway("store", "verify", loop_device).code == 0

    done = sluiceway("resume", tmp_path / "block", "--set", "train.steps=8")
    assert done.code == 0, done.err
    done = sluiceway("resume", tmp_path / "host", "--set", "train.steps=8")
    assert done.code == 0, done.err
    assert weights_hash(tmp_path / "block") == weights_hash(tmp_path / "host")


def test_a_device_with_a_file_system_is_refused_and_left_as_it_is(
    sluiceway, config, loop_device, tmp_path
):
    output_of("/sbin/mkfs.ext4", "-q", loop_device)
    before = Path(loop_device).read_bytes()
    done = sluiceway(
        "train", config, "--out", tmp_path / "out", "--set", "engine.tier=disk",
        "--set", f"store.path={loop_device}", "--set", "store.io=block",
    )  # fmt: skip
    assert_short_error(done, 2, "ext4", loop_device)
    assert Path(loop_device).read_bytes() == before


def test_a_device_needs_the_word_block(sluiceway, config, loop_device, tmp_path):
    done = sluiceway(
        "train", config, "--out", tmp_path / "out", "--set", "engine.tier=disk",
        "--set", f"store.path={loop_device}",
    )  # fmt: skip
    assert_short_error(done, 1, f"{loop_device} is a block device", "io='block'")


def test_two_block_devices_are_measured_and_give_the_bits_of_memory(
    sluiceway, config, loop_device, second_device, tmp_path
):
    done = sluiceway("train", config, "--out", tmp_path / "host")
    assert done.code == 0, done.err
    done = sluiceway(
        "train", config, "--out", tmp_path / "block", "--set", "engine.tier=disk",
        "--set", f"store.path=[{loop_device}, {second_device}]", "--set", "store.io=block",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert "alike" not in done.err
    assert weights_hash(tmp_path / "block") == weights_hash(tmp_path / "host")
    assert sluiceway("store", "verify", loop_device, second_device).code == 0
    done = sluiceway("resume", tmp_path / "block", "--set", "train.steps=8")
    assert done.code == 0, done.err


def test_of_two_devices_neither_is_changed_where_one_is_refused(
    sluiceway, config, loop_device, second_device, tmp_path
):
    Path(loop_device).write_bytes(b"\x01" * 4096)  # Nothing that anybody knows.
    output_of("/sbin/mkfs.ext4", "-q", second_device)
    before = [Path(device).read_bytes() for device in (loop_device, second_device)]
    done = sluiceway(
        "train", config, "--out", tmp_path / "out", "--set", "engine.tier=disk",
        "--set", f"store.path=[{loop_device}, {second_device}]", "--set", "store.io=block",
    )  # fmt: skip
    assert_short_error(done, 2, "ext4", second_device)
    assert [Path(device).read_bytes() for device in (loop_device, second_device)] == before
