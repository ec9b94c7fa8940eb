"""`device.flush_denormals`: which threads it reaches, and that a process gets its own back."""

from __future__ import annotations

import io

import pytest
import sluiceway as sw
import torch
from sluiceway import _core
from sluiceway.base.interrupt import Interrupt
from sluiceway.config.file import load_config
from sluiceway.engines.gradient import GradientEngine
from sluiceway.machine.placement import choose_placement, denormals
from sluiceway.run.run import Run
from sluiceway.run.run_folder import RunFolder
from torch import nn

TINY = 1e-39  # Below 2^-126, the smallest normal number.


def denormal_products() -> int:
    """Elements of a product that are not 0, over all threads of torch."""
    return int(torch.count_nonzero(torch.full((1 << 20,), TINY) * 0.5))


@pytest.fixture
def two_threads():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    before = _core.flush_denormals(False)
    assert denormal_products() == 1 << 20  # The pool exists, and keeps them.
    yield
    _core.flush_denormals(before)
    torch.set_num_threads(threads)


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("asked", [False, True])
def test_all_threads_do_as_the_config_says_and_then_as_before(
    two_threads, write_config, tiny_model, before, asked
):
    config = load_config(write_config(tiny_model, device={"flush_denormals": asked}))
    _core.flush_denormals(before)
    with denormals(config, choose_placement(config)):
        assert denormal_products() == (0 if asked else 1 << 20)
    assert denormal_products() == (0 if before else 1 << 20)


@pytest.mark.parametrize("settings", [[], ["device.flush_denormals=false"]], ids=["default", "off"])
@pytest.mark.parametrize("kind", ["native", "subspace"])
def test_a_run_and_its_comparison_flush_unless_told_not_to(
    two_threads, write_config, small_model, tmp_path, monkeypatch, settings, kind
):
    found = []
    update = GradientEngine.update

    def watched(self, *arguments):
        found.append(denormal_products())
        return update(self, *arguments)

    monkeypatch.setattr(GradientEngine, "update", watched)
    path = write_config(
        small_model, engine={"kind": kind}, train={"steps": 2}, device={"threads": 2},
        compare="native" if kind == "subspace" else None,
    )  # fmt: skip
    config = load_config(path, settings)
    folder = RunFolder.create(tmp_path / "out", config)
    with Interrupt() as interrupt:
        Run(config, folder, interrupt, io.StringIO()).train()
    folder.close()
    assert set(found) == ({1 << 20} if settings else {0})
    assert len(found) == (4 if kind == "subspace" else 2)
    assert denormal_products() == 1 << 20


@pytest.mark.parametrize("made", [False, True])
def test_lanes_keep_the_setting_that_the_optimizer_was_made_with(made):
    torch.manual_seed(0)
    model = nn.Linear(256, 256, bias=False)
    start = model.weight.detach().clone()
    before = _core.flush_denormals(made)
    try:
        opt = sw.SubspaceAdamW(
            model, lr=1.0, eps=1e-37, weight_decay=0.0, codec="identity", wire="fp32"
        )
        _core.flush_denormals(False)  # What is gathered here is not flushed.
        with opt:
            (model.weight * torch.full_like(model.weight, TINY)).sum().backward()
            opt.step()
            opt.synchronize()
    finally:
        _core.flush_denormals(before)
    # AdamW's first direction of 1e-39, with a second moment of 0, is 1e-39 / 1e-37.
    moved = (model.weight.detach() - start).abs().max().item()
    assert moved == pytest.approx(0.0 if made else 0.01, rel=1e-3)
