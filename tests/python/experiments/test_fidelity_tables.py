"""The tables of experiments/fidelity do their sums, on made-up fine-tunes."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from experiments.fidelity.stages import STAGES, Results
from experiments.fidelity.tables import (
    DEFAULTS,
    Look,
    Stage,
    at_rate,
    contests,
    document,
    equal_time,
    looks,
    loss_at,
    shares,
    spread,
)
from experiments.fidelity.train_one import Job
from experiments.harness import append_row

BEFORE = 1.5
# Loss on `pick` by rate: 2e-3 is best, between two others, so no further rate is asked for.
PICKS = {1e-3: 1.41, 2e-3: 1.40, 4e-3: 1.42, 8e-3: 1.45}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "results.jsonl"


@pytest.fixture
def write(path):
    """Append one fine-tune."""

    def one(job: Job, pick: float, final: float, curve: list | None = None) -> Job:
        run = {
            **asdict(job),
            "before": {"pick": 1.0, "final": BEFORE},
            "after": {"pick": pick, "final": final},
            "seconds": 10.0,
            "curve": curve or [[40, 2.0, 1.45], [200, 10.0, final]],
            "device_state_bytes": 2048,
            "link_bytes": 1024,
            "commit": "0123456789abcdef",
        }
        append_row(path, run)
        return job

    return one


def job(method: str, lr: float = 0.0, seed: int = 0) -> Job:
    return Job("small", "prose", method, 0.25, lr, seed)


def cells(text: str, *first: str) -> list[str]:
    """The cells of the one line that begins with these."""
    begin = f"| {' | '.join(first)} |"
    (line,) = [line for line in text.splitlines() if line.startswith(begin)]
    return line.strip("| ").split(" | ")


def fill(write, method: str, finals: dict[float, float], picks: dict[float, float] = PICKS) -> None:
    """Every rate of a row of the screen."""
    for lr, final in finals.items():
        write(job(method, lr), picks[lr], final)


def fill_headline(write, method: str, best: float, finals: tuple[float, ...], **other) -> None:
    """Rates of the first seed, then three seeds at the best one and, in `other`, at AdamW's."""
    rates = (1e-3, 2e-3, 4e-3, 8e-3)
    for lr in rates:
        write(job(method, lr), 1.3 + abs(lr - best), 1.49)
    for seed, final in enumerate(finals):
        write(job(method, best, seed), 1.3, final)
    for seed, final in enumerate(other.get("native", ())):
        write(job(method, 2e-3, seed), 1.3 + abs(2e-3 - best), final)


def test_best_rate_is_chosen_on_pick_and_the_loss_shown_is_of_final(write, path):
    # On `final` 4e-3 would be better.
    fill(write, "adamw", {1e-3: 1.35, 2e-3: 1.30, 4e-3: 1.20, 8e-3: 1.40})
    stage = Stage(Results(path), "screen")
    (row,) = stage.rows
    assert row.best.lr == 2e-3
    assert cells(document(Results(path)), "adamw")[2:5] == ["0.002", "1.3000", "1.000"]


def test_share_is_the_gain_over_that_of_adamw_at_its_own_best_rate(write, path):
    fill(write, "adamw", {1e-3: 1.35, 2e-3: 1.30, 4e-3: 1.20, 8e-3: 1.40})
    fill(write, "svd", {1e-3: 1.48, 2e-3: 1.45, 4e-3: 1.40, 8e-3: 1.49},
         {1e-3: 1.45, 2e-3: 1.42, 4e-3: 1.40, 8e-3: 1.45})  # fmt: skip
    line = cells(document(Results(path)), "svd")
    assert line[1:5] == ["0.25", "0.004", "1.4000", "0.500"]  # .1 of .2
    assert line[5:7] == ["1.4500", "0.250"]  # At AdamW's 2e-3: .05 of .2
    assert line[7:9] == ["2", "1"]  # KiB


def test_row_without_all_its_rates_is_left_out_and_counted(write, path):
    fill(write, "adamw", dict.fromkeys(PICKS, 1.3))
    whole = Stage(Results(path), "screen")
    fill(write, "svd", {1e-3: 1.4, 2e-3: 1.4, 4e-3: 1.4})
    stage = Stage(Results(path), "screen")
    assert [row.best.method for row in stage.rows] == ["adamw"]
    assert stage.missing == whole.missing > 10
    assert f"Rows not complete: {stage.missing}." in document(Results(path))


def test_row_whose_best_rate_is_at_an_edge_waits_for_the_next_one(write, path):
    falling = {1e-3: 1.45, 2e-3: 1.44, 4e-3: 1.42, 8e-3: 1.40}
    fill(write, "adamw", dict.fromkeys(PICKS, 1.3), falling)
    assert Stage(Results(path), "screen").rows == []
    write(job("adamw", 1.6e-2), 1.41, 1.3)
    assert [r.best.lr for r in Stage(Results(path), "screen").rows] == [8e-3]


def test_nothing_done_gives_tables_that_say_so(path):
    assert document(Results(path)).count("Nothing yet.") == len(STAGES) + 1


def test_shares_are_paired_by_seed_and_shown_as_median_and_range(write, path):
    fill_headline(write, "adamw", 2e-3, (1.30, 1.40, 1.25))
    fill_headline(write, "galore", 4e-3, (1.40, 1.45, 1.45), native=(1.50, 1.45, 1.45))
    results = Results(path)
    stage = Stage(results, "headline")
    row = next(r for r in stage.rows if r.best.method == "galore")
    native = stage.native(row)
    assert row.best == job("galore", 4e-3)
    assert shares(results, row.jobs(), native.jobs()) == pytest.approx([0.5, 0.5, 0.2])
    loss, share = at_rate(results, row, native, 4e-3)
    assert loss == "1.4500 (1.4000 to 1.4500)"
    assert share == "0.500 (0.200 to 0.500)"
    # AdamW's rate: no gain, .05 of .1, .05 of .25.
    assert at_rate(results, row, native, 2e-3)[1] == "0.200 (0.000 to 0.500)"


def test_who_is_ahead_is_read_from_medians(write, path):
    fill_headline(write, "adamw", 2e-3, (1.30, 1.30, 1.30))
    fill_headline(write, DEFAULTS[0], 4e-3, (1.30, 1.31, 1.32), native=(1.36, 1.35, 1.34))
    fill_headline(write, "galore", 4e-3, (1.33, 1.34, 1.35), native=(1.4, 1.4, 1.4))
    fill_headline(write, "adafactor", 2e-3, (1.29, 1.30, 1.36))
    stage = Stage(Results(path), "headline")
    sentence = contests(Results(path), stage, DEFAULTS[0], same_rate=False)
    assert "galore in 1 of 1 (1 with every seed)" in sentence
    assert "adafactor in 0 of 1 (0 with every seed), behind in small prose by 0.0100" in sentence
    slower = contests(Results(path), stage, DEFAULTS[0], same_rate=True)
    assert "galore in 0 of 1 (0 with every seed), behind in small prose by 0.0100" in slower


def test_looks_have_three_numbers_or_four(write, path):
    write(job("adamw", 1e-3), 1.4, 1.3, [[40, 2.0, 1.5]])
    write(job("adamw", 2e-3), 1.4, 1.3, [[40, 2.0, 1.0, 1.5]])
    results = Results(path)
    assert looks(results, job("adamw", 1e-3)) == [Look(40, 2.0, None, 1.5)]
    assert looks(results, job("adamw", 2e-3)) == [Look(40, 2.0, 1.0, 1.5)]


def test_loss_at_a_time_lies_between_two_looks():
    curve = [(2.0, 1.5), (4.0, 1.4), (8.0, 1.2)]
    assert loss_at(curve, 6.0) == pytest.approx(1.3)
    assert loss_at(curve, 4.0) == pytest.approx(1.4)
    assert loss_at(curve, 9.0) == 1.2  # It had ended.
    assert loss_at(curve, 1.0) is None
    assert loss_at([(None, 1.5)], 1.0) is None
    assert loss_at(curve, None) is None
    assert loss_at([(2.0, float("inf")), (4.0, float("inf"))], 3.0) == float("inf")


def test_equal_time_ends_when_adamw_of_the_same_seed_did(write, path):
    fill_headline(write, "adamw", 2e-3, (1.3, 1.3, 1.3))
    fill_headline(write, "galore", 4e-3, (1.4, 1.4, 1.4), native=(1.4, 1.4, 1.4))
    for seed, end in enumerate((5.0, 6.0, 8.0)):
        write(job("adamw", 2e-3, seed), 1.3, 1.3, [[100, 1.0, 0.5, 1.4], [200, end, 4.0, 1.3]])
        write(replace(job("galore", 4e-3), seed=seed), 1.3, 1.4,
              [[100, 4.0, 2.0, 1.48], [200, 8.0, 3.0, 1.40]])  # fmt: skip
    results = Results(path)
    line = cells(equal_time(results, Stage(results, "headline")), "small", "prose", "galore")
    assert line[3:] == ["8", "1.4400 (1.4000 to 1.4600)", "3", "1.4000 (1.4000 to 1.4000)"]


def test_a_loss_that_is_not_finite_is_called_diverged(write, path):
    assert spread([float("inf")]) == "diverged"
    assert spread([1.0, 2.0, 1.5]) == "1.5000 (1.0000 to 2.0000)"
    assert spread([1.0, float("inf"), 1.5]) == "1.5000 (1.0000 to diverged)"
    nan = float("nan")
    write(job("adamw", 1e-3), nan, nan, [[40, 2.0, 1.0, nan]])
    assert looks(Results(path), job("adamw", 1e-3))[0].loss == float("inf")
