"""Progress of a run on a terminal."""

from __future__ import annotations

import io

import sluiceway as sw
from conftest import read_lines
from report_pages import line_of
from sluiceway.run.progress import Progress
from small_models import make
from twins import train


class Terminal(io.StringIO):
    """A text that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_terminal_gets_one_table_with_a_line_for_each_figure(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    with Progress("subspace", 3, 0.125, out) as progress:
        for step in (1, 2, 3):
            progress(line_of(step, eval_loss=0.0))
        figures = progress.figures()
    last = out.getvalue().rpartition("subspace\n")[2].splitlines()
    rows = dict(line.split(maxsplit=1) for line in last if len(line.split()) > 1)
    assert rows["step"] == figures["step"] == "3/3"
    assert rows["held-out"] == "0.0000"
    assert rows["native"] == "50%"
    assert rows["d2h/h2d"] == "4 KiB/2 KiB"
    starts = {line.index(line.split(maxsplit=1)[1]) for line in last if len(line.split()) > 1}
    assert len(starts) == 1


def test_wear_of_a_disk_is_of_all_that_was_written_in_all_steps_of_the_sitting():
    with Progress("zo", 40, None, io.StringIO()) as progress:
        progress(line_of(1))
        assert "wear" not in progress.figures()  # There is no disk.
        for step in range(2, 31):  # More of them than rates are averaged over.
            crossed = {"disk_read": 10**9, "disk_written": 2 * 10**6, "consolidated": 0}
            if step == 3:
                crossed["consolidated"] = 442 * 10**6
            progress({**line_of(step), "seconds": 0.5, "bytes": crossed})
        figures = progress.figures()
    written, seconds = 29 * 2e6 + 442e6, line_of(1)["seconds"] + 29 * 0.5
    daily = written / seconds * 86400 / 1e12
    assert figures["wear"] == f"{daily:.3g} TB/day"
    assert 2.5 < daily < 3.0
    assert figures["disk r/w"] == "2.00/0.00 GB/s"
    assert list(figures)[list(figures).index("new bases") + 1] == "wear"
    # A base that is only read wears nothing.
    with Progress("zo", 2, None, io.StringIO()) as progress:
        progress({**line_of(1), "bytes": {"disk_read": 10**9, "disk_written": 0}})
        assert progress.figures()["wear"] == "0 TB/day"


def test_calibration_is_said_as_it_goes_on_and_is_no_part_of_what_is_left(monkeypatch):
    clock = iter([100.0, 103.0, 106.0, 107.0])
    out = io.StringIO()
    with Progress("subspace", 10, None, out) as progress:
        with monkeypatch.context() as context:
            context.setattr("sluiceway.run.progress.time.monotonic", lambda: next(clock))
            for done in range(4):
                progress.calibrating(done, 28)
        assert out.getvalue() == "subspace: calibrating: 2 of 28\n"
        progress({**line_of(1), "seconds": 9.5, "learn_seconds": 9.0})
        figures = progress.figures()
        assert (figures["s/step"], figures["ETA"]) == ("0.500", "0:04")
        assert figures["calibration"] == "9.0 s"
        # A refresh of later steps is one of many: it counts.
        progress({**line_of(2), "seconds": 2.5, "learn_seconds": 2.0})
        assert progress.figures()["s/step"] == "1.500"


def test_optimizer_tells_how_many_projectors_are_fitted():
    model, told = make(), []
    with sw.SubspaceAdamW(model, codec="svd") as opt:
        opt.watch_calibration(lambda done, wanted: told.append((done, wanted)))
        train(model, opt, 1)
        assert told == [(0, 4), (1, 4), (2, 4), (3, 4), (4, 4)]
        state = opt.state_dict()
        train(model, opt, 1)
    with sw.SubspaceAdamW(model, codec="svd") as opt:
        opt.watch_calibration(lambda done, wanted: told.append((done, wanted)))
        opt.load_state_dict(state)
        train(model, opt, 1)
    assert len(told) == 5


def test_learn_seconds_of_a_run_are_what_its_progress_sets_apart(
    sluiceway, small_model, write_config, tmp_path
):
    engine = {"kind": "subspace", "codec": "svd"}
    config = write_config(small_model, engine=engine, train={"steps": 3})
    outcome = sluiceway("train", config, "--out", tmp_path / "out")
    assert outcome.code == 0, outcome.err
    learned = [line.get("learn_seconds", 0) for line in read_lines(tmp_path / "out")[1:]]
    assert learned[0] > 0
    assert learned[1:] == [0, 0]
    assert f"calibration {learned[0]:.1f} s" in outcome.out
