"""The report: what it shows is what the run folder has, and it shows it in any browser."""

from __future__ import annotations

import json
import re
import shutil
from itertools import pairwise

import pytest
from conftest import read_lines
from report_pages import Page, console_of, line_of, report_on, write_run
from sluiceway.report import units
from sluiceway.report.axis import make_axis

SECTIONS = ["Summary", "Loss", "Throughput", "Bytes per link and step", "Peak memory per tier",
            "Learning rate, gradient norm, skipped steps", "One step", "Config",
            "Versions and machine"]  # fmt: skip


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
    return lambda *folders: report_on(sluiceway, folders, tmp_path / "page.html")


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
    waits = [line["data_seconds"] / line["seconds"] for line in steps]
    assert curves["data_share"]["value"] == pytest.approx(waits)
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
        units.share(summary["data_share"]),
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


# ---- What one engine alone has ----


def test_codecs_and_own_metrics_come_from_the_run_whatever_its_engine(report, tmp_path):
    lines = [line_of(k, new={"g": 0.5 * k, "directions": 1, "why": "x"}) for k in (1, 2, 3)]
    folder = write_run(tmp_path / "run", lines, engine={"kind": "new"})
    summary = {
        "status": "done",
        "steps": 3,
        "engine": "new",
        "codecs": [
            {"codec": "svd", "weights": 3},
            {"codec": "identity", "weights": 1},
            {"codec": "svd", "weights": 2},
        ],
        "metrics": {"new.g": "Size of the step"},
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    page = report(folder)
    assert page.runs["run"]["curves"]["new.g"]["value"] == [0.5, 1.0, 1.5]
    assert "Size of the step" in page.words["figcaption"]
    # What never changes, or is no number, has no chart.
    assert not [title for title in page.words["figcaption"] if title.startswith("new: ")]
    assert "svd for 5 weights, identity for 1 weights" in page.words["td"]


def test_an_own_metric_of_several_numbers_is_their_root_mean_square(report, tmp_path):
    several = [[3.0, -4.0], [-2.0], [], [1.0, None], [1.0, "x"], [6, 8, 0.0]]
    lines = [line_of(k, new={"g": g}) for k, g in enumerate(several, start=1)]
    curve = report(write_run(tmp_path / "run", lines)).runs["run"]["curves"]["new.g"]
    assert curve["step"] == [1, 2, 6]
    assert curve["value"] == pytest.approx([12.5**0.5, 2.0, (100 / 3) ** 0.5])


def test_own_metric_of_a_run_that_goes_on_is_called_what_its_line_calls_it(report, tmp_path):
    lines = [line_of(k, subspace={"bias_mean": 1 / k}) for k in (1, 2)]
    page = report(write_run(tmp_path / "run", lines))
    assert "subspace: bias mean" in page.words["figcaption"]


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
        (
            '{"traceEvents": [{"ph": "X", "name": 7, "tid": "step"}]}',
            "no timeline is drawn: cannot read trace.json",
        ),
        (
            '{"traceEvents": [{"ph": "X", "name": "step 1"}]}',
            "no timeline is drawn: cannot read trace.json",
        ),
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


def test_page_is_drawn_by_a_browser_without_a_complaint(reported, tmp_path):
    page, folder, _ = reported
    assert all(page.points(f"Loss over {x}", "line") for x in ("steps", "tokens", "wall-clock"))
    from PIL import Image

    picture = tmp_path / "page.png"
    assert console_of(folder / "report.html", picture) == []
    colours = Image.open(picture).convert("RGB").getcolors(1 << 20)
    drawn = {colour: count for count, colour in colours}
    for run in ((0x00, 0x67, 0xA5), (0xC4, 0x4E, 0x00)):  # Curves of both runs.
        assert drawn.get(run, 0) > 200
    # The page's own policy would be heard if it loaded something.
    broken = tmp_path / "broken.html"
    broken.write_text(page.source.replace("<h1>", '<img src="http://127.0.0.1:9/x.png"><h1>'))
    assert console_of(broken, picture) != []
