"""The report: its numbers are those of the run folders; awkward folders get a page or a line."""

from __future__ import annotations

import fcntl
import json
import math
import re
import shutil
import subprocess
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from conftest import assert_short_error, read_lines
from sluiceway.report import units
from sluiceway.report.axis import make_axis

VOID = {"meta", "br", "hr", "img", "input", "link"}
SECTIONS = ["Summary", "Loss", "Throughput", "Bytes per link and step", "Peak memory per tier",
            "Learning rate, gradient norm, skipped steps", "One step", "Config",
            "Versions and machine"]  # fmt: skip


class Page(HTMLParser):
    """A report as a reader and a machine get it; refuses elements that are not closed in order."""

    def __init__(self, path: Path) -> None:
        super().__init__(convert_charrefs=True)
        self.source = path.read_text()
        self.elements: list[tuple[str, dict]] = []
        self.words: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(self.source)
        self.close()
        assert self._open == []
        self.data = json.loads(self.words["script"][0], parse_constant=pytest.fail)
        self.runs = {run["name"]: run for run in self.data["runs"]}

    def handle_starttag(self, tag, attributes):
        assert len({name for name, _ in attributes}) == len(attributes), (tag, attributes)
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if self._open:
            self.words.setdefault(self._open[-1], []).append(data)

    def all(self, tag: str) -> list[dict]:
        return [attributes for name, attributes in self.elements if name == tag]

    def points(self, chart: str, look: str) -> list[tuple[int, int]]:
        """Points of the first curve of a look in a chart, in tenths, from the upper left."""
        svg = self.source.partition(f"<figcaption>{chart}")[2].partition("</figure>")[0]
        path = re.search(rf'class="{look} c\d+" transform="scale\(.1\)" d="([^"]*)"', svg).group(1)
        points = []
        for stretch in path.split("M")[1:]:
            first, _, rest = stretch.partition("l")
            numbers = [int(word) for word in rest.split()]
            points.append(tuple(map(int, first.split())))
            for dx, dy in list(zip(numbers[::2], numbers[1::2], strict=True))[1:]:
                points.append((points[-1][0] + dx, points[-1][1] + dy))
        return points


def line_of(step: int, **fields) -> dict:
    """A line of metrics of a step that took a quarter of a second."""
    return {
        "step": step, "loss": 3.0 - 0.1 * step, "lr": 0.001, "grad_norm": 1.5, "tokens": 64,
        "skipped": 0, "loss_scale": 1.0, "seconds": 0.25, "stall_seconds": 0.025,
        "bytes": {"d2h": 4096, "h2d": 2048, "disk_read": 0, "disk_written": 0},
        "peak_bytes": {"device": 3 << 20, "host": 2 << 20, "pinned": 1 << 20, "process": 9 << 20},
    } | fields  # fmt: skip


def write_run(folder: Path, lines: list[dict], events: list[dict] | None = None, **config) -> Path:
    """Write a run folder as a process that was killed leaves it."""
    folder.mkdir(parents=True)
    tree = {"model": {"path": "m"}, "train": {"steps": 100}, "engine": {"kind": "native"}, **config}
    (folder / "config.yaml").write_text(yaml.safe_dump(tree))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if events is not None:
        (folder / "trace.json").write_text(json.dumps({"traceEvents": events}))
    return folder


@pytest.fixture(scope="module")
def reported(sluiceway, finished, tmp_path_factory):
    """Report on a copy of the finished run; (page, folder, outcome)."""
    folder = tmp_path_factory.mktemp("reported") / "out"
    shutil.copytree(finished[0], folder, ignore=shutil.ignore_patterns("checkpoint"))
    outcome = sluiceway("report", folder)
    assert outcome.code == 0, outcome.err
    return Page(folder / "report.html"), folder, outcome


@pytest.fixture
def report(sluiceway, tmp_path):
    """Report on folders and parse the page."""

    def run(*folders: Path) -> Page:
        outcome = sluiceway("report", *folders, "--out", tmp_path / "page.html")
        assert outcome.code == 0, outcome.err
        assert outcome.err == ""
        return Page(tmp_path / "page.html")

    return run


# ---- A run that is whole ----


def test_one_run_gets_its_page_in_its_folder_with_what_it_was_compared_with(reported):
    page, folder, outcome = reported
    assert outcome.out.startswith(f"{folder / 'report.html'}: out, out/native, ")
    assert list(page.runs) == ["out", "out/native"]
    assert {run["status"] for run in page.runs.values()} == {"done"}
    assert [run["notes"] for run in page.runs.values()] == [[], []]


@pytest.mark.parametrize(("name", "inner"), [("out", "."), ("out/native", "native")])
def test_embedded_curves_are_the_lines_of_metrics(reported, name, inner):
    page, folder, _ = reported
    lines = read_lines(folder / inner)
    steps, curves = lines[1:], page.runs[name]["curves"]
    for key in ("loss", "lr", "grad_norm", "seconds"):
        assert curves[key]["step"] == [line["step"] for line in steps]
        assert curves[key]["value"] == pytest.approx([line[key] for line in steps])
    rates = [line["tokens"] / line["seconds"] for line in steps]
    assert curves["tokens_per_second"]["value"] == pytest.approx(rates)
    assert curves["d2h"]["value"] == [line["bytes"]["d2h"] for line in steps]
    held = [line for line in lines if "eval_loss" in line]
    assert curves["eval_loss"]["step"] == [line["step"] for line in held] == [0, 2, 4, 6]
    assert curves["eval_loss"]["value"] == pytest.approx([line["eval_loss"] for line in held])
    tokens = [sum(line["tokens"] for line in steps[: line["step"]]) for line in held]
    assert curves["eval_loss"]["tokens"] == tokens
    seconds = sum(line["seconds"] for line in steps)
    assert curves["loss"]["seconds"][-1] == pytest.approx(seconds)


@pytest.mark.parametrize(("name", "inner"), [("out", "."), ("out/native", "native")])
def test_figures_are_those_of_the_summary(reported, name, inner):
    page, folder, _ = reported
    summary = json.loads((folder / inner / "summary.json").read_text())
    figures = page.runs[name]["figures"]
    assert {"median_step_seconds", "tokens_per_second", "final_eval_loss"} <= figures.keys()
    assert figures == {key: summary[key] for key in figures}
    assert page.runs[name]["summary"] == summary


def test_tables_show_losses_ratio_engine_precision_versions_machine_and_commit(reported):
    page, folder, _ = reported
    summary = json.loads((folder / "summary.json").read_text())
    cells = page.words["td"]
    for text in (
        f"{summary['first_eval_loss']:.4f}",
        f"{summary['final_eval_loss']:.4f}",
        f"{summary['native_ratio']:.3f} x",
        units.seconds(summary["median_step_seconds"]),
        units.size(summary["peak_bytes"]["device"]),
        "native",
        summary["versions"]["torch"],
        summary["config_hash"],
        (summary["commit"] or "")[:12] or summary["versions"]["python"],
    ):
        assert text in cells
    assert any(text.startswith("weights fp32, autocast off") for text in cells)
    assert any(summary["machine"]["processor"] in text for text in cells)


def test_drawn_points_stand_where_the_losses_are(reported):
    page, folder, _ = reported
    losses = [line["loss"] for line in read_lines(folder)[1:]]
    points = page.points("Loss over steps", "line")
    assert len(points) == len(losses) == 6
    widths = [b[0] - a[0] for a, b in pairwise(points)]
    assert max(widths) - min(widths) <= 1
    slope = (points[-1][1] - points[0][1]) / (losses[-1] - losses[0])
    assert slope < 0  # A larger loss stands higher, and SVG counts downwards.
    for (_, y), loss in zip(points, losses, strict=True):
        assert y == pytest.approx(points[0][1] + slope * (loss - losses[0]), abs=2)


def test_page_has_headings_named_charts_and_table_headers(reported):
    page, _, _ = reported
    assert page.words["h1"] == ["out, out/native"]
    assert page.words["h2"] == SECTIONS
    pictures = [svg for svg in page.all("svg") if svg.get("aria-hidden") != "true"]
    assert len(pictures) >= 9
    assert all(svg["role"] == "img" and svg["aria-label"] for svg in pictures)
    assert all(th.get("scope") in ("row", "col") for th in page.all("th"))
    assert len(page.words["caption"]) == len(page.all("table"))
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(set(ids)) == len(ids)
    assert {a["href"] for a in page.all("a")} <= {f"#{name}" for name in ids}


def test_page_loads_nothing(reported):
    page, _, _ = reported
    for tag, attributes in page.elements:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base")
        assert not {"src", "srcset", "xlink:href", "onload", "onclick"} & attributes.keys()
    assert [script["type"] for script in page.all("script")] == ["application/json"]
    assert re.search(r"https?://|url\(|@import", page.source) is None
    assert "default-src 'none'" in page.all("meta")[1]["content"]


def test_json_has_the_figures_without_the_curves(sluiceway, reported, tmp_path):
    page, folder, _ = reported
    out = tmp_path / "x.html"
    outcome = sluiceway("report", folder, "--out", out, "--json")
    told = json.loads(outcome.out)
    assert told["report"] == str(out)
    assert told["bytes"] == out.stat().st_size
    assert [run["name"] for run in told["runs"]] == list(page.runs)
    assert told["runs"][0]["figures"] == page.runs["out"]["figures"]


def test_python_m_sluiceway_reports_on_several_where_it_stands(
    python_m_sluiceway, reported, tmp_path
):
    outcome = python_m_sluiceway("report", reported[1], reported[1] / "native", cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    # The comparison comes with its run, and is shown once.
    assert list(Page(tmp_path / "report.html").runs) == ["out", "out/native"]


# ---- The timeline ----


def _trace(durations: list[float]) -> list[dict]:
    """Steps one after the other, in ms; the work of each lies at the same share of it."""
    rows = ["apply", "loop", "d2h", "host", "h2d", "device"]
    events = [
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": tid, "args": {"name": name}}
        for tid, name in enumerate(rows, start=1)
    ]
    work = {
        "loop": [("forward", 0, 0.4, 0), ("backward", 0.4, 0.9, 0)],
        "device": [("forward", 0, 0.4, 0), ("backward", 0.4, 0.8, 0), ("compress", 0.5, 0.6, 0),
                   ("stall", 0.8, 1.0, 0)],
        "d2h": [("w0", 0.6, 0.7, 1024), ("w1", 0.7, 0.75, 1024)],
        "host": [("w0", 0.75, 1.2, 0)],
    }  # fmt: skip
    now = 0.0
    for number, milliseconds in enumerate(durations, start=1):
        event = {"ph": "X", "pid": 1, "ts": now, "dur": 1e3 * milliseconds}
        events.append(event | {"name": f"step {number}", "tid": rows.index("loop") + 1})
        for row, ranges in work.items():
            for name, begin, end, count in ranges:
                event = {"ph": "X", "pid": 1, "tid": rows.index(row) + 1, "name": name}
                event["ts"] = now + 1e3 * milliseconds * begin
                event |= {"dur": 1e3 * milliseconds * (end - begin), "args": {"bytes": count}}
                events.append(event)
        now += 1e3 * milliseconds
    return events


def test_timeline_is_an_ordinary_step_from_the_middle_lane_by_lane(report, tmp_path):
    events = _trace([500, 50, 100, 104, 700, 101, 102, 103, 1])
    folder = write_run(tmp_path / "run", [line_of(k) for k in range(1, 10)], events)
    page = report(folder)
    step = page.runs["run"]["step"]
    # Of steps 4 to 6, which take 104, 700 and 101 ms, the one of median length.
    assert (step["name"], step["seconds"]) == ("step 4", pytest.approx(0.104))
    assert list(step["lanes"]) == ["loop", "device", "d2h", "host", "h2d", "apply"]
    busy = {name: lane["busy_seconds"] / 0.104 for name, lane in step["lanes"].items()}
    expected = {"loop": 0.9, "device": 0.8, "d2h": 0.15, "h2d": 0, "apply": 0}
    # The host ends what step 3 (100 ms) gave it, and begins on its own.
    expected["host"] = 0.25 + 0.2 * 100 / 104
    assert busy == pytest.approx(expected)
    assert step["lanes"]["d2h"] == {
        "busy_seconds": pytest.approx(0.0156), "ranges": 2, "bytes": 2048
    }  # fmt: skip
    titles = page.words["title"]
    assert "compress: 10.4 ms at 52 ms" in titles
    assert "w0: 10.4 ms at 62.4 ms, 1 KiB" in titles


def test_trace_of_one_event_a_line_is_read_up_to_where_it_was_cut_off(report, tmp_path):
    folder = write_run(tmp_path / "run", [line_of(1), line_of(2)])
    events = [json.dumps(event) for event in _trace([10, 10])]
    text = '{"traceEvents":[\n' + ",\n".join(events) + ',\n{"name":"forw'
    (folder / "trace.json").write_text(text)
    run = report(folder).runs["run"]
    assert run["step"]["name"] == "step 1"
    assert run["step"]["lanes"]["device"]["ranges"] == 4


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("", "trace.json has no step"),
        ('{"traceEvents": []}', "trace.json has no step"),
        ('{"traceEvents": [{"ph": "X", "name": 7}]}', "trace.json has no step"),
        ('{"traceEvents": [{"ph": "X", "name": 7, "tid": "step"}]}', "trace.json cannot be read"),
        ('{"traceEvents": [{"ph": "X", "name": "step 1"}]}', "trace.json cannot be read"),
    ],
)
def test_trace_without_a_step_is_noted_and_the_rest_is_drawn(report, tmp_path, text, note):
    folder = write_run(tmp_path / "run", [line_of(1), line_of(2)])
    (folder / "trace.json").write_text(text)
    page = report(folder)
    assert any(said.startswith(note) for said in page.runs["run"]["notes"])
    assert page.runs["run"]["step"] is None
    assert page.runs["run"]["curves"]["loss"]["value"] == pytest.approx([2.9, 2.8])
    assert any("No run has a trace" in text for text in page.words["p"])


# ---- Awkward folders ----


def test_half_written_last_line_is_left_out_and_noted(report, tmp_path):
    folder = write_run(tmp_path / "run", [line_of(1), line_of(2)])
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "loss": 2.')
    page = report(folder)
    assert page.runs["run"]["curves"]["loss"]["step"] == [1, 2]
    note = "the last line of metrics.jsonl is half-written (22 bytes), left out"
    assert note in page.runs["run"]["notes"]
    assert f"run: {note}" in page.words["li"]


def test_lines_that_are_no_metrics_are_left_out_and_named(report, tmp_path):
    folder = write_run(tmp_path / "run", [line_of(1)])
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(b'\xff\xfe\n[1]\n{"loss": 1}\n' + json.dumps(line_of(2)).encode() + b"\n")
    run = report(folder).runs["run"]
    assert run["curves"]["loss"]["step"] == [1, 2]
    assert "metrics.jsonl: 3 lines are not metrics, left out: line 2, 3, 4" in run["notes"]


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
    assert figures["peak_bytes"]["device"] == 3 << 20
    assert "3 MiB" in page.words["td"]


def test_killed_run_is_shown_as_stopped(report, tmp_path):
    run = report(write_run(tmp_path / "run", [line_of(1)])).runs["run"]
    assert run["status"] == "stopped"
    assert any("ended from outside" in note for note in run["notes"])


def test_summary_of_an_earlier_sitting_gives_no_figures(report, tmp_path):
    folder = write_run(tmp_path / "run", [line_of(k) for k in range(1, 6)])
    old = {"status": "interrupted", "steps": 3, "final_loss": 9.0, "commit": "abc",
           "median_step_seconds": 7.0, "native": {"median_step_seconds": 0.2}}  # fmt: skip
    (folder / "summary.json").write_text(json.dumps(old))
    run = report(folder).runs["run"]
    assert run["status"] == "stopped"
    assert any("of step 3, metrics.jsonl of step 5" in note for note in run["notes"])
    assert run["figures"]["final_loss"] == pytest.approx(2.5)
    assert run["figures"]["native_ratio"] == pytest.approx(0.25 / 0.2)
    assert run["summary"]["commit"] == "abc"


def test_summary_that_does_not_parse_is_noted(report, tmp_path):
    folder = write_run(tmp_path / "run", [line_of(1)])
    (folder / "summary.json").write_text('{"status": "do')
    run = report(folder).runs["run"]
    assert "summary.json does not parse, left out" in run["notes"]
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
    assert len(page.points("Loss over steps", "line")) == 7
    assert len(page.points("Skipped steps so far", "line")) == 8


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
    points = page.points("Loss over steps", "line")
    rises = [a[1] - b[1] for a, b in pairwise(points)]
    assert max(rises) - min(rises) <= 1


# ---- Several runs ----


def test_runs_of_different_length_share_axes_and_show_the_keys_that_differ(report, tmp_path):
    long = write_run(tmp_path / "long", [line_of(k) for k in range(1, 11)], train={"lr": 0.01})
    short = write_run(tmp_path / "short", [line_of(k) for k in range(1, 6)], train={"lr": 0.02})
    page = report(short, long)
    assert list(page.runs) == ["short", "long"]
    first = page.points("Loss over steps", "line")  # The short run's.
    assert len(first) == 5
    table = page.source.partition("Keys that differ between the runs")[2].partition("</table>")[0]
    assert re.findall(r'<th scope="row">(.*?)</th>', table) == ["train.lr"]
    assert re.findall(r"<td>(.*?)</td>", table) == ["0.02", "0.01"]
    legend = [name for name in page.words["li"] if name in ("short", "long")]
    assert legend == ["short", "long"]


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
    assert len(page.all("script")) == 1
    assert page.runs[folder.name]["config"]["model"]["path"] == "</script>"


def test_many_long_runs_keep_their_peaks_and_stay_below_two_megabytes(report, tmp_path):
    folders = []
    for place in range(4):
        lines = [line_of(k, loss=2 + math.sin(k * k), seconds=0.2 + k % 7 / 100)
                 for k in range(1, 4001)]  # fmt: skip
        lines[1234]["loss"] = 50.0 + place
        folders.append(write_run(tmp_path / f"run{place}", lines))
    page = report(*folders)
    assert len(page.source.encode()) < 2 << 20
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


# ---- Numbers and axes ----


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (units.count, 512, "512"),
        (units.count, 12_345, "12\u202f345"),
        (units.count, 3_210_000, "3.21 M"),
        (units.rate, 12_812.6, "12\u202f813/s"),
        (units.number, 3.14159, "3.142"),
        (units.number, 2.5e-7, "2.5e-7"),
        (units.number, 0, "0"),
        (units.seconds, 0.00085, "850 µs"),
        (units.seconds, 0.0123, "12.3 ms"),
        (units.seconds, 119, "119 s"),
        (units.seconds, 250, "4 min 10 s"),
        (units.seconds, 3780, "1 h 03 min"),
        (units.seconds, 7200, "2 h"),
        (units.share, 0.1234, "12.3 %"),
        (units.size, 268435456, "256 MiB"),
        (units.seconds, None, "-"),
    ],
)
def test_numbers_have_units_and_few_digits(write, value, text):
    assert write(value) == text


@pytest.mark.parametrize(
    ("text", "from_zero"),
    [
        (units.number, False),
        *((text, True) for text in (units.count, units.rate, units.number, units.seconds,
                                    units.share, units.size)),
    ],
)  # fmt: skip
def test_ticks_are_told_apart_and_lie_on_the_axis(text, from_zero):
    for power in range(0 if text is units.size else -6, 13):
        for low in (0.0, 1.0, 3.7, 9.99):
            for span in (0.0, 0.02, 0.3, 7.0, 60.0):
                values = [10.0**power * low, 10.0**power * (low + span)]
                axis = make_axis(values, text, from_zero=from_zero)
                ticks = [tick for tick, _ in axis.ticks]
                said = [word for _, word in axis.ticks]
                assert axis.low <= values[0] <= values[1] <= axis.high
                assert 1 <= len(ticks) <= 9, (values, ticks)
                assert ticks == sorted(set(ticks))
                assert len(set(said)) == len(said), (values, said)
                assert all(-1e-9 <= axis.share(tick) <= 1 + 1e-9 for tick in ticks)


# ---- In a browser ----


def _console(chromium: str, page: Path, picture: Path) -> list[str]:
    """Draw a page; return what it wrote to the console."""
    done = subprocess.run(
        [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
         "--enable-logging=stderr", "--window-size=1200,1600", f"--screenshot={picture}",
         f"--user-data-dir={picture.parent / 'profile'}", page.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def test_page_is_drawn_by_a_browser_without_a_complaint(reported, tmp_path):
    page, folder, _ = reported
    assert all(page.points(f"Loss over {x}", "line") for x in ("steps", "tokens", "wall-clock"))
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        return  # Without a browser, parsing is what can be checked.
    from PIL import Image

    picture = tmp_path / "page.png"
    assert _console(chromium, folder / "report.html", picture) == []
    colours = Image.open(picture).convert("RGB").getcolors(1 << 20)
    drawn = {colour: count for count, colour in colours}
    for run in ((0x00, 0x67, 0xA5), (0xC4, 0x4E, 0x00)):  # Curves of both runs.
        assert drawn.get(run, 0) > 200
    # The page's own policy would be heard if it loaded something.
    broken = tmp_path / "broken.html"
    broken.write_text(page.source.replace("<h1>", '<img src="http://127.0.0.1:9/x.png"><h1>'))
    assert _console(chromium, broken, picture) != []
