"""transformers' Trainer makes our optimizer itself, and trains as it does with torch's AdamW."""

from __future__ import annotations

import pytest
import sluiceway as sw
import torch
from small_llama import EMBEDDINGS, small_llama, tokens
from small_models import same_bits, update_error
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments
from twins import LR

SLOW = sw.Link(d2h_gbps=0.05, h2d_gbps=0.05)
EXACT = {"codec": "identity", "wire": "fp32", "link": SLOW}


class Rows(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        row = tokens(index, 1)[0]
        return {"input_ids": row, "labels": row.clone()}


def trained(model, folder, door=None, resume=None, data=None, **changes):
    """Let Trainer train 8 steps; without a door with its own AdamW."""
    arguments = {
        "output_dir": str(folder), "max_steps": 8, "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2, "max_grad_norm": 0.4, "learning_rate": LR,
        "weight_decay": 0.3, "adam_beta2": 0.95, "adam_epsilon": 1e-6,
        "lr_scheduler_type": "cosine", "logging_steps": 1, "save_strategy": "no", "report_to": [],
        "use_cpu": True, "disable_tqdm": True, "seed": 0, "optim": "adamw_torch", **changes,
    }  # fmt: skip
    trainer = Trainer(
        model=model,
        args=TrainingArguments(**arguments),
        train_dataset=data or Rows(),
        optimizer_cls_and_kwargs=door,
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def ours(folder, resume=None, changes=None, **options):
    model = small_llama()
    trainer = trained(model, folder, sw.for_trainer(model, **options), resume, **(changes or {}))
    return model, trainer, trainer.optimizer.optimizer  # Accelerate wraps it.


def test_it_trains_as_torchs_adamw_with_groups_with_and_without_decay(tmp_path):
    model, trainer, opt = ours(tmp_path, **EXACT)
    theirs = small_llama()
    native = trained(theirs, tmp_path)
    with opt:
        assert isinstance(opt, sw.SubspaceAdamW)
        assert [group["weight_decay"] for group in opt.param_groups] == [0.3, 0.0]
        assert [len(group["params"]) for group in opt.param_groups] == [15, 5]
        assert opt.frozen == []
        assert opt.param_groups[0]["betas"] == (0.9, 0.95)
        assert opt.param_groups[0]["eps"] == 1e-6
    assert update_error(small_llama(), model, theirs) <= 1e-5
    for mine, other in zip(trainer.state.log_history, native.state.log_history, strict=True):
        if "loss" in other:
            assert mine["loss"] == pytest.approx(other["loss"], abs=1e-4)
            assert mine["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-4)
            assert mine["learning_rate"] == other["learning_rate"]


def test_embeddings_are_frozen_where_it_is_said(tmp_path):
    model, _, opt = ours(tmp_path, embeddings="frozen", **EXACT)
    assert [name for name, _ in opt.frozen] == [EMBEDDINGS]
    theirs = small_llama()
    theirs.get_parameter(EMBEDDINGS).requires_grad_(False)
    trained(theirs, tmp_path)
    opt.close()
    assert update_error(small_llama(), model, theirs) <= 1e-5


def test_what_is_said_at_the_door_goes_before_trainers_arguments(tmp_path):
    _, _, opt = ours(
        tmp_path, lr=3e-4, betas=(0.8, 0.9), eps=1e-7, changes={"lr_scheduler_type": "constant"}
    )
    with opt:
        group = opt.param_groups[1]
        assert (group["lr"], group["betas"], group["eps"]) == (3e-4, (0.8, 0.9), 1e-7)


@pytest.mark.parametrize(
    ("modules", "expected"),
    [
        (["q_proj"], "self_attn.q_proj"),
        ([r".*layers\.1\.self_attn\.q_proj"], "1.self_attn.q_proj"),
        (r".*\.q_proj", "self_attn.q_proj"),
        ("all-linear", ""),
        ("all_linear", ""),
    ],
)
@pytest.mark.parametrize("where", ["door", "arguments"])
def test_target_modules_are_those_of_trainers_own_optimizers(tmp_path, modules, expected, where):
    told = {"optim_target_modules": modules}
    options = told if where == "door" else {"changes": told}
    _, _, opt = ours(tmp_path, **options, **EXACT)
    with opt:
        names = [w.name for w in opt.weights if not w.is_embedding]
        assert all(expected in name for name in names)
        assert len(names) == {"": 14, "1.self_attn.q_proj": 1}.get(expected, 2)


def test_it_resumes_from_trainers_checkpoint_bit_for_bit(tmp_path):
    saving = {"save_strategy": "steps", "save_steps": 4}
    whole, _, opt = ours(tmp_path, changes=saving)
    opt.close()
    resumed, _, opt = ours(tmp_path, resume=str(tmp_path / "checkpoint-4"), changes=saving)
    opt.close()
    assert same_bits(whole, resumed)
    assert not same_bits(whole, small_llama())


@pytest.mark.parametrize("tier", ["host", "disk"])
def test_offload_has_trainers_rate_and_groups_and_the_losses_of_torchs_adamw(tmp_path, tier):
    path = {"path": tmp_path / "states"} if tier == "disk" else {}
    model, trainer, opt = ours(
        tmp_path, kind="offload", tier=tier, gradients="fp32", accumulate=2, **path
    )
    theirs = small_llama()
    native = trained(theirs, tmp_path)
    with opt:
        assert isinstance(opt, sw.OffloadAdamW)
        assert [group["weight_decay"] for group in opt.param_groups] == [0.3, 0.0]
        assert opt.param_groups[0]["betas"] == (0.9, 0.95)
        assert opt.param_groups[0]["eps"] == 1e-6
        opt.synchronize()
        assert update_error(small_llama(), model, theirs) <= 1e-5
    for mine, other in zip(trainer.state.log_history, native.state.log_history, strict=True):
        if "loss" in other:
            assert mine["loss"] == pytest.approx(other["loss"], abs=1e-4)
            assert mine["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-4)


def test_offload_resumes_from_trainers_checkpoint_bit_for_bit(tmp_path):
    saving, door = {"save_strategy": "steps", "save_steps": 4}, {"kind": "offload", "tier": "host"}
    whole, _, opt = ours(tmp_path, changes=saving, **door)
    opt.close()
    resumed, _, opt = ours(tmp_path, resume=str(tmp_path / "checkpoint-4"), changes=saving, **door)
    opt.close()
    assert same_bits(whole, resumed)


# ---- What is refused ----


def test_a_model_that_is_none(tmp_path):
    with pytest.raises(sw.InvalidArgument, match="for_trainer: model is a generator, expected"):
        sw.for_trainer(small_llama().parameters())


def test_groups_of_ones_own():
    with pytest.raises(sw.InvalidArgument, match="param_groups are given, but Trainer"):
        sw.for_trainer(small_llama(), param_groups=[])


def test_another_model_than_trainers(tmp_path):
    with pytest.raises(sw.InvalidArgument, match="the model given to for_trainer does not have"):
        trained(small_llama(), tmp_path, sw.for_trainer(small_llama()))


def test_modules_that_nothing_matches(tmp_path):
    with pytest.raises(sw.InvalidArgument, match=r"\['nose'\], which matches no linear layer"):
        ours(tmp_path, optim_target_modules=["nose"])


def test_two_targets(tmp_path):
    with pytest.raises(sw.InvalidArgument, match="target and optim_target_modules"):
        ours(tmp_path, target="q_proj", changes={"optim_target_modules": ["q_proj"]})


def test_an_option_that_there_is_not(tmp_path):
    with pytest.raises(TypeError, match="'rato', did you mean 'ratio'"):
        ours(tmp_path, rato=0.5)


def test_without_a_trainer_a_learning_rate_is_asked_for():
    model = small_llama()
    make, options = sw.for_trainer(model)
    groups = [{"params": list(model.parameters()), "weight_decay": 0.0}]
    with pytest.raises(sw.InvalidArgument, match="no learning rate"):
        make(groups, **options)
    with make(groups, lr=LR, **options) as opt:
        model(input_ids=tokens(0), labels=tokens(0)).loss.backward()
        opt.step()
        assert torch.isfinite(model.lm_head.weight).all()


def test_kinds_that_trainer_cannot_make_are_refused(tmp_path):
    with pytest.raises(sw.InvalidArgument, match="kind is 'zoo', expected subspace, offload, zo"):
        sw.for_trainer(small_llama(), kind="zoo")
    with pytest.raises(sw.InvalidArgument, match=r"optimizers=\(sw\.OffloadAdamW\("):
        sw.for_trainer(small_llama(), kind="offload", param_groups=[])
    with pytest.raises(sw.InvalidArgument, match="kind offload trains every parameter"):
        ours(tmp_path, kind="offload", optim_target_modules="all-linear")


# ---- Forward passes only ----


class OneRow(Rows):
    """Every batch is the same, so that a plain loop needs no sampler."""

    def __getitem__(self, index):
        return super().__getitem__(0)


@pytest.mark.parametrize("micro_batches", [1, 3])
def test_zo_trains_as_in_a_plain_loop(tmp_path, micro_batches):
    options = {"lr": 1e-3, "eps": 1e-2, "seed": 5}
    changes = {"gradient_accumulation_steps": micro_batches, "lr_scheduler_type": "linear"}
    model, trainer, opt = ours(
        tmp_path, kind="zo", changes={**changes, "data": OneRow()}, **options
    )
    assert isinstance(opt, sw.ZoSgd)
    assert [group["weight_decay"] for group in opt.param_groups] == [0.3, 0.0]
    theirs, (batch,) = small_llama(), [torch.stack([OneRow()[0]["input_ids"]] * 2)]
    matrices = [p for p in theirs.parameters() if p.dim() > 1]
    vectors = [p for p in theirs.parameters() if p.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.3}, {"params": vectors, "weight_decay": 0.0}]
    losses, rates = [], []
    batches = [{"input_ids": batch, "labels": batch}] * micro_batches
    # transformers 5.0 counts the first label of a sequence, too.
    _, items = trainer.get_batch_samples(iter(batches), micro_batches, torch.device("cpu"))
    with sw.ZoSgd(theirs, param_groups=groups, **options) as plain:
        for step in range(8):
            for group in plain.param_groups:
                group["lr"] = options["lr"] * (1 - step / 8)
            rates.append(plain.param_groups[0]["lr"])
            closure = lambda: (  # noqa: E731
                micro_batches * theirs(**batches[0], num_items_in_batch=items).loss
            )
            losses.append(plain.step([closure] * micro_batches).item())
    logged = [line for line in trainer.state.log_history if "loss" in line]
    assert [line["loss"] for line in logged] == pytest.approx(losses, rel=1e-3)
    assert [line["learning_rate"] for line in logged] == pytest.approx(rates)
    assert losses[-1] < losses[0]
    assert update_error(small_llama(), model, theirs) <= 2e-2  # Sums of losses round otherwise.
    opt.close()


def test_zo_goes_on_from_trainers_checkpoint_bit_for_bit(tmp_path):
    saving = {"changes": {"save_strategy": "steps", "save_steps": 4}, "kind": "zo", "lr": 1e-3}
    whole, _, opt = ours(tmp_path, **saving)
    opt.close()
    resumed, _, opt = ours(tmp_path, resume=str(tmp_path / "checkpoint-4"), **saving)
    opt.close()
    assert same_bits(whole, resumed)
    assert not same_bits(whole, small_llama())


@pytest.mark.parametrize(
    ("changes", "options", "words"),
    [
        ({}, {"tier": "host"}, "tier is 'host', but Trainer moves the whole model"),
        ({"optim_target_modules": "all-linear"}, {}, "kind zo trains every parameter"),
    ],
)
def test_zo_is_refused_where_trainer_cannot_have_it(tmp_path, changes, options, words):
    with pytest.raises(sw.InvalidArgument, match=words):
        ours(tmp_path, kind="zo", changes=changes, **options)
    make, options = sw.for_trainer(small_llama(), kind="zo")
    with pytest.raises(sw.InvalidArgument, match="there is no learning rate"):
        make([{"params": list(options["of"].parameters())}], **options)
    with pytest.raises(sw.InvalidArgument, match="the caller is not a Trainer"):
        make([{"params": list(options["of"].parameters())}], lr=1e-3, **options)
