"""Fitting projectors takes no more of torch's memory than plans count."""

from __future__ import annotations

import pytest
import sluiceway as sw
import torch
from sluiceway import _core
from sluiceway.machine.device_ops import HostOps
from sluiceway.optim.subspace.arguments import weight_keywords
from torch import nn

FITS = [("svd", 0.5), ("svd", 0.1), ("sparse_learned", 0.2), ("sparse_learned", 0.8)]
SHAPES = [(272, 272), (768, 96), (64, 1024), (1024, 64), (16, 4096)]


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(("codec", "ratio"), FITS)
def test_a_fit_holds_no_more_than_its_plan(codec, ratio, dtype):
    ops, torch_dtype = HostOps(), {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
    for m, n in SHAPES:
        layer = nn.Linear(n, m, bias=False).to(torch_dtype)
        policy = sw.Refresh(every=1000, learn_steps=2)
        arguments = {"codec": codec, "ratio": ratio, "residual": "none", "refresh": policy}
        with sw.SubspaceAdamW(layer, **arguments) as opt:
            keywords = weight_keywords(opt.options, seed=0)
            planned = _core.weight_plan(m, n, dtype, False, True, **keywords)["fit_bytes"]
            g = torch.randn(m, n).to(torch_dtype)
            opt.engine.begin_calibration()
            ops.reset_peak()
            before = ops.allocated_bytes()
            opt.engine.add_gradient(0, g, g, opt.device.compute())
            held = ops.peak_bytes() - before
            opt.engine.end_calibration()
        assert 4 * m * n < held <= planned, (m, n)
        assert planned < 2 * held + 2**16, (m, n)  # Not any number would do.
