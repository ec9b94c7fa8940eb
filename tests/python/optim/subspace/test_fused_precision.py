"""The core of a fused layer has the right type, also on a simulated CUDA device."""

from __future__ import annotations

import pytest
import torch
from sluiceway.optim.subspace.fused.rehearsed import RehearsedWeight
from sluiceway.optim.subspace.fused.sampled_bias import SampledBias
from torch._subclasses.fake_tensor import FakeTensorMode


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize(
    ("device", "of_sides", "of_core"),
    [
        ("cuda", torch.bfloat16, torch.float32),
        ("cuda", torch.float32, torch.float32),
        ("cpu", torch.bfloat16, torch.bfloat16),
        ("cpu", torch.float32, torch.float32),
    ],
)
def test_a_core_is_f32_but_for_bf16_on_the_host(device, of_sides, of_core, rows, autocast):
    core_of = RehearsedWeight(rows, (5, 3), 0, None, SampledBias())
    widths = (5, 3) if rows else (3, 5)
    with FakeTensorMode(allow_non_fake_inputs=True):
        x, y = (torch.empty(17, width, dtype=of_sides, device=device) for width in widths)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=autocast):
            core = core_of.core(x, y)
    assert (core.dtype, core.device.type, core.shape) == (of_core, device, (5, 3))
