"""The report: what it shows is what the run folder has, and it shows it in any browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys

import plotly.graph_objects
import pytest
from conftest import Outcome, assert_short_error, read_lines
from plotly.offline import get_plotlyjs
from report_pages import Page, console_of, line_of, report_on, touched, write_run
from sluiceway.report import units

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
        f"{summary['data_share']:.1%}",
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
    steps, heights = zip(*page.points("Loss over steps"), strict=True)
    assert steps == (1, 2, 3, 4, 5, 6)
    assert heights == pytest.approx(losses, rel=1e-6)
    held = [line["step"] for line in read_lines(folder) if "eval_loss" in line]
    assert [x for x, _ in page.points("Loss over steps", "dash")] == held


def test_page_has_headings_named_charts_and_table_headers(reported):
    page, _, _ = reported
    assert page.words["h1"] == ["out, out/native"]
    assert page.words["h2"] == SECTIONS
    pictures = [div for div in page.all("div") if div.get("class") == "plot"]
    assert len(pictures) == len(page.figures) >= 9
    assert all(div["role"] == "img" and div["aria-label"] for div in pictures)
    words = pictures[0]["aria-label"]
    assert re.match(r"Loss over steps.*: out: [\d.]+ at step 1, [\d.]+ at step 6; ", words)
    assert re.search(r"; out, held out: [\d.]+ at step 0, [\d.]+ at step 6; ", words)
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
    *numbers, library, drawing = page.all("script")
    assert numbers == [{"type": "application/json", "id": name} for name in ("data", "figures")]
    assert library == drawing == {"nonce": library["nonce"]}
    rest = page.source.replace(get_plotlyjs(), "")
    assert len(page.source) - len(rest) > 1 << 20  # It is there, once.
    assert re.search(r"https?://|url\(|@import", rest) is None
    policy = (
        f"default-src 'none'; script-src 'nonce-{library['nonce']}'; "
        "style-src 'unsafe-inline'; img-src data:"
    )
    assert page.all("meta")[1]["content"] == policy


def test_figures_have_only_what_plotly_knows(reported):
    page, _, _ = reported
    assert len(page.figures) > 9
    for figure in page.figures.values():
        plotly.graph_objects.Figure(figure)  # Raises where it does not.


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
    (figure,) = (figure for title, figure in page.figures.items() if "step 4" in title)
    ranges = {(lane, text) for bars in figure["data"]
              for lane, text in zip(bars["y"], bars["hovertext"], strict=True)}  # fmt: skip
    assert ("device", "compress: 10.4 ms at 52 ms") in ranges
    assert ("d2h", "w0: 10.4 ms at 62.4 ms, 1 KiB") in ranges
    assert figure["layout"]["yaxis"]["categoryarray"] == list(step["lanes"])


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
        (units.seconds, 0, "0 s"),
        (units.seconds, 0.00085, "850 µs"),
        (units.seconds, 0.0123, "12.3 ms"),
        (units.seconds, 119, "119 s"),
        (units.seconds, 270, "4.5 min"),
        (units.seconds, 7200, "2 h"),
        (units.size, 268435456, "256 MiB"),
    ],
)
def test_numbers_have_units_and_few_digits(write, value, text):
    assert write(value) == text


@pytest.mark.parametrize(
    ("unit", "most", "scale"),
    [
        ("B", 0, (1, " B")),
        ("B", 3 << 20, (1 << 20, " MiB")),
        ("B", 1 << 60, (1 << 40, " TiB")),
        ("s", 0.25, (1e-3, " ms")),
        ("s", 7200, (3600, " h")),
        ("%", 0.5, (0.01, "%")),
        ("/s", 12e3, (1, "/s")),
    ],
)
def test_an_axis_has_the_unit_of_its_largest_value(unit, most, scale):
    assert units.axis_unit(unit, most) == scale


# ---- Without the extra ----


_WITHOUT_PLOTLY = """
import sys

class Missing:
    def find_spec(self, name, *_):
        if name == "plotly":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from sluiceway.commands.cli import main
main()
"""


def test_report_without_plotly_says_how_to_get_it(tmp_path):
    folder = write_run(tmp_path / "run", [line_of(1)])
    command = [sys.executable, "-c", _WITHOUT_PLOTLY, "report", folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    outcome = Outcome(done.returncode, done.stdout, done.stderr)
    said = "report: plotly draws the page and is not installed"
    assert_short_error(outcome, 2, said, "; run: pip install 'sluiceway[report]'")
    assert not (folder / "report.html").exists()


# ---- In a browser ----


# Moves the mouse over the first chart, then drags across half of it.
_HANDS = """
  const plot = document.querySelector(".plot"), area = plot.querySelector(".nsewdrag");
  const box = area.getBoundingClientRect();
  const mouse = (type, share, where) => where.dispatchEvent(new MouseEvent(type, {bubbles: true,
    clientX: box.x + share * box.width, clientY: box.y + box.height / 2}));
  const wait = milliseconds => new Promise(done => setTimeout(done, milliseconds));
  const cover = () => document.querySelector(".dragcover") || area;
  const ends = () => [...plot._fullLayout.xaxis.range];
  const told = {curves: plot.querySelectorAll("path.js-line").length, whole: ends()};
  mouse("mousemove", .5, area);
  await wait(500);
  told.hover = [...plot.querySelectorAll(".hoverlayer text")].map(text => text.textContent);
  mouse("mousedown", .25, area);
  await wait(100);
  for (const share of [.4, .75]) mouse("mousemove", share, cover());
  mouse("mouseup", .75, cover());
  await wait(500);
  told.zoomed = ends();
  return told;
"""


def test_page_is_drawn_by_a_browser_without_a_complaint(reported, tmp_path):
    page, folder, _ = reported
    from PIL import Image

    picture = tmp_path / "page.png"
    assert console_of(folder / "report.html", picture) == []
    colours = Image.open(picture).convert("RGB").getcolors(1 << 20)
    drawn = {colour: count for count, colour in colours}
    # The second run's curves lie on top of the first's, which may be hidden.
    assert drawn.get((0xCF, 0x5A, 0x0A), 0) > 600
    # The page's own policy would be heard if it loaded something, or ran the script of a stranger.
    broken = tmp_path / "broken.html"
    strange = '<img src="http://127.0.0.1:9/x.png"><script>console.log("ran")</script><h1>'
    broken.write_text(page.source.replace("<h1>", strange))
    said = " ".join(console_of(broken, picture))
    assert "x.png" in said
    assert "script-src" in said
    assert '"ran"' not in said


def test_reader_sees_the_values_at_the_mouse_and_zooms(reported, tmp_path):
    page, folder, _ = reported
    shutil.copy(folder / "report.html", tmp_path / "page.html")
    told = touched(tmp_path / "page.html", _HANDS)
    assert told["curves"] == len(page.figures["Loss over steps, nats per token"]["data"])
    assert any(re.fullmatch(r"out : \d\.\d+", text) for text in told["hover"]), told
    assert any(re.fullmatch(r"out/native : \d\.\d+", text) for text in told["hover"]), told
    assert told["hover"][0] == "3"  # The step, at which no loss is held out.
    assert len(told["hover"]) == 3, told
    (low, high), (left, right) = told["whole"], told["zoomed"]
    assert right - left == pytest.approx((high - low) / 2, rel=0.1)
    assert low < left < right < high
