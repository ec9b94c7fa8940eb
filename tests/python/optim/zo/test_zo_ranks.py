"""Several ranks that train by losses alone make the steps of one process."""

from __future__ import annotations

import pytest
import sluiceway
from conftest import REPOSITORY
from rank_jobs import run_ranks
from zo_models import OPTIONS, decoder
from zo_rank import FIVE, history, part_of, same_batch

SCRIPT = REPOSITORY / "tests/python/zo_rank.py"
OF_DIRECTIONS = {
    "directions_on_device": {},
    "directions_on_host": {"tier": "host"},
    "directions_of_low_rank": {"tier": "host", "noise": "lowrank", "period": 5},
}
OF_BATCHES = {"batch_on_device": {}, "batch_on_host": {"tier": "host"}}
REFUSED = {
    "rate_that_falls": "InvalidArgument: ZoSgd: rates of param_groups is [(0.02, 0.5, ",
    "other_weights": "InvalidArgument: ZoSgd: layers.1.up.weight is 'torch.float32 (13, 7) ",
    "other_seed": "InvalidArgument: ZoSgd: seed is 0 on rank 0 and 1 on rank 1, expected the same",
    "too_few_directions": "across_ranks is 'directions', expected at least 2, one for each rank",
    "store_of_each": "Unavailable: ZoSgd: tier is 'disk' in a process group of 2 ranks",
    "written_back": "Unavailable: ZoSgd: mode is 'write_back' in a process group of 2 ranks",
    "logs_of_two_runs": "load_state_dict: the state has log ",
    "group_made_later": "Unavailable: ZoSgd: the process group has 2 ranks, and had 1 when",
}


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    cases = [
        *OF_DIRECTIONS,
        *OF_BATCHES,
        *REFUSED,
        "one_fails",
        "late_rank",
        "interrupted",
        "one_hangs",
    ]
    return run_ranks(SCRIPT, tmp_path_factory.mktemp("two"), 2, cases)


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    cases = ["directions_on_host", "batch_on_device", "one_ends"]
    return run_ranks(SCRIPT, tmp_path_factory.mktemp("four"), 4, cases)


def alone(closures_of, **options):
    model = decoder()
    with sluiceway.ZoSgd(model, **options) as opt:
        return history(opt, model, lambda step: closures_of(model, step))


def micro_batches_of(ranks):
    return lambda model, step: [part_of(model, rank, ranks)(step) for rank in range(ranks)]


@pytest.mark.parametrize("case", OF_DIRECTIONS)
def test_ranks_that_divide_directions_make_the_bits_of_one_process(two, case):
    options = {key: value for key, value in FIVE.items() if key != "across_ranks"}
    expected = alone(lambda model, step: same_batch(model)(step), **options, **OF_DIRECTIONS[case])
    for rank, (losses, weights, stats) in enumerate(one[case] for one in two):
        assert [losses, weights] == expected
        assert stats == {"rank": rank, "count": 2, "sent_bytes": 8 * 5 + 12}


def test_four_ranks_with_an_uneven_part_each_make_the_bits_of_one_process(four):
    options = {key: value for key, value in FIVE.items() if key != "across_ranks"}
    expected = alone(lambda model, step: same_batch(model)(step), **options, tier="host")
    for one in four:
        assert one["directions_on_host"][:2] == expected


@pytest.mark.parametrize("case", OF_BATCHES)
def test_two_ranks_with_a_batch_each_make_the_bits_of_two_micro_batches(two, case):
    options = OPTIONS | OF_BATCHES[case]
    for one in two:
        assert one[case][:2] == alone(micro_batches_of(2), **options)


def test_four_ranks_with_a_batch_each_make_the_bits_of_four_micro_batches(four):
    for one in four:
        assert one["batch_on_device"][:2] == alone(micro_batches_of(4), **OPTIONS)


@pytest.mark.parametrize("case", REFUSED)
def test_what_ranks_cannot_share_is_refused_by_all_of_them(two, case):
    for one in two:
        assert REFUSED[case] in one[case]


def test_the_error_of_one_rank_ends_the_step_on_all(two):
    said, again = zip(*(one["one_fails"] for one in two), strict=True)
    assert said[0] == (
        "Error: ZoSgd.step: no rank makes this step, since it failed on rank 1: "
        "'a batch is missing'"
    )
    assert said[1] == "KeyError: 'a batch is missing'"
    assert again[0] == again[1] == two[0]["batch_on_device"][1]


def test_interrupt_waits_for_the_step_that_all_ranks_make(two):
    for one in two:
        said, steps, weights = one["interrupted"]
        assert (said, steps) == ("interrupted", 3)
        assert weights == one["batch_on_device"][1]


def test_a_rank_that_comes_late_replays_the_log(two):
    expected = alone(lambda model, step: same_batch(model)(step), **OPTIONS, tier="host")
    for one in two:
        losses, weights = one["late_rank"]
        assert [losses, weights] == [expected[0][5:], expected[1]]


def test_a_rank_that_hangs_or_ends_is_named(two, four):
    assert "Timeout: ZoSgd: rank 1 did not come to step with the others" in two[0]["one_hangs"]
    for rank in (0, 2, 3):
        assert (
            "Timeout: ZoSgd: rank 1 did not come to step with the others" in four[rank]["one_ends"]
        )


def test_one_process_has_no_figures_of_ranks():
    model = decoder()
    with sluiceway.ZoSgd(model, **OPTIONS) as opt:
        opt.step(same_batch(model)(0))
        assert "ranks" not in opt.stats()
