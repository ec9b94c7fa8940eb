"""experiments/regimes asks for the runs that it says, keeps what is done, and does its sums."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from functools import partial
from multiprocessing.pool import ThreadPool
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from experiments import harness
from experiments.fidelity import tasks
from experiments.fidelity.stages import HIGHEST, Found, Results
from experiments.quickstart.train_base import shape_of
from experiments.regimes import differences, fine_tunes, questions, regime_tables, starts
from experiments.regimes.fine_tunes import PICK_SEED, Run, Setting, Way, asked_for, run_of
from experiments.regimes.questions import (
    ADAMW,
    CORE,
    QUESTIONS,
    RATES,
    RESIDUAL,
    Question,
    final_runs,
    wanted,
)

TINY = Question("core", "Which?", (Setting(steps=2, shift="prose"),), (ADAMW, RESIDUAL), seeds=2)


def row_of(run: Run, loss: float, core_seconds: float = 36.0) -> dict:
    """Make a row like that of measured()."""
    return {
        **asdict(run), "before": {run.part: 2.0}, "after": {run.part: loss}, "start_is": "s",
        "order_is": f"o/{run.seed}", "held_out_is": "h",
        "seconds": 1.0, "cpu_seconds": 1.0, "curve": [],
        "device_state_bytes": 2048, "link_bytes": 0, "core_seconds": core_seconds,
        "commit": "0123456789abcdef", "command": "python",
    }  # fmt: skip


def found_of(*pairs: tuple[Run, float]) -> Found:
    return Found({run.key: row_of(run, loss) for run, loss in pairs})


def best_at(rate: float, run: Run) -> dict:
    """A row whose loss is the lower the nearer its rate is to `rate`, the final ones by seed."""
    far = abs(np.log2(run.lr / rate))
    return row_of(run, 1.0 + 0.01 * far + 0.001 * run.seed * (run.part == "final"))


# ---- What is asked for ----


def test_the_list_of_runs_is_the_same_every_time_and_begins_with_what_decides_most():
    runs = [wanted(question, Found({})) for question in QUESTIONS]
    assert runs == [wanted(question, Found({})) for question in QUESTIONS]
    assert runs[0] == [
        replace(run_of(Setting(), way), lr=lr) for way in (ADAMW, RESIDUAL, CORE) for lr in RATES
    ]
    keys = {run.key for asked in runs for run in asked}
    assert len(keys) == len({run for asked in runs for run in asked})
    assert len({question.name for question in QUESTIONS}) == len(QUESTIONS)


def test_every_reference_is_one_of_the_ways_and_every_start_and_type_is_known():
    for question in QUESTIONS:
        assert set(question.references) <= set(question.ways)
        for setting in question.settings:
            assert setting.start in starts.STARTS
            assert setting.shift in tasks.SHIFTS
            assert setting.dtype in starts.DTYPES


def test_names_say_what_is_not_usual():
    assert Setting().name == "usual"
    assert Setting(tokens=1024, accumulate=4).name == "1,024 tokens, 4 micro-batches"
    assert Way("svd", 0.5, "50").name == "svd, f = 0.5, refreshed every 50"


def test_tokens_that_are_no_whole_micro_batches_are_refused():
    with pytest.raises(ValueError, match="640 tokens in 2 micro-batches, expected a multiple"):
        Setting(tokens=640, accumulate=2)


@pytest.mark.parametrize(
    ("method", "dtype", "match"),
    [
        ("lora32+kw", "fp32", r"has parameter groups of its own; remove \+kw"),
        ("apollo", "bf16", "would round its weights to nearest, expected fp32"),
        ("adafactor+b1=0", "fp32", r"adafactor has no first moment; remove \+b1=0"),
        ("adamw+norms4+norms8", "fp32", r"one rate; keep one of \+norms4 and \+norms8"),
        ("none+residual+momentum", "fp32", "needs an optimizer of torch, expected one of adamw"),
    ],
)
def test_what_is_not_implemented_is_refused_when_it_is_asked_for(method, dtype, match):
    with pytest.raises(ValueError, match=match):
        run_of(Setting(dtype=dtype), Way(method))


def test_what_could_become_a_default_is_confirmed_by_seeds_that_no_other_question_has():
    confirming = [question for question in QUESTIONS if question.first_seed]
    names = {question.name for question in confirming}
    assert names == {"confirm", "halves", "worth", "lasting", "large", "worth_of_large", "rematch",
                     "norms"}  # fmt: skip

    def seeds(question: Question) -> set[int]:
        finals = (final_runs(Found({}), question, *cell) for cell in questions.cells(question))
        return {run.seed for runs in finals for run in runs}

    others = set().union(*(seeds(one) for one in QUESTIONS if one not in confirming))
    for question in confirming:
        assert seeds(question) == {5, 6, 7, 8, 9}
        assert not seeds(question) & (others | {PICK_SEED})


@pytest.mark.parametrize("best", [2e-3, 1.6e-2, 2.5e-4])
def test_rates_go_on_beyond_an_edge_until_the_best_is_inside(best):
    rows, asked = {}, []
    while new := [run for run in wanted(TINY, Found(rows)) if run.key not in rows]:
        asked += new
        rows |= {run.key: best_at(best, run) for run in new}
    picks = sorted(run.lr for run in asked if run.way == ADAMW and run.seed == PICK_SEED)
    assert picks[0] <= best <= picks[-1]
    if best > 2.5e-4:  # The least of all has none below it.
        assert picks == sorted({*RATES, *(r for r in picks if min(RATES) / 2 <= r <= 2 * best)})
        assert picks[0] < best < picks[-1] <= HIGHEST
    finals = [run for run in asked if run.way == ADAMW and run.seed != PICK_SEED]
    assert [(run.lr, run.seed, run.part) for run in finals] == [(best, 0, "final"),
                                                               (best, 1, "final")]  # fmt: skip


def test_seeds_wait_while_the_rate_may_still_change():
    first = [replace(run_of(TINY.settings[0], ADAMW), lr=lr) for lr in RATES]
    found = found_of(*((run, 1.0 - i) for i, run in enumerate(first)))  # 4e-3 is best.
    asked = [run for run in wanted(TINY, found) if run.way == ADAMW]
    assert asked == [*first, replace(first[-1], lr=8e-3)]


# ---- What is kept ----


def three_runs() -> list[Run]:
    return [replace(run_of(Setting(), ADAMW), lr=1e-3, seed=seed) for seed in range(3)]


def read(path: Path) -> Results:
    return Results(path, asked_for)


def seeds_of(path: Path) -> list[int]:
    return [row["seed"] for row in read(path).rows()]


def test_a_line_that_a_kill_left_torn_is_run_again_wherever_it_was_torn(tmp_path):
    first, second, third = (row_of(run, 1.5) for run in three_runs())
    path = tmp_path / "results.jsonl"
    harness.append_row(path, first)
    whole = path.read_bytes()
    harness.append_row(path, second)
    both = path.read_bytes()
    for cut in range(len(whole), len(both), 7):
        path.write_bytes(both[:cut])
        assert seeds_of(path) == [0]
        harness.append_row(path, third)
        assert [json.loads(line)["seed"] for line in path.read_text().splitlines()] == [0, 2]
    path.write_bytes(both)
    assert seeds_of(path) == [0, 1]


def test_a_whole_line_that_is_no_row_is_named(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text('{"lr": 1, \n')
    with pytest.raises(ValueError, match=r"results\.jsonl:1: is no row"):
        read(path)
    path.write_text('{"lr": 1}\n')
    with pytest.raises(ValueError, match=r"results\.jsonl: a line lacks 'method'"):
        read(path)


def test_of_two_rows_of_a_run_the_later_one_counts(tmp_path):
    run, path = three_runs()[0], tmp_path / "results.jsonl"
    for loss in (1.5, 1.25):
        harness.append_row(path, row_of(run, loss))
    assert read(path).loss(run) == 1.25
    assert len(path.read_text().splitlines()) == 2


# ---- A study ----


@pytest.fixture
def study(tmp_path, monkeypatch):
    """Call run_study() with made-up losses; return the runs that it made."""

    def pool(jobs: int, begin: object, maxtasksperchild: int) -> ThreadPool:
        return ThreadPool(jobs)

    in_threads = SimpleNamespace(get_context=lambda _: SimpleNamespace(Pool=pool))
    monkeypatch.setattr(harness, "multiprocessing", in_threads)
    monkeypatch.setattr(regime_tables, "QUESTIONS", (TINY,))

    def call(*arguments: str, measure=lambda run: best_at(2e-3, run)) -> list[Run]:
        asked: list[Run] = []

        def measured(run: Run) -> dict:
            asked.append(run)
            return measure(run)

        stages = {"core": partial(wanted, TINY)}
        made = harness.Study(tmp_path / "results.jsonl", read, stages, measured,
                             regime_tables.document, "page.txt")  # fmt: skip
        monkeypatch.setattr(sys, "argv", ["run.py", *arguments])
        harness.run_study(made, "A study.")
        return asked

    return call


def test_a_run_that_is_done_is_never_repeated_and_a_second_call_has_nothing_to_do(study, capsys):
    asked = study()
    assert len(asked) == len(set(asked)) == 10  # Three rates and two seeds, twice.
    assert study() == []
    assert study("--count") == []
    assert capsys.readouterr().out.endswith("core: 10 of 10 done\n")


def test_a_run_that_raises_ends_the_study_and_finished_rows_stay(study, tmp_path):
    def no_residual(run: Run) -> dict:
        if run.way == RESIDUAL:
            raise FileNotFoundError("no such model")
        return best_at(2e-3, run)

    with pytest.raises(SystemExit, match="no such model"):
        study("--jobs", "1", measure=no_residual)
    assert len(read(tmp_path / "results.jsonl").rows()) == 3
    assert len(study()) == 7


def test_every_row_of_a_study_names_commit_command_and_machine(study, tmp_path, monkeypatch):
    monkeypatch.setenv("SLUICEWAY_COMMIT", "0123456789abcdef")
    study()
    for row in read(tmp_path / "results.jsonl").rows():
        assert row["commit"] == "0123456789abcdef"
        assert row["command"].startswith("python ")
        assert row["machine"].split(" x ")[0].isdigit()


# ---- Sums ----


def test_differences_are_paired_by_seed_as_numpy_has_them():
    random = np.random.default_rng()
    a, b = random.normal(1.5, 0.1, 7), random.normal(1.5, 0.1, 7)
    runs = {way: [replace(run_of(Setting(), way), lr=1e-3, seed=s) for s in range(7)]
            for way in (CORE, RESIDUAL)}  # fmt: skip
    found = found_of(*zip(runs[CORE], a, strict=True), *zip(runs[RESIDUAL], b, strict=True))
    one = differences.paired(found, runs[CORE], runs[RESIDUAL])
    assert one.mean == pytest.approx(np.mean(a - b))
    assert one.error == pytest.approx(np.std(a - b, ddof=1) / np.sqrt(7))
    assert one.sure == (abs(one.mean) > 2.45 * one.error)
    share = differences.share(found, runs[CORE], runs[RESIDUAL])
    assert share == pytest.approx(((2 - a) / (2 - b)).mean())


def test_a_core_is_worth_its_gain_over_the_gain_of_more_steps():
    random = np.random.default_rng()
    gains, more = random.uniform(0.01, 0.02, 5), random.uniform(0.01, 0.02, 5)
    ways = {"mine": (CORE, 200), "theirs": (RESIDUAL, 200), "longer": (RESIDUAL, 220)}
    mine, theirs, longer = (
        [replace(run_of(Setting(steps=steps), way), lr=1e-3, seed=s) for s in range(5)]
        for way, steps in ways.values()
    )
    found = found_of(*zip(mine, 1.5 - gains, strict=True), *((run, 1.5) for run in theirs),
                     *zip(longer, 1.5 - more, strict=True))  # fmt: skip
    worth = differences.worth_in_steps(found, mine, theirs, longer)
    ratio, covariance = gains.mean() / more.mean(), np.cov(gains, more, ddof=1) / 5
    direction = np.array([1, -ratio]) / more.mean()  # Of the ratio, by the two means.
    assert worth.mean == pytest.approx(20 * ratio)
    assert worth.error == pytest.approx(20 * np.sqrt(direction @ covariance @ direction))
    assert worth.pairs == 5
    assert differences.worth_in_steps(Found({}), mine, theirs, longer) is None


def test_rows_of_another_start_are_refused_and_missing_ones_give_nothing():
    first, second, _ = three_runs()
    one, other = replace(first, method="none+residual"), first
    for key, is_of_one in {"start_is": "s", "order_is": "o/0", "held_out_is": "h"}.items():
        rows = {one.key: row_of(one, 1.0), other.key: {**row_of(other, 1.0), key: "t"}}
        with pytest.raises(ValueError, match=rf"{key} is {is_of_one} of .* and t of"):
            differences.paired(Found(rows), [one], [other])
    assert differences.paired(Found(rows), [one], [second]) is None


def test_a_run_that_diverged_makes_the_difference_infinite():
    assert differences.difference([0.1, float("inf")]).mean == float("inf")
    assert differences.difference([0.1]).error is None


# ---- End to end ----


@pytest.fixture
def small_model(tmp_path_factory, monkeypatch):
    """A model of the small shape with drawn weights, in place of the trained one."""
    folder = tmp_path_factory.mktemp("models") / "small"
    torch.manual_seed(0)
    LlamaForCausalLM(shape_of(2, 448)).to(torch.bfloat16).save_pretrained(folder)
    monkeypatch.setitem(tasks.MODELS, "small", folder)


@pytest.fixture
def short_text(monkeypatch):
    """Four held-out sequences in place of hundreds."""
    text = tasks.load_text("prose")
    text = replace(text, pick=tasks.first_sequences(text.pick, 4),
                   final=tasks.first_sequences(text.final, 4))  # fmt: skip
    for module in (fine_tunes, starts):
        monkeypatch.setattr(module, "load_text", lambda _: text)
    yield
    starts.loss_before.cache_clear()


def test_two_steps_from_the_list_to_the_table(tmp_path, study, small_model, short_text):
    for run in wanted(TINY, Found({})):  # Rates are chosen: 2e-3.
        harness.append_row(tmp_path / "results.jsonl", best_at(2e-3, run))
    assert len(study("--jobs", "1", measure=fine_tunes.measured)) == 4
    study("--table")
    text = (tmp_path / "page.txt").read_text()
    (line,) = [x for x in text.splitlines() if x.startswith("| prose, 2 steps | `none+residual` |")]
    assert line.split(" | ")[2] == "0.002"
    assert "±" in line


def test_a_run_gives_the_same_losses_twice_and_its_start_is_that_of_its_pair(
    small_model, short_text
):
    run = Run(method="block_random+residual+b1=0", shift="prose", tokens=512, accumulate=2,
              steps=2, dtype="bf16", lr=1e-3, seed=0)  # fmt: skip
    first, again = fine_tunes.measured(run), fine_tunes.measured(run)
    other = fine_tunes.measured(replace(run, method="adamw+kw"))
    assert first["after"] == again["after"] != other["after"]
    assert [first[k] for k in ("start_is", "order_is", "before")] == [
        other[k] for k in ("start_is", "order_is", "before")
    ]


def test_what_is_added_to_a_method_changes_what_the_engine_trains(small_model, short_text):
    def after(added: str) -> float:
        run = Run(method="block_random+residual" + added, shift="prose", steps=2, lr=1e-3, seed=0)
        return fine_tunes.measured(run)["after"]["final"]

    assert len({after(added) for added in ("", "+b1=0", "+kw")}) == 3


def test_a_base_model_that_is_not_there_names_the_command_that_makes_it(monkeypatch, tmp_path):
    monkeypatch.setitem(tasks.MODELS, "small", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"python -m experiments\.fidelity\.tasks"):
        tasks.load_model("small")


def test_a_start_from_scratch_depends_on_the_seed_alone_and_keeps_the_embedding(small_model):
    one, same, other = (starts.start_model("scratch", seed, "fp32") for seed in (1, 1, 2))
    base = tasks.load_model("small")
    prints = [starts.fingerprint(model) for model in (one, same, other, base)]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3
    embedding = one.get_input_embeddings().weight
    assert not embedding.requires_grad
    assert bool((embedding == base.get_input_embeddings().weight).all())


def test_auto_comes_to_the_residual_alone_but_in_large_steps(small_model):
    from sluiceway import SubspaceAdamW

    from experiments.fidelity.methods import block_weights

    model = tasks.load_model("small")
    names = [name for name, _ in block_weights(model)]
    shapes = {
        (s.dtype, s.tokens, s.accumulate, s.steps)
        for question in questions.QUESTIONS
        for s in question.settings
    }
    for dtype, tokens, accumulate, steps in sorted(
        shapes, reverse=True
    ):  # fp32 first: of one model.
        model = model.to(starts.DTYPES[dtype])
        for norm_mode in ("exact", "speculative"):
            with SubspaceAdamW(
                model, tokens_per_step=tokens, total_steps=steps, accumulate=accumulate,
                norm_mode=norm_mode, target=names,
            ) as one:  # fmt: skip
                found = {(c["codec"], c["residual"], c["second_moment"]) for c in one.describe()}
            codec = "svd" if tokens == questions.LARGE_TOKENS else "none"
            assert found == {(codec, "factored", "factored")}, (dtype, tokens, accumulate)


def test_a_reference_that_diverged_is_said():
    assert regime_tables.shown(differences.difference([float("-inf"), 0.0])) == "reference diverged"
