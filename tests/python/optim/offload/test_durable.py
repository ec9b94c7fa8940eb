"""A Trainer whose process is killed goes on from its last step, to the bits of one that was not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import sluiceway as sw
import torch
from conftest import REPOSITORY
from offload_models import CHUNK
from small_llama import small_llama
from transformers import Trainer, TrainingArguments

STEPS = 12
# What a user writes; the rest says what is trained.
SCRIPT = """
import sys
import sluiceway as sw, torch
from small_llama import small_llama
from transformers import Trainer, TrainingArguments

folder, changes = sys.argv[1], eval(sys.argv[2])
by_trainer = changes.pop("by_trainer", False)
torch.manual_seed(0)
model = small_llama(attention_dropout=0.1)
rows = torch.randint(0, 64, (40, 16), generator=torch.Generator().manual_seed(1))
data = [{"input_ids": row, "labels": row} for row in rows]
args = TrainingArguments(
    output_dir=folder + "/out", max_steps=12, per_device_train_batch_size=2, logging_steps=1,
    gradient_accumulation_steps=2, max_grad_norm=0.5, learning_rate=3e-3, warmup_steps=3,
    lr_scheduler_type="cosine", save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True,
    **changes,
)
evaluates = "eval_strategy" in changes
store = {"tier": "disk", "path": folder + "/store", "chunk": CHUNK}
if by_trainer:
    durable = sw.Durable()
    maker = {"optimizer_cls_and_kwargs": sw.for_trainer(model, kind="offload", **store)}
else:
    opt = sw.OffloadAdamW(model, lr=3e-3, **store)
    durable, maker = sw.Durable(opt), {"optimizers": (opt, None)}
trainer = Trainer(
    model, args, train_dataset=data, eval_dataset=data[:4] if evaluates else None,
    callbacks=[durable], **maker,
)
last = durable.last_step(trainer)
assert durable.last_step(trainer) == last
trainer.train(resume_from_checkpoint=last)
trainer.optimizer.optimizer.close()  # Accelerate wraps it.
torch.save([model.state_dict(), trainer.state.log_history], folder + "/end.pt")
""".replace("CHUNK", str(CHUNK))


def start(folder, changes):
    paths = [str(REPOSITORY / "tests" / "python"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(folder), repr(changes)],
        stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )  # fmt: skip


def run(folder, changes):
    process = start(folder, changes)
    _, said = process.communicate()
    assert process.returncode == 0, said
    return said, *torch.load(folder / "end.pt")


def logged(folder):
    path = folder / "out" / "log_history.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def kill(folder, changes, entries):
    """Kill a run when its log has so many entries."""
    process = start(folder, changes)
    while process.poll() is None and logged(folder) < entries:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate()


def without_times(log):
    return [
        {
            name: value
            for name, value in entry.items()
            if "runtime" not in name and "second" not in name
        }
        for entry in log
        if "train_runtime" not in entry
    ]


@pytest.mark.parametrize(
    ("changes", "kills"),  # At so many entries of the log.
    [
        (
            {
                "bf16": True,
                "gradient_checkpointing": True,
                "eval_strategy": "steps",
                "eval_steps": 2,
            },
            (3, 8),
        ),
        ({"dataloader_num_workers": 1, "seed": 5, "by_trainer": True}, (6,)),
    ],
    ids=["bf16-checkpointing-evaluations", "workers-by-trainer"],
)
def test_a_killed_run_goes_on_bit_for_bit(changes, kills, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    killed.mkdir()
    said, expected, log = run(whole, changes)
    assert "goes on" not in said
    for entries in kills:
        kill(killed, changes, entries)
    said, found, again = run(killed, changes)
    assert "goes on from step" in said
    assert "missing keys" not in said
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert without_times(again) == without_times(log)
    assert [entry["step"] for entry in log if "loss" in entry] == list(range(1, STEPS + 1))
    lines = (killed / "out" / "log_history.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == again
    said, found, _ = run(whole, changes)  # One that has ended trains no further.
    assert f"goes on from step {STEPS}" in said
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def made(model, folder, **options):
    return sw.OffloadAdamW(model, chunk=CHUNK, **{"tier": "disk", "path": folder, **options})


def trainer_of(model, opt, folder, *callbacks):
    args = TrainingArguments(output_dir=str(folder), use_cpu=True, report_to=[])
    data = [{"input_ids": torch.zeros(4, dtype=torch.long)}]
    return Trainer(
        model, args, train_dataset=data, optimizers=(opt, None), callbacks=list(callbacks)
    )


def test_what_cannot_go_on_is_refused(tmp_path):
    model = small_llama()
    with (
        sw.OffloadAdamW(model, chunk=CHUNK) as opt,
        pytest.raises(sw.InvalidArgument, match="tier='disk'"),
    ):
        sw.Durable(opt)
    with pytest.raises(sw.InvalidArgument, match="expected OffloadAdamW"):
        sw.Durable(torch.optim.SGD(model.parameters()))
    with made(model, tmp_path / "a") as opt:
        durable = sw.Durable(opt)
        with pytest.raises(sw.InvalidArgument, match=r"callbacks=\[durable\]"):
            durable.last_step(trainer_of(model, opt, tmp_path))
        assert durable.last_step(trainer_of(model, opt, tmp_path, durable)) is None
        trainer = trainer_of(model, opt, tmp_path, sw.Durable(opt))
        with pytest.raises(sw.InvalidArgument, match=r"durable\.last_step\(trainer\)"):
            trainer.train()


def test_each_trainer_has_its_own_optimizer_and_is_continued_once(tmp_path):
    durable = sw.Durable()
    for name in ("first", "second"):
        model = small_llama()
        door = sw.for_trainer(model, "offload", tier="disk", path=tmp_path / name, chunk=CHUNK)
        args = TrainingArguments(
            str(tmp_path / f"{name}-out"), use_cpu=True, report_to=[], max_steps=2,
            save_strategy="no", disable_tqdm=True,
        )  # fmt: skip
        ids = torch.zeros(4, dtype=torch.long)
        trainer = Trainer(model, args, train_dataset=[{"input_ids": ids, "labels": ids}] * 8,
                          optimizer_cls_and_kwargs=door, callbacks=[durable])  # fmt: skip
        trainer.train(resume_from_checkpoint=durable.last_step(trainer))
        assert trainer.state.global_step == 2
        with pytest.raises(sw.InvalidArgument, match="this trainer has trained already"):
            durable.last_step(trainer)
        trainer.optimizer.optimizer.close()


def test_optimizer_that_trainer_makes_must_commit_each_step(tmp_path):
    durable = sw.Durable()
    trainer = trainer_of(small_llama(), None, tmp_path, durable)
    with pytest.raises(sw.InvalidArgument, match="expected OffloadAdamW"):
        durable.last_step(trainer)


def test_a_store_of_another_loop_is_refused(tmp_path):
    model = small_llama()
    with made(model, tmp_path / "s") as opt:
        ids = torch.zeros(1, 4, dtype=torch.long)
        model(input_ids=ids, labels=ids).loss.backward()
        opt.step()
    with made(model, tmp_path / "s") as opt:
        durable = sw.Durable(opt)
        trainer = trainer_of(model, opt, tmp_path, durable)
        with pytest.raises(sw.InvalidArgument, match="was not made by a Trainer with this"):
            durable.last_step(trainer)
