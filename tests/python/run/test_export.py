"""`sluiceway export`: what the folder holds, what may be replaced, and that nothing is lost."""

from __future__ import annotations

import fcntl
import json
import resource
import shutil
import struct
import subprocess
import sys
from typing import ClassVar

import huggingface_hub
import pytest
import torch
import yaml
from conftest import assert_short_error
from huggingface_hub import RepoUrl
from safetensors.torch import load_file, save_file
from sluiceway.base import atomic
from sluiceway.base.atomic import replace_folder
from sluiceway.errors import InvalidArgument, IoError
from sluiceway.run import manifest
from sluiceway.run.export import base_name
from sluiceway.run.push import check_account, push_folder


@pytest.fixture
def run(finished, tmp_path):
    """A copy of the finished run, to be spoiled."""
    folder = tmp_path / "run"
    shutil.copytree(finished[0], folder)
    return folder


def contents(folder):
    """Every file below a folder, with its bytes."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def put_weights(run, tensors, name="model.safetensors"):
    """Write weights into a run's save, and their sum where the save keeps it."""
    save = run / "checkpoint"
    save_file(tensors, save / name, metadata={"format": "pt"})
    note_sum(save, name)


def note_sum(save, name, gone=False):
    state = json.loads((save / "state.json").read_text())
    del state["xxh3"]
    if gone:
        del state["files"][name]
    else:
        state["files"][name] = manifest.sums_of(save)[name]
    (save / "state.json").write_bytes(manifest.sealed(state))


# ---- What is written ----


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_converted_weights_are_those_of_the_save_rounded_once(sluiceway, finished, tmp_path, dtype):
    from transformers import AutoModelForCausalLM

    torch_dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[dtype]
    to = tmp_path / "model"
    outcome = sluiceway("export", finished[0], "--to", to, "--dtype", dtype, "--json")
    assert outcome.code == 0, outcome.err
    said = json.loads(outcome.out)
    assert (said["step"], said["dtype"]) == (6, dtype)
    assert said["bytes"] == sum(path.stat().st_size for path in to.iterdir())
    saved = load_file(finished[0] / "checkpoint" / "model.safetensors")
    written = load_file(to / "model.safetensors")
    assert written.keys() == saved.keys()
    for name, tensor in saved.items():
        assert torch.equal(written[name], tensor.to(torch_dtype)), name
    model = AutoModelForCausalLM.from_pretrained(to)
    assert {p.dtype for p in model.parameters()} == {torch_dtype}


@pytest.mark.parametrize(
    ("place", "config", "name"),
    [
        ("my-base", "{}", "my-base"),
        ("my-base", None, "my-base"),
        ("my-base", '{"_name_or_path": "some/where/else"}', "my-base"),
        ("my-base", '{"_name_or_path": "Qwen/Qwen3-1.7B"}', "Qwen/Qwen3-1.7B"),
        ("hub/models--Qwen--Qwen3-1.7B/snapshots/0123abcd", "{}", "Qwen/Qwen3-1.7B"),
        ("hub/models--a--b--c/snapshots/0123abcd", "{}", "a/b--c"),
        ("hub/models--gpt2/snapshots/0123abcd", "{}", "gpt2"),
    ],
)
def test_the_base_model_is_called_by_its_name_on_the_hub(tmp_path, place, config, name):
    folder = tmp_path / place
    folder.mkdir(parents=True)
    if config is not None:
        (folder / "config.json").write_text(config)
    assert base_name(folder) == name


def test_the_card_links_a_base_model_of_the_hub(sluiceway, run, tmp_path):
    to = tmp_path / "model"
    for base, linked in [("models--Qwen--Qwen3/snapshots/1", "Qwen/Qwen3"), ("my-base", None)]:
        state = json.loads((run / "checkpoint" / "state.json").read_text())
        state["config"]["model"]["path"] = str(tmp_path / base)
        del state["xxh3"]
        (run / "checkpoint" / "state.json").write_bytes(manifest.sealed(state))
        outcome = sluiceway("export", run, "--to", to, "--force")
        assert outcome.code == 0, outcome.err
        card = (to / "README.md").read_text()
        metadata = yaml.safe_load(card.split("---\n")[1])
        assert metadata.get("base_model") == linked
        assert f"- Base model: {linked or base}\n" in card


def test_shards_are_converted_one_by_one_and_their_index_says_the_new_size(
    sluiceway, run, tmp_path
):
    from transformers import AutoModelForCausalLM

    save = run / "checkpoint"
    model = AutoModelForCausalLM.from_pretrained(save)
    (save / "model.safetensors").unlink()
    model.save_pretrained(save, max_shard_size="20KB")
    note_sum(save, "model.safetensors", gone=True)
    shards = sorted(path.name for path in save.glob("*.safetensors"))
    assert len(shards) > 2
    for name in [*shards, "model.safetensors.index.json", "config.json"]:
        note_sum(save, name)
    to = tmp_path / "model"
    outcome = sluiceway("export", run, "--to", to, "--dtype", "bf16")
    assert outcome.code == 0, outcome.err
    index = json.loads((to / "model.safetensors.index.json").read_text())
    size = sum(t.nbytes for name in shards for t in load_file(to / name).values())
    assert index["metadata"]["total_size"] == size
    again = AutoModelForCausalLM.from_pretrained(to)
    for (name, mine), theirs in zip(again.named_parameters(), model.parameters(), strict=True):
        assert torch.equal(mine, theirs.bfloat16()), name


def test_tensors_of_every_dtype_and_size_survive_conversion(tmp_path):
    from sluiceway.model.weight_stream import copy_weights

    tensors = {
        "steps": torch.arange(7),
        "mask": torch.tensor([True, False, True]),
        "wide": torch.linspace(-1, 1, 11, dtype=torch.float64),
        "weight": torch.linspace(-3, 3, 13),
        "nothing": torch.zeros(0, 4),
        "scalar": torch.tensor(0.1),
        "large": torch.linspace(-3, 3, (8 << 20) // 4 + 5),  # More than one piece.
        "not finite": torch.tensor([torch.inf, -torch.inf, torch.nan, 1.0]),
    }
    save_file(tensors, tmp_path / "a.safetensors", metadata={"format": "pt"})
    counted = []
    copy_weights(tmp_path / "a.safetensors", tmp_path / "b.safetensors", "bf16", counted.append)
    written = load_file(tmp_path / "b.safetensors")
    assert written.keys() == tensors.keys()
    for name, tensor in tensors.items():
        expected = tensor.bfloat16() if tensor.is_floating_point() else tensor
        assert torch.equal(written[name].nan_to_num(9), expected.nan_to_num(9)), name
    assert sum(counted) == sum(t.nbytes for t in tensors.values())


def test_memory_does_not_grow_with_a_tensor(tmp_path):
    size = 256 << 20
    header = {"big": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}}
    text = json.dumps(header).encode()
    with (tmp_path / "a").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + size)
    script = (
        "import resource, sys; from pathlib import Path\n"
        "from sluiceway.model.weight_stream import copy_weights\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "before = peak()\n"
        "for name, dtype in (('copied', None), ('converted', 'bf16')):\n"
        "    copy_weights(Path('a'), Path(name), dtype, lambda count: None)\n"
        "print(peak() - before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert int(done.stdout) << 10 < size // 4
    sizes = [(tmp_path / name).stat().st_size for name in ("copied", "converted")]
    assert sizes == [8 + len(text) + size, pytest.approx(size // 2, abs=4096)]


# ---- What may be replaced ----


def test_force_replaces_a_model_folder_and_nothing_beside_it(sluiceway, finished, tmp_path):
    to = tmp_path / "model"
    assert sluiceway("export", finished[0], "--to", to, "--dtype", "bf16").code == 0
    (to / "letter.txt").write_text("dear")
    beside = [tmp_path / f"model.{name}" for name in ("old", "new")]
    for folder in beside:
        folder.mkdir()
        (folder / "mine").write_text("keep")
    outcome = sluiceway("export", finished[0], "--to", to, "--force")
    assert outcome.code == 0, outcome.err
    assert not (to / "letter.txt").exists()
    saved = (finished[0] / "checkpoint" / "model.safetensors").read_bytes()
    assert (to / "model.safetensors").read_bytes() == saved
    assert [(folder / "mine").read_text() for folder in beside] == ["keep", "keep"]
    assert {path.name for path in tmp_path.iterdir()} == {"model", "model.old", "model.new"}


@pytest.mark.parametrize(
    ("target", "options", "words"),
    [
        ("model", [], ["is not empty, expected a new folder", "--force"]),
        ("letters", [], ["is not empty, expected a new folder", "--force"]),
        ("letters", ["--force"], ["has no config.json but letter.txt"]),
        ("letters/letter.txt", ["--force"], ["is a file, expected a new folder"]),
        (".", ["--force"], ["is where the run keeps its save"]),
        ("run", ["--force"], ["is where the run keeps its save"]),
        ("run/checkpoint", ["--force"], ["is where the run keeps its save"]),
        ("run/checkpoint/model", [], ["is where the run keeps its save"]),
    ],
)
def test_folder_that_may_not_be_replaced_is_refused_and_kept(
    sluiceway, run, tmp_path, target, options, words
):
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "letter.txt").write_text("dear")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    before = contents(tmp_path)
    outcome = sluiceway("export", run, "--to", tmp_path / target, *options)
    assert_short_error(outcome, 2, *words)
    assert contents(tmp_path) == before


def test_empty_folder_is_filled_and_a_link_to_a_folder_stays_one(sluiceway, finished, tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    outcome = sluiceway("export", finished[0], "--to", tmp_path / "link")
    assert outcome.code == 0, outcome.err
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there" / "model.safetensors").is_file()


# ---- Nothing is lost ----


def test_value_that_does_not_fit_is_named_and_the_old_folder_stays(sluiceway, run, tmp_path):
    to = tmp_path / "model"
    assert sluiceway("export", run, "--to", to).code == 0
    before = contents(to)
    tensors = load_file(run / "checkpoint" / "model.safetensors")
    tensors["model.norm.weight"][3] = -1e5
    put_weights(run, tensors)
    outcome = sluiceway("export", run, "--to", to, "--force", "--dtype", "fp16")
    assert_short_error(outcome, 2, "--dtype fp16: model.norm.weight has 1e+05", "use bf16")
    assert contents(to) == before
    assert {path.name for path in tmp_path.iterdir()} == {"run", "model"}


def test_disk_that_is_full_leaves_the_old_folder_and_no_rest(
    python_m_sluiceway, run, tmp_path, sluiceway
):
    to = tmp_path / "model"
    assert sluiceway("export", run, "--to", to).code == 0
    before = contents(to)

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    outcome = python_m_sluiceway("export", run, "--to", to, "--force", preexec_fn=limit)
    assert_short_error(
        outcome, 1, "cannot be written, File too large; its previous content is untouched"
    )
    assert contents(to) == before
    assert {path.name for path in tmp_path.iterdir()} == {"run", "model"}


@pytest.mark.parametrize(
    ("file", "size", "code", "words"),
    [
        ("model.safetensors", 1000, 1, ["model.safetensors: 1000 bytes, expected"]),
        ("state.json", 10, 1, ["state.json: cannot be read"]),
    ],
)
def test_cut_save_is_not_exported(sluiceway, run, tmp_path, file, size, code, words):
    with (run / "checkpoint" / file).open("r+b") as stream:
        stream.truncate(size)
    outcome = sluiceway("export", run, "--to", tmp_path / "model")
    assert_short_error(outcome, code, *words)
    assert not (tmp_path / "model").exists()


def test_run_without_a_save_says_what_makes_one(sluiceway, run, tmp_path):
    shutil.rmtree(run / "checkpoint")
    shutil.rmtree(run / "checkpoint.old")
    outcome = sluiceway("export", run, "--to", tmp_path / "model")
    assert_short_error(outcome, 2, "has no save", f"sluiceway train {run}/config")
    assert "wait for one" not in outcome.err  # Nobody would make it.
    with (run / "metrics.jsonl").open() as metrics:
        fcntl.flock(metrics, fcntl.LOCK_EX)  # As a process that trains holds it.
        outcome = sluiceway("export", run, "--to", tmp_path / "model")
    assert_short_error(outcome, 2, "has no save", "wait for one", f"sluiceway train {run}/config")


def test_run_whose_store_has_its_steps_is_not_begun_again(
    sluiceway, tiny_model, write_config, tmp_path
):
    config = write_config(
        tiny_model, engine={"kind": "offload", "tier": "disk"}, store={"chunk": "64KiB"},
        train={"steps": 2},
    )  # fmt: skip
    run = tmp_path / "run"
    assert sluiceway("train", config, "--out", run).code == 0
    shutil.rmtree(run / "checkpoint")  # As after a kill before the first save.
    for command in (["export", run, "--to", tmp_path / "model"], ["eval", run]):
        outcome = sluiceway(*command)
        assert_short_error(outcome, 2, "has no save", f"from the last: sluiceway resume {run}")
        assert "train" not in outcome.err
    assert sluiceway("resume", run).code == 0
    assert sluiceway("export", run, "--to", tmp_path / "model").code == 0


def test_save_before_the_last_is_exported_where_it_alone_is_left(sluiceway, run, tmp_path):
    shutil.rmtree(run / "checkpoint.old")
    (run / "checkpoint").rename(run / "checkpoint.old")
    (run / "checkpoint.new").mkdir()
    outcome = sluiceway("export", run, "--to", tmp_path / "model")
    assert outcome.code == 0, outcome.err
    assert (tmp_path / "model" / "model.safetensors").exists()
    assert (run / "checkpoint.old").exists()  # Whoever owns the run puts it right.


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_interrupted_replacement_leaves_what_was_there(tmp_path, error):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "old").write_text("old")

    def write_half():
        with replace_folder(tmp_path / "model") as fresh:
            (fresh / "new").write_text("half")
            raise error

    with pytest.raises((KeyboardInterrupt, OSError)):
        write_half()
    assert contents(tmp_path) == {"model/old": b"old"}


@pytest.mark.parametrize("exchanges", [True, False])
def test_replacement_is_whole_with_and_without_the_exchange_call(tmp_path, monkeypatch, exchanges):
    if not exchanges:
        monkeypatch.setattr(atomic, "_exchange", lambda one, other: False)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "old").write_text("old")
    with replace_folder(tmp_path / "model") as fresh:
        (fresh / "new").write_text("new")
        assert contents(tmp_path / "model") == {"old": b"old"}
    assert contents(tmp_path) == {"model/new": b"new"}


# ---- The hub ----


class Hub:
    """Stands in for huggingface_hub.HfApi."""

    refuses: Exception | None = None
    uploads: ClassVar[list] = []

    def whoami(self):
        return {"name": "me"}

    def create_repo(self, repo_id, private, exist_ok):
        if self.refuses is not None:
            raise self.refuses
        assert private
        assert exist_ok
        return RepoUrl(f"https://huggingface.co/{repo_id}")

    def upload_folder(self, repo_id, folder_path, commit_message):
        Hub.uploads.append((repo_id, sorted(path.name for path in folder_path.iterdir())))


@pytest.fixture
def hub(monkeypatch):
    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    monkeypatch.setattr(Hub, "refuses", None)
    monkeypatch.setattr(Hub, "uploads", [])
    return Hub


def test_push_uploads_the_folder_to_a_private_repository(tmp_path, hub):
    (tmp_path / "config.json").write_text("{}")
    check_account("me/model")
    assert push_folder(tmp_path, "me/model") == "https://huggingface.co/me/model"
    assert hub.uploads == [("me/model", ["config.json"])]


def test_push_that_is_refused_says_where_the_model_is(tmp_path, hub):
    with pytest.raises(InvalidArgument, match="--push: a/b/c cannot be a repository: "):
        check_account("a/b/c")
    hub.refuses = OSError("403 Forbidden\nmore")
    words = f"--push: me/model could not be written, 403 Forbidden; the model is in {tmp_path}"
    with pytest.raises(IoError) as refused:
        push_folder(tmp_path, "me/model")
    assert str(refused.value) == words


def test_push_needs_a_login_before_anything_is_written(sluiceway, run, tmp_path):
    for name, words in (("me/model", "--push: "), ("a/b/c", "a/b/c cannot be a repository: ")):
        refused = sluiceway("export", run, "--to", tmp_path / "model", "--push", name)
        assert_short_error(refused, 2, words)
        assert not (tmp_path / "model").exists()


def test_nobody_logged_in_is_told_how(monkeypatch):
    monkeypatch.setattr(huggingface_hub.HfApi, "whoami", _nobody)
    with pytest.raises(InvalidArgument, match="nobody is logged in on this machine; run hf auth"):
        check_account("me/model")


def _nobody(self):
    raise huggingface_hub.errors.LocalTokenNotFoundError("no token")
