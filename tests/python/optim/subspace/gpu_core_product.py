"""The product of a fused layer's two sides, on a card: f32 whatever the sides are."""

from types import SimpleNamespace

import pytest
import torch
from sluiceway.optim.subspace.fused.layer_core import LayerCore


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_core_is_what_f32_sums_give(device, dtype, autocast):
    torch.manual_seed(7)
    x = torch.randn(1237, 96).to(dtype).to(device)
    y = torch.randn(1237, 56).to(dtype).to(device)
    exact = (y.double().t() @ x.double()).cpu()
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=autocast):
        core = LayerCore.core(SimpleNamespace(inputs_are_rows=False), x, y)
    # The host device has no product of bf16 that stays f32.
    close = 4e-3 if dtype == torch.bfloat16 and device.type == "cpu" else 1e-5
    assert core.dtype == (torch.bfloat16 if close == 4e-3 else torch.float32)
    assert float((core.cpu().double() - exact).norm() / exact.norm()) <= close
