"""Saves: complete when they appear, whatever happens while they are written."""

from __future__ import annotations

import errno
import random
import resource
import shutil

import numpy as np
import pytest
import torch
from sluiceway.base.atomic import publish_folder, recover_folder
from sluiceway.config.file import check_config
from sluiceway.engines import engine_of
from sluiceway.errors import Corrupt, IoError
from sluiceway.machine.placement import choose_placement
from sluiceway.model.folder import load_model
from sluiceway.run import checkpoint
from sluiceway.run.checkpoint import Position


def write_text(text):
    def write(folder):
        (folder / "a").write_text(text)
        (folder / "b").write_text(text)

    return write


def publish(target, text):
    publish_folder(target, write_text(text), lambda folder: None)


def contents(folder):
    return {path.name: path.read_text() for path in folder.iterdir()}


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_published_folder_keeps_the_one_before_it_and_nothing_else(tmp_path):
    target = tmp_path / "checkpoint"
    for text in ("first", "second", "third"):
        publish(target, text)
    assert contents(target) == {"a": "third", "b": "third"}
    assert contents(tmp_path / "checkpoint.old") == {"a": "second", "b": "second"}
    assert names(tmp_path) == ["checkpoint", "checkpoint.old"]


def test_never_more_than_two_complete_folders_are_there(tmp_path):
    target = tmp_path / "checkpoint"
    seen = []

    def look(folder):
        write_text("x")(folder)
        seen.append(names(tmp_path))

    for _ in range(3):
        publish_folder(target, look, lambda folder: seen.append(names(tmp_path)))
    assert seen[0] == seen[1] == ["checkpoint.new"]
    assert seen[2:] == 4 * [["checkpoint", "checkpoint.new"]]


def test_disk_that_is_full_half_way_leaves_the_save_before_untouched(tmp_path):
    target = tmp_path / "checkpoint"
    publish(target, "first")

    def full(folder):
        (folder / "a").write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(IoError) as refused:
        checkpoint.publish(target, full)
    assert refused.value.errno == errno.ENOSPC
    assert "No space left on device" in str(refused.value)
    assert contents(target) == {"a": "first", "b": "first"}
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint"]


@pytest.mark.parametrize(
    ("there", "left"),
    [
        ({"checkpoint.new": "half"}, None),
        ({"checkpoint": "first", "checkpoint.new": "half"}, "first"),
        ({"checkpoint.old": "first", "checkpoint.new": "second"}, "first"),
        ({"checkpoint.old": "first", "checkpoint": "second"}, "second"),
    ],
)
def test_kill_between_any_two_renames_leaves_a_whole_save(tmp_path, there, left):
    for name, text in there.items():
        (tmp_path / name).mkdir()
        write_text(text)(tmp_path / name)
    target = tmp_path / "checkpoint"
    recover_folder(target)
    assert target.exists() is (left is not None)
    if left:
        assert contents(target) == {"a": left, "b": left}
    publish(target, "next")
    assert contents(target) == {"a": "next", "b": "next"}
    if left:
        assert contents(tmp_path / "checkpoint.old") == {"a": left, "b": left}
    assert names(tmp_path) == (["checkpoint", "checkpoint.old"] if left else ["checkpoint"])


def open_engine(folder):
    train = {"lr": 1e-2, "max_norm": 1.0}
    tree = {"model": {"path": str(folder)}, "data": {"train": ["pydoc"]}, "train": train}
    config = check_config(tree | {"engine": {"kind": "native"}, "device": {"name": "host"}})
    engine = engine_of(config)
    engine.open(folder, choose_placement(config), None)
    return engine


@pytest.fixture
def trained(tiny_model):
    engine = open_engine(tiny_model)
    engine.scaler = torch.amp.GradScaler("cpu", enabled=True)
    ids = torch.arange(24).reshape(2, 12)
    for _ in range(3):
        engine.model(input_ids=ids, labels=ids).loss.backward()
        engine.optimizer.step()
        engine.optimizer.zero_grad()
    return engine


def save(target, trained, tiny_model, **position):
    at = Position(**position)
    write = checkpoint.writer_of(at, trained, tiny_model, {"data": "d"}, None, trained.save)
    checkpoint.publish(target, write)


def test_save_gives_back_weights_moments_and_all_three_noises_bit_for_bit(
    tmp_path, trained, tiny_model
):
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(5)
    random.gauss(0, 1), np.random.standard_normal(), torch.randn(3)
    save(tmp_path / "checkpoint", trained, tiny_model, step=7, first_eval_loss=0.1 + 0.2)
    expected = [random.gauss(0, 1), np.random.standard_normal(), torch.randn(3).tolist()]

    position, state = checkpoint.load_state(tmp_path / "checkpoint")
    assert (position.step, position.first_eval_loss, state["data"]) == (7, 0.1 + 0.2, "d")
    engine = open_engine(tmp_path / "checkpoint")
    engine.scaler = torch.amp.GradScaler("cpu")
    checkpoint.load_into(tmp_path / "checkpoint", engine)
    assert [random.gauss(0, 1), np.random.standard_normal(), torch.randn(3).tolist()] == expected
    before = trained.model.state_dict()
    for name, tensor in engine.model.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    old, new = (one.optimizer.state_dict()["state"] for one in (trained, engine))
    assert old.keys() == new.keys()
    for key in old:
        assert all(torch.equal(old[key][k], new[key][k]) for k in old[key])


def test_save_is_itself_a_model_folder_with_a_tokenizer(tmp_path, trained, tiny_model):
    from transformers import AutoTokenizer

    save(tmp_path / "checkpoint", trained, tiny_model)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "checkpoint")
    assert tokenizer("aé")["input_ids"] == list("aé".encode())


@pytest.mark.parametrize("most", [1000, 100_000, 200_000])
def test_file_size_limit_hit_inside_torch_or_safetensors_keeps_the_save_before(
    tmp_path, trained, tiny_model, most
):
    save(tmp_path / "checkpoint", trained, tiny_model, step=1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        with pytest.raises(IoError, match="the save could not be written"):
            save(tmp_path / "checkpoint", trained, tiny_model, step=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    position, _ = checkpoint.load_state(tmp_path / "checkpoint")
    assert position.step == 1
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint"]


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "random.pt"])
def test_file_that_was_cut_is_corrupt_with_both_sizes(tmp_path, trained, tiny_model, name):
    save(tmp_path / "checkpoint", trained, tiny_model)
    path = tmp_path / "checkpoint" / name
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(size - 1)
    with pytest.raises(Corrupt, match=rf"{name}: {size - 1} bytes, expected {size}"):
        checkpoint.load_state(tmp_path / "checkpoint")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 99, "position": {}, "files": {}}'])
def test_state_that_cannot_be_read_is_corrupt_with_its_path(tmp_path, text):
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(Corrupt, match=r"state\.json"):
        checkpoint.load_state(tmp_path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_loaded_weights_are_aligned_and_do_not_hang_on_their_file(small_model, tmp_path, dtype):
    folder = tmp_path / "model"
    shutil.copytree(small_model, folder)
    model = load_model(folder, dtype)
    (folder / "model.safetensors").write_bytes(b"")  # A mapped page would now be a bus error.
    assert {p.data_ptr() % 64 for p in model.parameters()} == {0}
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
