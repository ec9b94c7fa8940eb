"""Splitting a model over ranks raises a clear error, in any order of the calls."""

from __future__ import annotations

import pytest
import torch
from conftest import REPOSITORY
from rank_jobs import run_ranks
from small_models import loss_of, make
from twins import identity

RANK = REPOSITORY / "tests/python/one_rank.py"
GROUP_MADE_LATER = "the process group has 2 ranks, and had 1 when the optimizer was made"

WRAPPED_SINCE = "the model was wrapped in DistributedDataParallel or FSDP, which reduces"

# What each case says with two ranks, and with one.
OF_TWO = {
    "wrapped_before_static": "the model is wrapped in DistributedDataParallel",
    "wrapped_before_views": "the model is wrapped in DistributedDataParallel",
    "wrapped_after_static": GROUP_MADE_LATER,
    "wrapped_after_views": GROUP_MADE_LATER,
    "wrapped_in_the_middle": GROUP_MADE_LATER,
    "inner_of_wrapped": WRAPPED_SINCE,
    "group_before_backward": GROUP_MADE_LATER,
    "group_before_step": GROUP_MADE_LATER,
    "sharded_before": "the model's blocks.0 is wrapped in fully_shard (FSDP2)",
    "sharded_after": GROUP_MADE_LATER,
    "dtensor": "blocks.1.up.weight is sharded",
    "fsdp1_before": "the model is wrapped in FullyShardedDataParallel (FSDP1)",
}
OF_ONE = {
    "wrapped_before_views": "the model is wrapped in DistributedDataParallel",
    "wrapped_after_static": WRAPPED_SINCE,
    "wrapped_after_views": WRAPPED_SINCE,
    "sharded_after": WRAPPED_SINCE,
    "fsdp1_after": WRAPPED_SINCE,
    "fsdp1_after_original": WRAPPED_SINCE,
    "data_parallel": "the model is wrapped in DataParallel",
}


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    return run_ranks(RANK, tmp_path_factory.mktemp("two"), 2, [*OF_TWO, "offload"])


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory):
    return run_ranks(RANK, tmp_path_factory.mktemp("one"), 1, [*OF_ONE, "alone_in_a_group"])


@pytest.mark.parametrize("case", OF_TWO)
def test_two_ranks_are_refused_in_both(two_ranks, case):
    for said in two_ranks:
        assert said[case].startswith("Unavailable: SubspaceAdamW: ")
        assert OF_TWO[case] in said[case]


def test_two_ranks_with_offload_are_refused_in_both(two_ranks):
    for said in two_ranks:
        assert said["offload"].startswith("Unavailable: OffloadAdamW: a process group of 2 ranks")


@pytest.mark.parametrize("case", OF_ONE)
def test_one_rank_that_wraps_its_model_is_refused(one_rank, case):
    assert one_rank[0][case].startswith("Unavailable: SubspaceAdamW: ")
    assert OF_ONE[case] in one_rank[0][case]


def test_a_group_of_one_rank_trains(one_rank):
    assert one_rank[0]["alone_in_a_group"] == "trained"


def test_a_torch_without_distributed_trains(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_available", lambda: False)
    monkeypatch.delattr(torch.distributed, "is_initialized")
    monkeypatch.delattr(torch.distributed, "get_world_size")
    model = make()
    with identity(model) as opt:
        loss_of(model, 0).backward()
        opt.step()
    assert opt.stats()["skipped"] is False
