"""Suffixes of a method's name in experiments/regimes take effect; Perl is cut by file."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from experiments.fidelity import tasks
from experiments.fidelity.methods import WEIGHT_DECAY
from experiments.regimes.fine_tunes import Setting, run_of
from experiments.regimes.leads import is_lead
from experiments.regimes.questions import QUESTIONS
from experiments.regimes.ways import (
    average_steps,
    groups_of,
    prepared,
    round_steps,
    rounded_at_random,
    weight_factors,
    without_added,
)


def model_of() -> nn.Module:
    return nn.Sequential(nn.Linear(45, 70), nn.LayerNorm(70), nn.Linear(70, 33, bias=False))


def steps_of(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor) -> None:
    for x in inputs:
        model(x.to(model[0].weight.dtype)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_ways_that_say_so_are_refreshed():
    """A codec whose projectors are drawn and kept would give the same row twice."""
    refreshed = {
        way
        for question in QUESTIONS
        for way in question.ways
        if way.refresh != "never" and not is_lead(way.method)
    }
    assert refreshed
    for way in refreshed:
        model, counts = model_of(), []
        run = replace(run_of(Setting(), way), refresh="1", lr=1e-3, seed=0)
        with prepared(model, run) as t:
            for x in torch.randn(3, 16, 45):
                model(x).square().mean().backward()
                t.optimizer.step()
                t.optimizer.zero_grad()
                t.optimizer.synchronize()
                counts.append(t.optimizer.stats()["subspace"]["refreshed"])
        assert sum(counts[1:]) > 0, way.name


def test_names_are_taken_apart():
    assert without_added("svd+residual+b1=0+factored_v") == ("svd+residual+factored_v", ("b1=0",))
    assert without_added("adafactor+momentum") == ("adafactor", ("momentum",))


def test_factors_are_the_root_mean_squares_over_their_mean():
    matrices = [nn.Parameter(torch.randn(*shape) * size) for shape, size in
                (((7, 31), 0.5), ((13, 5), 2.0))]  # fmt: skip
    rms = [float((p.detach().numpy() ** 2).mean() ** 0.5) for p in matrices]
    mean = (rms[0] * 217 + rms[1] * 65) / 282
    assert weight_factors(matrices) == pytest.approx([rms[0] / mean, rms[1] / mean])


def test_a_weight_with_a_factor_takes_a_larger_step_and_decays_as_the_others():
    model = model_of()
    groups = groups_of(model, ("kw", "b1=0"))
    assert [len(group["params"]) for group in groups] == [1, 1, 3]
    for group in groups[:2]:
        assert group["betas"] == (0.0, 0.999)
        assert group["lr_factor"] * group["weight_decay"] == pytest.approx(WEIGHT_DECAY)
    assert "betas" not in groups[2]
    assert groups_of(model, ()) is None


def test_more_decay_is_of_all_and_a_rate_of_norms_leaves_their_decay():
    matrices, norms = groups_of(model_of(), ("decay8",))
    assert matrices["weight_decay"] == norms["weight_decay"] == 8 * WEIGHT_DECAY
    *matrices, norms = groups_of(model_of(), ("kw", "norms8"))
    assert all("params" in one and one["lr_factor"] != 8 for one in matrices)
    assert norms["lr_factor"] * norms["weight_decay"] == pytest.approx(WEIGHT_DECAY)
    assert groups_of(model_of(), ("kw", "norms4"))[-1]["lr_factor"] == 4
    *matrices, norms = groups_of(model_of(), ("kw", "decay8", "norms8"))
    for one in (*matrices, norms):
        assert one["lr_factor"] * one["weight_decay"] == pytest.approx(8 * WEIGHT_DECAY)


def test_momentum_of_nothing_changes_nothing_and_else_averages_the_steps():
    inputs = torch.randn(6, 16, 45)
    model = model_of()
    models = [copy.deepcopy(model) for _ in range(3)]
    for one, beta in zip(models, (None, 0.0, 0.9), strict=True):
        optimizer = torch.optim.Adafactor(one.parameters(), lr=1e-2)
        if beta is not None:
            average_steps(optimizer, list(one.parameters()), beta)
        steps_of(one, optimizer, inputs[:1])
    start, plain, nothing, averaged = (m[0].weight for m in (model, *models))
    torch.testing.assert_close(nothing, plain, atol=1e-7, rtol=0)
    torch.testing.assert_close(averaged - start, 0.1 * (plain - start), atol=1e-7, rtol=0)


def test_weights_of_16_bits_step_in_f32_and_are_bf16_between_steps():
    inputs = torch.randn(4, 16, 45)
    model = model_of().bfloat16()
    begin = model[0].weight.float().clone()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    round_steps(optimizer, list(model.parameters()), seed=3)
    steps_of(model, optimizer, inputs)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert {s["exp_avg"].dtype for s in optimizer.state.values()} == {torch.float32}
    moved = (model[0].weight.float() - begin).ne(0).float().mean()
    assert 0 < moved < 1  # Steps far below half an ulp move some weights, by an ulp.


def test_rounding_gives_a_neighbour_and_is_right_on_average():
    x = torch.randn(257).repeat(4000, 1)
    rounded = rounded_at_random(
        x, torch.Generator().manual_seed(int(torch.randint(99, ())))
    ).float()
    ulp = x[0].abs() * 2**-7
    assert ((rounded - x).abs() <= ulp).all()
    assert ((rounded.mean(0) - x[0]).abs() <= 6 * ulp / 4000**0.5).all()
    exact = torch.randn(99).bfloat16()
    assert torch.equal(rounded_at_random(exact.float(), torch.Generator()), exact)


def test_perl_is_split_by_file_in_the_same_way_every_time(tmp_path, monkeypatch):
    for number in range(40):
        file = tmp_path / f"Folder{number % 7}" / f"M{number}.pm"
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"package M{number};\n" + f"my $x{number} = {number};\n" * 20)
    (tmp_path / "unicore").mkdir()
    (tmp_path / "unicore" / "Name.pm").write_text("table\n")
    monkeypatch.setattr(tasks, "PERL", tmp_path)
    files = tasks.perl_modules()
    parts = tasks.parted(tmp_path, files, (1000, 1000, 4000))
    assert parts == tasks.parted(tmp_path, reversed(files), (1000, 1000, 4000))
    firsts = [text.splitlines()[0] for texts in parts for text in texts]
    assert len(firsts) == len(set(firsts)) <= 40
    assert "table" not in firsts
    for texts, size in zip(parts, (1000, 1000, 4000), strict=True):
        assert size <= sum(map(len, texts)) < size + 500


def test_without_perl_the_error_names_the_package(tmp_path, monkeypatch):
    monkeypatch.setattr(tasks, "PERL", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"apt-get install perl-modules-5\.36"):
        tasks.perl_modules()
