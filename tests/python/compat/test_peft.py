"""PEFT's adapters, trained by us over a frozen base, beside torch's AdamW."""

from __future__ import annotations

import pytest
import sluiceway as sw
import torch
from agreement import check_row, disagreement, language_loss, loop
from peft import LoraConfig, PeftModel, get_peft_model
from small_llama import small_llama
from small_models import same_bits

ROW = "PEFT (LoRA, DoRA), adapters named by `target=`"
# Adapters are small: they have to be named, and only a slower link shows whether forwards wait.
TRAINED = {"target": r"lora_[AB]\.", "link": sw.Link(d2h_gbps=5e-3, h2d_gbps=5e-3)}


def with_adapters(**changes):
    model = small_llama()
    return get_peft_model(model, LoraConfig(r=8, target_modules="all-linear", **changes))


KINDS = {
    "lora": {"lora_dropout": 0.1},
    "rslora": {"use_rslora": True},
    "dora": {"use_dora": True},
    "biases": {"bias": "lora_only"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_adapters_over_a_frozen_base(record_property, kind):
    error = disagreement(lambda: with_adapters(**KINDS[kind]), loop(language_loss), **TRAINED)
    check_row(record_property, ROW, error)


def test_adapters_that_are_switched_off_and_merged_are_applied_first(record_property):
    """Merging reads the adapters outside of their modules."""
    merged = []

    def drive(model, optimizer):
        loop(language_loss)(model, optimizer)
        with torch.no_grad(), model.disable_adapter():
            merged.append(language_loss(model, 90))
        model.merge_adapter()
        with torch.no_grad():
            merged.append(language_loss(model.eval(), 90))
        model.unmerge_adapter()

    error = disagreement(with_adapters, drive, **TRAINED)
    base, ours, same_base, theirs = merged
    assert base == same_base
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-6)
    assert ours.item() != pytest.approx(base.item(), rel=1e-4)
    check_row(record_property, ROW, error)


def test_saved_adapters_are_those_that_were_trained(tmp_path):
    def drive(model, optimizer):
        loop(language_loss)(model, optimizer)
        trained.append(model)
        model.save_pretrained(tmp_path / str(len(trained)))  # Of ours while updates are under way.

    trained = []
    disagreement(with_adapters, drive, **TRAINED)
    loaded = PeftModel.from_pretrained(small_llama(), tmp_path / "1")
    assert same_bits(loaded, trained[0])
