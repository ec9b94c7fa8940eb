"""Several ranks that train with SubspaceAdamW make the steps of one process with all their rows."""

from __future__ import annotations

import pytest
import sluiceway as sw
import torch
from conftest import REPOSITORY
from rank_jobs import run_ranks
from small_models import distance
from subspace_rank import CODECS, EQUAL, bits, layers, loss_on, train

SCRIPT = REPOSITORY / "tests/python/subspace_rank.py"
SAME = [*EQUAL, "wrapped_later", "wrapped_with_views"]
REFUSED = {
    "clipped_on_one_rank": "the factors on each gradient is [] on rank 0 and [1.0, 0.5, 1.0",
    "other_rate": "param_groups is [[('lr', 0.001), ",
    "rates_swapped": "param_groups is [[('lr', 0.001), ",
    "other_betas": "param_groups is [[",
    "frozen_on_one_rank": "inner.weight is 'torch.float32 (256, 256) ",
    "other_weights": "InvalidArgument: SubspaceAdamW: inner.bias is 'torch.float32 (256,) ",
    "other_options": "ratio is 0.25 on rank 0 and 0.5 on rank 1, expected the same on every rank",
}
# Projectors of svd are arbitrary where a gradient has few tokens, so one process has others.
ALIKE = ["cores", "fitted", "skipped_step", "scaled", "continued"]
FLOATS = 4


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """Folder and outcomes by the number of ranks."""
    folders = {ranks: tmp_path_factory.mktemp(f"ranks{ranks}") for ranks in (2, 4)}
    cases = {
        2: [*SAME, *REFUSED, *ALIKE, "one_fails", "other_optimizers"],
        4: ["identity", "expert_of_one_rank"],
    }
    return {r: (folders[r], run_ranks(SCRIPT, folders[r], r, cases[r])) for r in folders}


def alone(case, ranks):
    """Train one process on the rows of all ranks."""
    more, codec, options = EQUAL["identity" if case.startswith("wrapped") else case]
    model = layers()
    with sw.SubspaceAdamW(model, lr=1e-3, **CODECS[codec], **options) as opt:
        train(model, opt, range(ranks), **more)
    return model


@pytest.mark.parametrize(
    ("ranks", "case"), [*((2, case) for case in SAME), (4, "identity"), (4, "expert_of_one_rank")]
)
def test_ranks_end_in_the_weights_of_one_process(jobs, ranks, case):
    folder, outcomes = jobs[ranks]
    assert len({outcome[case][1] for outcome in outcomes}) == 1, "ranks differ"
    assert all(outcome[case][3] == 0 for outcome in outcomes), "a step was skipped"
    found, expected = layers(), alone(case, ranks)
    found.load_state_dict(torch.load(folder / f"{case}.0.pt"))
    assert distance(found, layers()) > 1e-3
    assert distance(found, expected) < 1e-6


@pytest.mark.parametrize("case", ALIKE)
def test_ranks_have_the_same_bits(jobs, case):
    first, second = (outcome[case] for outcome in jobs[2][1])
    assert first[1] == second[1]
    wanted = {"skipped_step": 1, "scaled": 512.0, "continued": True}
    if case in wanted:
        assert first[0] == second[0] == wanted[case]


def test_cores_and_ordinary_gradients_are_what_crosses(jobs):
    """Two cores of 128 x 128, the gradient of the embedding, and six vectors of 256 at most."""
    (embedding, cores, vectors) = 256 * 256, 2 * 128 * 128, 6 * 256
    sent = jobs[2][1][0]["cores"][2]["sent_bytes"]
    assert FLOATS * (embedding + cores) < sent < FLOATS * (embedding + cores + vectors)


@pytest.mark.parametrize("case", REFUSED)
def test_what_ranks_cannot_share_is_refused_by_all_of_them(jobs, case):
    for outcome in jobs[2][1]:
        assert REFUSED[case] in outcome[case]


def test_the_error_of_one_rank_ends_the_step_on_all(jobs):
    first, second = (outcome["one_fails"] for outcome in jobs[2][1])
    assert "no rank makes this step, since it failed on rank 1: SubspaceAdamW.step: " in first
    assert "norm.weight is torch.sparse_coo" in first
    assert "norm.weight is torch.sparse_coo" in second


def test_a_wrapper_averages_what_the_optimizer_does_not_train(jobs):
    first, second = (outcome["other_optimizers"] for outcome in jobs[2][1])
    assert first == second


def test_one_process_has_no_figures_of_ranks():
    model = layers()
    with sw.SubspaceAdamW(model) as opt:
        loss_on(model, slice(0, 2), 0).backward()
        opt.step()
        assert "ranks" not in opt.stats()
    assert bits(model) != bits(layers())
