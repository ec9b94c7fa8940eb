"""experiments/regimes asks for the runs that it says, keeps what is done, and does its sums."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace

import numpy as np
import pytest

from experiments.fidelity import tasks
from experiments.fidelity.stages import HIGHEST, Found
from experiments.regimes import differences, fine_tunes, questions, regime_tables, starts
from experiments.regimes.fine_tunes import PICK_SEED, Run, Setting, Way, run_of
from experiments.regimes.hours import Hours
from experiments.regimes.questions import ADAMW, CORE, QUESTIONS, RATES, RESIDUAL, Question, wanted
from experiments.regimes.shelf import Shelf
from experiments.regimes.turns import left, next_run, plan, work_off

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
    runs = [wanted(Found({}), question).known for question in QUESTIONS]
    assert runs == [wanted(Found({}), question).known for question in QUESTIONS]
    assert runs[0] == tuple(
        replace(run_of(Setting(), way), lr=lr) for way in (ADAMW, RESIDUAL, CORE) for lr in RATES
    )
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
        return {run.seed for run in wanted(Found({}), question).to_come}

    others = set().union(*(seeds(one) for one in QUESTIONS if one not in confirming))
    for question in confirming:
        assert seeds(question) == {5, 6, 7, 8, 9}
        assert not seeds(question) & (others | {PICK_SEED})


@pytest.mark.parametrize("best", [2e-3, 1.6e-2, 2.5e-4])
def test_rates_go_on_beyond_an_edge_until_the_best_is_inside(best):
    rows, asked = {}, []
    while new := [run for run in wanted(Found(rows), TINY).known if run.key not in rows]:
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


def test_seeds_are_to_come_while_the_rate_may_still_change():
    first = [replace(run_of(TINY.settings[0], ADAMW), lr=lr) for lr in RATES]
    found = found_of(*((run, 1.0 - i) for i, run in enumerate(first)))  # 4e-3 is best.
    asked = wanted(found, TINY)
    assert replace(first[-1], lr=8e-3) in asked.known
    assert [run.seed for run in asked.to_come if run.way == ADAMW] == [0, 1]


# ---- What is kept ----


def three_runs() -> list[Run]:
    return [replace(run_of(Setting(), ADAMW), lr=1e-3, seed=seed) for seed in range(3)]


def test_a_line_that_a_kill_left_torn_is_run_again_wherever_it_was_torn(tmp_path):
    first, second, third = three_runs()
    shelf = Shelf(tmp_path)
    shelf.add("core", row_of(first, 1.5))
    whole = shelf.path("core").read_bytes()
    shelf.add("core", row_of(second, 1.25))
    both = shelf.path("core").read_bytes()
    for cut in range(len(whole), len(both), 7):
        shelf.path("core").write_bytes(both[:cut])
        again = Shelf(tmp_path)
        assert list(again.rows("core")) == [first.key]
        again.add("core", row_of(third, 1.125))
        lines = shelf.path("core").read_text().splitlines()
        assert [json.loads(line)["seed"] for line in lines] == [0, 2]
    shelf.path("core").write_bytes(both)
    assert list(Shelf(tmp_path).rows("core")) == [first.key, second.key]


def test_a_whole_line_that_is_no_row_is_named(tmp_path):
    (tmp_path / "core.jsonl").write_text('{"lr": 1, \n')
    with pytest.raises(ValueError, match=r"core\.jsonl:1: is no row"):
        Shelf(tmp_path)


def test_what_one_question_ran_is_copied_into_the_file_of_another(tmp_path):
    shelf = Shelf(tmp_path)
    run = next(run for run in wanted(Found({}), QUESTIONS[0]).known if run.way == RESIDUAL)
    shelf.add("core", row_of(run, 1.5))
    shelf.share(next(question for question in QUESTIONS if question.name == "b1"))
    assert list(Shelf(tmp_path).rows("b1")) == [run.key]


# ---- Taking turns ----


def work(shelf: Shelf, asked: list[Run], hours: float = 30.0, fails: Way | None = None):
    """Do the work of run.py with made-up losses."""

    def measure(run: Run) -> dict:
        asked.append(run)
        if run.way == fails:
            raise RuntimeError("no such method")
        return best_at(2e-3, run)

    with ThreadPoolExecutor(2) as pool:
        return work_off([TINY], shelf, pool, 2, measure, hours, lambda _: None)


def test_a_run_that_is_done_is_never_repeated_and_a_second_call_has_nothing_to_do(tmp_path):
    asked: list[Run] = []
    outcome = work(Shelf(tmp_path), asked)
    assert len(asked) == len(set(asked)) == outcome.done == 10  # Three rates and two seeds, twice.
    assert work(Shelf(tmp_path), asked).done == 0
    assert len(asked) == 10


def test_the_budget_stops_before_the_run_that_would_go_over_it(tmp_path):
    asked: list[Run] = []
    shelf = Shelf(tmp_path)
    shelf.add("core", row_of(replace(run_of(TINY.settings[0], ADAMW), lr=1.0), 3.0))  # 36 s each.
    outcome = work(shelf, asked, hours=0.045)
    assert (outcome.stopped, outcome.done, len(asked)) == (True, 3, 3)  # With the one before.
    rest = work(Shelf(tmp_path), asked)
    assert (rest.stopped, len(asked), len(set(asked))) == (False, 10, 10)


def test_a_method_that_raises_is_named_and_the_others_go_on(tmp_path):
    outcome = work(Shelf(tmp_path), [], fails=ADAMW)
    assert {run.way for run in outcome.failed} == {ADAMW}
    assert outcome.done == 5


def test_the_plan_counts_a_run_once_and_takes_seconds_from_rows_of_its_shape():
    lines = left(QUESTIONS, Found({}))
    runs = [run for line in lines for run in (*line.known, *line.to_come)]
    assert len(runs) == len(set(runs))
    hours = Hours([row_of(run_of(Setting(), ADAMW), 1.0, core_seconds=20.0)])
    assert hours.seconds(run_of(Setting(), ADAMW)) == 20.0
    assert hours.seconds(run_of(Setting(), CORE)) == 20.0
    assert hours.seconds(run_of(Setting(tokens=512), ADAMW)) != 20.0
    text = plan(lines, Hours([])).splitlines()
    (total,) = [line.split() for line in text if line.startswith("all ")]
    (further,) = [line.split() for line in text if line.startswith("further rates")]
    assert total[1] == str(len(runs))
    assert int(further[2]) == len({(run.setting, run.way) for run in runs})
    assert 0 < float(total[2]) + float(further[3]) <= 30


def test_the_next_run_is_none_when_all_is_taken():
    known = wanted(Found({}), TINY).known
    assert next_run([TINY], Found({}), set()) == ("core", known[0])
    assert next_run([TINY], Found({}), set(known)) is None


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
def short_text(monkeypatch):
    """Four held-out sequences in place of hundreds."""
    text = tasks.load_text("prose")
    text = replace(text, pick=tasks.first_sequences(text.pick, 4),
                   final=tasks.first_sequences(text.final, 4))  # fmt: skip
    for module in (fine_tunes, starts):
        monkeypatch.setattr(module, "load_text", lambda _: text)
    yield
    starts.loss_before.cache_clear()


def test_two_steps_from_the_list_to_the_table(tmp_path, monkeypatch, short_text):
    shelf = Shelf(tmp_path)
    for run in wanted(Found({}), TINY).known:  # Rates are chosen: 2e-3.
        shelf.add("core", best_at(2e-3, run))

    def measure(run: Run) -> dict:
        return {**fine_tunes.measured(run), "commit": "0123456789ab", "command": "python"}

    with ThreadPoolExecutor(1) as pool:
        outcome = work_off([TINY], shelf, pool, 1, measure, 1.0, lambda _: None)
    assert (outcome.done, outcome.failed) == (4, {})
    monkeypatch.setattr(regime_tables, "QUESTIONS", (TINY,))
    regime_tables.write_results(Shelf(tmp_path), tmp_path)
    (results,) = tmp_path.glob("*.md")
    text = results.read_text()
    (line,) = [x for x in text.splitlines() if x.startswith("| prose, 2 steps | `none+residual` |")]
    assert line.split(" | ")[2] == "0.002"
    assert "±" in line


def test_a_run_gives_the_same_losses_twice_and_its_start_is_that_of_its_pair(short_text):
    run = Run(method="block_random+residual+b1=0", shift="prose", tokens=512, accumulate=2,
              steps=2, dtype="bf16", lr=1e-3, seed=0)  # fmt: skip
    first, again = fine_tunes.measured(run), fine_tunes.measured(run)
    other = fine_tunes.measured(replace(run, method="adamw+kw"))
    assert first["after"] == again["after"] != other["after"]
    assert [first[k] for k in ("start_is", "order_is", "before")] == [
        other[k] for k in ("start_is", "order_is", "before")
    ]


def test_what_is_added_to_a_method_changes_what_the_engine_trains(short_text):
    def after(added: str) -> float:
        run = Run(method="block_random+residual" + added, shift="prose", steps=2, lr=1e-3, seed=0)
        return fine_tunes.measured(run)["after"]["final"]

    assert len({after(added) for added in ("", "+b1=0", "+kw")}) == 3


def test_a_start_from_scratch_depends_on_the_seed_alone_and_keeps_the_embedding():
    one, same, other = (starts.start_model("scratch", seed, "fp32") for seed in (1, 1, 2))
    base = tasks.load_model("small")
    prints = [starts.fingerprint(model) for model in (one, same, other, base)]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3
    embedding = one.get_input_embeddings().weight
    assert not embedding.requires_grad
    assert bool((embedding == base.get_input_embeddings().weight).all())


def test_auto_comes_to_the_residual_alone_but_in_large_steps():
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


def test_a_second_writer_is_refused(tmp_path):
    alone, refused = Shelf(tmp_path).alone, Shelf(tmp_path).alone
    with alone(), pytest.raises(BlockingIOError, match=r"another run\.py writes"), refused():
        pass
    with refused():
        pass


def test_a_line_that_is_no_row_is_named(tmp_path):
    (tmp_path / "core.jsonl").write_text('{"lr": 1}\n')
    with pytest.raises(ValueError, match=r"core\.jsonl: a line lacks 'method'"):
        Shelf(tmp_path)


def test_a_reference_that_diverged_is_said():
    assert regime_tables.shown(differences.difference([float("-inf"), 0.0])) == "reference diverged"
