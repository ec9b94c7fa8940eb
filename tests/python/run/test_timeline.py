"""The loop's ranges: in a trace of their own, or in that of an engine which has one."""

from __future__ import annotations

import contextlib
import json
import os

import pytest
import sluiceway as sw
from sluiceway import _core
from sluiceway.run.timeline import Timeline
from small_models import loss_of, make
from zo_models import decoder, zo_ids, zo_loss


def ranges_of(path):
    """Name, begin and end of every range, by the row it is in."""
    events = json.loads(path.read_text())["traceEvents"]
    rows = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    found: dict[str, list] = {}
    for e in events:
        if e["ph"] == "X":
            found.setdefault(rows[e["tid"]], []).append((e["name"], e["ts"], e["ts"] + e["dur"]))
    return found


def test_ranges_lie_inside_one_another_on_the_runtimes_clock(tmp_path):
    timeline, before = Timeline(tmp_path / "trace.json"), _core.now_us()
    with timeline.range("step 1"), timeline.range("forward"):
        pass
    timeline.write()
    (step, forward) = ranges_of(tmp_path / "trace.json")["loop"]
    assert (step[0], forward[0]) == ("step 1", "forward")
    assert before <= step[1] <= forward[1] <= forward[2] <= step[2] <= _core.now_us()


def test_engine_with_a_trace_gets_the_ranges_and_the_file_is_its_own(tmp_path):
    class Trace:
        def __init__(self):
            self.ranges = []

        def add_range(self, row, name, began_us, ended_us):
            self.ranges.append((row, name, began_us <= ended_us))

    trace = Trace()
    timeline = Timeline(tmp_path / "trace.json", trace)
    with timeline.range("save"):
        pass
    timeline.write()
    assert trace.ranges == [("loop", "save", True)]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("hands_over", [True, False])
def test_run_without_a_trace_writes_none(tmp_path, hands_over):
    # pytest.fail has no add_range: it would not be asked.
    timeline = Timeline(None, pytest.fail if hands_over else None)
    with timeline.range("step 1"):
        pass
    timeline.write()
    assert list(tmp_path.iterdir()) == []


def test_ranges_that_do_not_fit_are_counted_in_the_file(tmp_path):
    trace = _core.Trace(max_ranges=2)
    for k in range(5):
        trace.add_range("loop", f"step {k}", k, k + 0.5)
    trace.write_json(str(tmp_path / "trace.json"))
    assert [name for name, *_ in ranges_of(tmp_path / "trace.json")["loop"]] == ["step 0", "step 1"]
    other = json.loads((tmp_path / "trace.json").read_text())["otherData"]
    assert other == {"ranges": 2, "dropped": 3}


@pytest.mark.parametrize("engine", ["subspace", "offload", "zo", "zo write_back"])
def test_events_of_many_steps_wait_on_the_disk_and_are_all_in_the_trace(tmp_path, engine):
    trace, steps = tmp_path / "trace.json", 150
    model = decoder() if engine.startswith("zo") else make()
    if engine == "subspace":
        opt = sw.SubspaceAdamW(model, codec="block_random", trace=trace)
    elif engine == "offload":
        opt = sw.OffloadAdamW(model, trace=trace)
    else:
        opt = sw.ZoSgd(model, tier="host", mode="write_back" if "write_back" in engine else "log",
                       trace=trace)  # fmt: skip
    with opt:
        for step in range(steps):
            if step == steps // 2:
                halfway = _core.now_us()
            if engine.startswith("zo"):
                opt.step(lambda i=step: zo_loss(model, zo_ids(i)))
            else:
                loss_of(model, step).backward()
                opt.step()
                opt.zero_grad()
        waiting = [os.fstat(fd).st_size for fd in deleted_files_in(tmp_path)]
        assert len(waiting) == 1
        assert waiting[0] > 64 << 10
        assert list(tmp_path.iterdir()) == []
    document = json.loads(trace.read_text())
    ranges = [event for event in document["traceEvents"] if event["ph"] == "X"]
    assert document["otherData"] == {"ranges": len(ranges), "dropped": 0}
    lanes = {event["tid"] for event in ranges}
    assert len(ranges) > steps * len(lanes)
    late = [event for event in ranges if event["ts"] > halfway]
    assert len(late) > len(ranges) / 4  # Of all steps, not of the first.


def deleted_files_in(folder):
    """Open files of this process that lie in a folder without a name."""
    found = []
    for fd in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{fd}").startswith(f"{folder}/") and (
                os.fstat(fd).st_nlink == 0
            ):
                found.append(fd)
    return found
