"""The report on awkward run folders: a page with a note, or one line that says what is wrong."""

from __future__ import annotations

import fcntl
import html
import json
import math
import re

import pytest
from conftest import assert_short_error
from plotly.offline import get_plotlyjs
from report_pages import Page, line_of, report_on, write_run


@pytest.fixture
def report(sluiceway, tmp_path):
    """Report on folders and parse the page."""
    return lambda *folders: report_on(sluiceway, folders, tmp_path / "page.html")


# ---- Awkward folders ----


def test_half_written_last_line_is_left_out_and_noted(report, tmp_path):
    folder = write_run(tmp_path / "run", [line_of(1), line_of(2)])
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "loss": 2.')
    page = report(folder)
    assert page.runs["run"]["curves"]["loss"]["step"] == [1, 2]
    note = "the last line of metrics.jsonl is half-written (22 bytes) and left out"
    assert note in page.runs["run"]["notes"]
    assert f"run: {note}" in page.words["li"]


def test_lines_that_are_no_metrics_are_left_out_and_named(report, tmp_path):
    folder = write_run(tmp_path / "run", [line_of(1)])
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(b'\xff\xfe\n[1]\n{"loss": 1}\n' + json.dumps(line_of(2)).encode() + b"\n")
    run = report(folder).runs["run"]
    assert run["curves"]["loss"]["step"] == [1, 2]
    assert "metrics.jsonl: left out 3 lines that are not metrics: line 2, 3, 4" in run["notes"]


def test_run_that_goes_on_is_shown_as_running_with_figures_of_its_lines(report, tmp_path):
    lines = [{"step": 0, "eval_loss": 3.25}]
    lines += [line_of(k, seconds=0.1 * k) for k in range(1, 8)]
    lines[4]["eval_loss"] = 2.75
    folder = write_run(tmp_path / "run", lines)
    with (folder / "metrics.jsonl").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # As the process that trains does.
        page = report(folder)
    run = page.runs["run"]
    assert run["status"] == "running"
    assert "running, after step 7 of 100" in run["notes"]
    figures = run["figures"]
    assert (figures["steps"], figures["tokens"], figures["skipped_steps"]) == (7, 7 * 64, 0)
    assert (figures["first_eval_loss"], figures["final_eval_loss"]) == (3.25, 2.75)
    assert figures["median_step_seconds"] == pytest.approx(0.55)  # Steps 4 to 7.
    assert figures["data_share"] == pytest.approx(4 * 0.01 / (0.4 + 0.5 + 0.6 + 0.7))
    assert figures["peak_bytes"]["device"] == 3 << 20
    assert "3 MiB" in page.words["td"]


@pytest.mark.parametrize("losses", [(3.25, 0.0), (0, 2.5), (0.0, 0)])
def test_held_out_loss_of_exactly_zero_is_a_loss(report, tmp_path, losses):
    first, last = losses
    lines = [{"step": 0, "eval_loss": first}, *(line_of(k) for k in (1, 2, 3))]
    lines[2]["eval_loss"] = last
    page = report(write_run(tmp_path / "run", lines))
    figures = page.runs["run"]["figures"]
    assert (figures["first_eval_loss"], figures["final_eval_loss"]) == losses
    assert page.runs["run"]["curves"]["eval_loss"]["value"] == [first, last]
    assert [f"{first:.4f}", f"{last:.4f}", f"{last - first:+.4f}"] == [
        text
        for text in page.words["td"]
        if text in {f"{first:.4f}", f"{last:.4f}", f"{last - first:+.4f}"}
    ]


def test_run_that_did_not_measure_its_waits_for_data_gets_a_page_without_them(report, tmp_path):
    lines = [line_of(k) for k in (1, 2)]
    share = "Share of a step spent waiting for data"
    page = report(write_run(tmp_path / "new", lines))
    assert share in page.words["figcaption"]
    for line in lines:
        del line["data_seconds"]
    page = report(write_run(tmp_path / "old", lines))
    assert share not in page.words["figcaption"]
    assert "data_share" not in page.runs["old"]["curves"]


def test_killed_run_is_shown_as_stopped(report, tmp_path):
    run = report(write_run(tmp_path / "run", [line_of(1)])).runs["run"]
    assert run["status"] == "stopped"
    assert any("the process was killed" in note for note in run["notes"])


def test_summary_of_an_earlier_sitting_gives_no_figures(report, tmp_path):
    folder = write_run(tmp_path / "run", [line_of(k) for k in range(1, 6)])
    old = {"status": "interrupted", "steps": 3, "final_loss": 9.0, "commit": "abc",
           "median_step_seconds": 7.0, "native": {"median_step_seconds": 0.2}}  # fmt: skip
    (folder / "summary.json").write_text(json.dumps(old))
    run = report(folder).runs["run"]
    assert run["status"] == "stopped"
    assert any("ends at step 3, metrics.jsonl at step 5" in note for note in run["notes"])
    assert run["figures"]["final_loss"] == pytest.approx(2.5)
    assert run["figures"]["native_ratio"] == pytest.approx(0.25 / 0.2)
    assert run["summary"]["commit"] == "abc"


def test_summary_that_does_not_parse_is_noted(report, tmp_path):
    folder = write_run(tmp_path / "run", [line_of(1)])
    (folder / "summary.json").write_text('{"status": "do')
    run = report(folder).runs["run"]
    assert "summary.json does not parse and is left out" in run["notes"]
    assert run["figures"]["steps"] == 1


@pytest.mark.parametrize("bad", [None, math.nan, math.inf])
def test_loss_that_is_not_finite_leaves_a_gap_and_a_note(report, tmp_path, bad):
    lines = [line_of(k) for k in range(1, 9)]
    lines[3] |= {"loss": bad, "grad_norm": bad, "skipped": 1}
    page = report(write_run(tmp_path / "run", lines))
    run = page.runs["run"]
    assert run["curves"]["loss"]["value"][3] is None
    assert run["curves"]["loss"]["value"][4] == pytest.approx(2.5)
    assert "the loss is not finite in 1 steps: 4" in run["notes"]
    assert run["curves"]["skipped_so_far"]["value"] == [0, 0, 0, 1, 1, 1, 1, 1]
    assert len(page.points("Loss over steps")) == 7
    assert len(page.points("Skipped steps so far")) == 8


def test_run_of_nothing_but_nan_gets_a_page(report, tmp_path):
    lines = [line_of(k, loss=math.nan, grad_norm=None, skipped=1) for k in (1, 2)]
    page = report(write_run(tmp_path / "run", lines))
    assert "no finite value" in page.words["p"]
    assert page.runs["run"]["figures"]["skipped_steps"] == 2


def test_run_before_its_first_step_shows_its_held_out_loss(report, tmp_path):
    page = report(write_run(tmp_path / "run", [{"step": 0, "eval_loss": 3.5}]))
    assert page.runs["run"]["curves"]["eval_loss"]["value"] == [3.5]
    assert "loss" not in page.runs["run"]["curves"]
    assert "3.5000" in page.words["td"]


def test_loss_that_explodes_is_drawn_on_a_logarithmic_axis(report, tmp_path):
    lines = [line_of(k, loss=10.0**k) for k in range(5)]
    page = report(write_run(tmp_path / "run", lines))
    assert "Loss over steps, nats per token (logarithmic)" in page.words["figcaption"]
    (axis,) = (figure["layout"]["yaxis"] for title, figure in page.figures.items()
               if title.startswith("Loss over steps"))  # fmt: skip
    assert axis["type"] == "log"
    assert [y for _, y in page.points("Loss over steps")] == [1, 10, 100, 1000, 10000]


# ---- Several runs ----


def test_runs_of_different_length_share_axes_and_show_the_keys_that_differ(report, tmp_path):
    long = write_run(tmp_path / "long", [line_of(k) for k in range(1, 11)], train={"lr": 0.01})
    short = write_run(tmp_path / "short", [line_of(k) for k in range(1, 6)], train={"lr": 0.02})
    page = report(short, long)
    assert list(page.runs) == ["short", "long"]
    first = page.points("Loss over steps")  # The short run's.
    assert len(first) == 5
    table = page.source.partition("Keys that differ between the runs")[2].partition("</table>")[0]
    assert re.findall(r'<th scope="row">(.*?)</th>', table) == ["train.lr"]
    assert re.findall(r"<td>(.*?)</td>", table) == ["0.02", "0.01"]
    assert page.words["span"] == ["short", "long"]  # The legend.


def test_folders_of_equal_name_are_told_apart_and_one_given_twice_is_shown_once(report, tmp_path):
    one = write_run(tmp_path / "a" / "out", [line_of(1)])
    two = write_run(tmp_path / "b" / "out", [line_of(1)])
    assert list(report(one, two, one / ".." / "out").runs) == ["a/out", "b/out"]


def test_names_and_values_cannot_become_markup(report, tmp_path):
    name = "<b>&amp; \"'</script><script>alert(1)"
    folder = write_run(tmp_path / name.replace("/", ":"), [line_of(1)], model={"path": "</script>"})
    page = report(folder)
    assert list(page.runs) == [folder.name]
    assert page.words["h1"] == [folder.name]
    assert len(page.all("script")) == 4
    assert page.all("b") == []
    # plotly has a markup of its own, in which a name may not speak either.
    names = {curve["name"] for curve in page.figures["Loss over steps, nats per token"]["data"]}
    assert names == {html.escape(folder.name)}
    assert page.runs[folder.name]["config"]["model"]["path"] == "</script>"


def test_many_long_runs_keep_their_peaks_and_stay_below_two_megabytes(report, tmp_path):
    folders = []
    for place in range(4):
        lines = [line_of(k, loss=2 + math.sin(k * k), seconds=0.2 + k % 7 / 100)
                 for k in range(1, 4001)]  # fmt: skip
        lines[1234]["loss"] = 50.0 + place
        folders.append(write_run(tmp_path / f"run{place}", lines))
    page = report(*folders)
    assert len(page.source.encode()) - len(get_plotlyjs().encode()) < 3 << 20
    lines = page.figures["Loss over steps, nats per token"]["data"]
    behind = [line for line in lines if line["hoverinfo"] == "skip"]
    assert len(behind) == len(lines) - len(behind) == 4
    assert {line["hovertemplate"] for line in behind} == {""}  # One would show them at the mouse.
    for place, run in enumerate(page.runs.values()):
        assert all(len(curve["value"]) <= 1000 for curve in run["curves"].values())
        loss = run["curves"]["loss"]
        assert loss["step"] == sorted(set(loss["step"]))
        assert (loss["step"][0], loss["step"][-1]) == (1, 4000)
        assert loss["value"][loss["step"].index(1235)] == max(loss["value"]) == 50.0 + place
        assert min(loss["value"]) == pytest.approx(2 + min(math.sin(k * k) for k in range(1, 4001)))


# ---- Errors ----


def test_what_is_no_run_is_refused_in_one_line_and_nothing_is_written(sluiceway, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("dear")
    write_run(tmp_path / "unbegun", [])
    write_run(tmp_path / "good", [line_of(1)])
    write_run(tmp_path / "comparing", [])
    write_run(tmp_path / "comparing" / "native", [line_of(1)])
    bad = write_run(tmp_path / "bad", [line_of(1)])
    (bad / "config.yaml").write_text("model: {path: m\ntrain: [\n")
    half = write_run(tmp_path / "half", [])
    (half / "metrics.jsonl").write_text('{"step": 1, "lo')
    cases = [
        (["none"], "none: is not a folder, expected the folder of a run"),
        (["file"], "file: is not a folder"),
        (["empty"], "empty: has no config.yaml, expected the folder of a run"),
        (["good", "empty"], "empty: has no config.yaml"),
        (["unbegun"], "unbegun: metrics.jsonl has no line, expected at least one"),
        (["comparing"], "metrics.jsonl has no line, expected at least one; try comparing/native"),
        (["half"], "half: metrics.jsonl has no whole line"),
        (["bad"], "config.yaml:2: not YAML"),
        (["good", "--out", "empty"], "empty: the report cannot be written, it is a folder"),
        (["good", "--out", "no/such/x.html"], "x.html: the report cannot be written, No such file"),
        ([], "Missing argument 'DIR...'"),
    ]
    before = sorted(tmp_path.rglob("*"))
    for arguments, words in cases:
        outcome = sluiceway("report", *arguments, cwd=tmp_path)
        assert_short_error(outcome, 2, words)
        assert len(outcome.err.splitlines()) == 1, outcome.err
        assert outcome.out == ""
    assert sorted(tmp_path.rglob("*")) == before


def test_report_replaces_an_older_one(sluiceway, tmp_path):
    folder = write_run(tmp_path / "run", [line_of(1)])
    (folder / "report.html").write_text("old")
    assert sluiceway("report", folder).code == 0
    assert Page(folder / "report.html").words["h1"] == ["run"]
    assert {path.name for path in folder.iterdir()} == {
        "config.yaml", "metrics.jsonl", "report.html"
    }  # fmt: skip
