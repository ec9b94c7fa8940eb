"""Fused layers under transformers' Trainer, beside hooks with the same projectors."""

from __future__ import annotations

import pytest
import sluiceway as sw
from small_llama import small_llama
from small_models import update_error
from test_trainer import CASES, run
from torch import nn
from twins import LR


def model_of_one_layer() -> nn.Module:
    return small_llama(num_hidden_layers=1)


def trained(folder, fused, **changes) -> nn.Module:
    model = model_of_one_layer()
    options = {"codec": "block_random", "ratio": 0.5, "residual": "none", "wire": "fp32"}
    with sw.SubspaceAdamW(model, lr=LR, fused=fused, share_inputs=True, **options) as opt:
        if fused:
            assert len(opt.fused_linears.names) == 7
        run(folder, model, opt, **changes)
    return model


@pytest.mark.parametrize("case", CASES)
def test_trainer_agrees_with_hooks(tmp_path, case):
    changes = CASES[case]
    ours = trained(tmp_path / "fused", True, **changes)
    theirs = trained(tmp_path / "hooks", False, **changes)
    assert update_error(model_of_one_layer(), ours, theirs) < 1e-3
