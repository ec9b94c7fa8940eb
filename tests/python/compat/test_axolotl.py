"""Axolotl's plugin chooses the optimizer of a real Trainer.

Axolotl pins a torch and a transformers of its own, so its base class is a stand-in here.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType, SimpleNamespace

import pytest
import sluiceway as sw
from small_llama import small_llama, tokens
from small_models import update_error
from transformers import Trainer, TrainingArguments


@pytest.fixture
def plugin(monkeypatch):
    """Import the plugin beside a stand-in for Axolotl."""
    names = ("axolotl", "axolotl.integrations", "axolotl.integrations.base")
    for name in names:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules[names[-1]].BasePlugin = type("BasePlugin", (), {})
    monkeypatch.delitem(sys.modules, "sluiceway.integrations.axolotl", raising=False)
    module = importlib.import_module("sluiceway.integrations.axolotl")
    yield module.SluicewayPlugin()
    del sys.modules["sluiceway.integrations.axolotl"]


def trainer_of(model, folder):
    rows = [{"input_ids": tokens(k, 1)[0], "labels": tokens(k, 1)[0]} for k in range(16)]
    arguments = TrainingArguments(
        output_dir=str(folder), max_steps=4, per_device_train_batch_size=2, learning_rate=1e-3,
        weight_decay=0.1, adam_beta2=0.95, save_strategy="no", report_to=[], use_cpu=True,
        disable_tqdm=True, seed=0, optim="adamw_torch",
    )  # fmt: skip
    return Trainer(model=model, args=arguments, train_dataset=rows)


def test_the_plugin_trains_with_what_the_config_says(plugin, tmp_path):
    ours, theirs = small_llama(), small_llama()
    trainer = trainer_of(ours, tmp_path)
    options = {"kind": "offload", "tier": "host", "gradients": "fp32"}
    plugin.post_trainer_create(SimpleNamespace(sluiceway=options), trainer)
    trainer.train()
    assert isinstance(trainer.optimizer.optimizer, sw.OffloadAdamW)
    trainer.optimizer.optimizer.close()
    trainer_of(theirs, tmp_path).train()
    assert update_error(small_llama(), ours, theirs) <= 1e-5


def test_without_options_it_is_the_default(plugin, tmp_path):
    trainer = trainer_of(small_llama(), tmp_path)
    plugin.post_trainer_create(SimpleNamespace(sluiceway=None), trainer)
    trainer.train()
    assert isinstance(trainer.optimizer.optimizer, sw.SubspaceAdamW)
    with pytest.raises(sw.InvalidArgument, match="has an optimizer already"):
        plugin.post_trainer_create(SimpleNamespace(sluiceway=None), trainer)
    trainer.optimizer.optimizer.close()


def test_the_key_of_the_config_is_described_by_a_class_that_axolotl_finds(plugin):
    module, _, name = plugin.get_input_args().rpartition(".")
    described = getattr(importlib.import_module(module), name)
    assert described(sluiceway={"kind": "zo"}).sluiceway == {"kind": "zo"}
    assert described().sluiceway is None
