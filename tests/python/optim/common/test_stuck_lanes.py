"""A lane that never ends: close() and the end of the process come back, and say which it is."""

import os
import signal
import subprocess
import sys
import time

import pytest
from conftest import REPOSITORY

START = """
import array
import time
import sluiceway as sw
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 256), nn.Linear(256, 256), nn.Linear(256, 8))
memory = array.array("f", bytes(4 * 256 * 256))
weight = torch.frombuffer(memory, dtype=torch.float32).view(256, 256).normal_()
model[1].weight = nn.Parameter(weight)
del weight
rates = {{"d2h_gbps": 1e3, "h2d_gbps": 1e3}}
if {throttled!r}:
    rates[{throttled!r}] = 1e-12  # A hop takes months.
opt = sw.SubspaceAdamW(model, lr=1e-3, codec="block_random", residual="none", link=sw.Link(**rates))

def step():
    model(torch.ones(4, 16)).square().sum().backward()
    opt.step()

step()
print(time.monotonic(), flush=True)  # One clock for all processes.
"""
LIMIT_S = 60.0  # Of months that the hop would take: busy machines need most of it.


def end_of(script, throttled="d2h_gbps"):
    """Exit code, output and errors of a script, and the seconds that it went on after a step."""
    source = START.format(throttled=throttled) + script
    ran = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=3 * LIMIT_S
    )
    ended = time.monotonic()
    stepped, _, out = ran.stdout.partition("\n")
    return ran.returncode, out, ran.stderr, ended - float(stepped)


def test_close_with_a_stuck_lane_raises_an_error_that_names_lane_and_weight():
    script = """
try:
    opt.close()
except sw.Timeout as error:
    print(error)
opt.close()
"""
    code, out, err, seconds = end_of(script, throttled="h2d_gbps")
    assert code == 0, err
    assert "lane h2d, payload 1.weight: " in out
    assert "synchronize()" in out
    assert seconds < LIMIT_S
    assert err == ""


@pytest.mark.parametrize(
    "script",
    ["", "del opt", "opt.loop = opt; raise SystemExit"],
    ids=["end", "del", "exit-in-a-cycle"],
)
def test_a_process_that_never_closes_ends_and_names_the_lane(script):
    code, _, err, seconds = end_of(script)
    assert code == 0, err
    assert seconds < LIMIT_S
    assert err.count("lane d2h, payload 1.weight: ") == 1
    assert "Fatal" not in err


@pytest.mark.parametrize(("throttled", "kept"), [("d2h_gbps", "True"), ("", "False")])
def test_weights_that_a_stuck_lane_may_write_to_are_never_freed(throttled, kept):
    script = """
import gc, weakref
try:
    opt.close()
except sw.Timeout:
    pass
memory = weakref.ref(memory)
del model, opt, step
gc.collect()
print(memory() is not None)
"""
    code, out, err, _ = end_of(script, throttled)
    assert (code, out) == (0, f"{kept}\n"), err


def test_an_optimizer_whose_lanes_end_closes_without_a_word():
    code, out, err, seconds = end_of("opt.close(); print('closed')", throttled="")
    assert (code, out, err) == (0, "closed\n", "")
    assert seconds < LIMIT_S


SLOW = """
import sys
import sluiceway as sw
import torch
from small_models import loss_of, make

torch.set_num_threads(1)
slow = sw.Link(d2h_gbps=0.002, h2d_gbps=0.002, latency_us=1000)
model = make()
if sys.argv[1] == "subspace":
    opt = sw.SubspaceAdamW(model, codec="identity", wire="fp32", link=slow)
else:
    where = {"path": sys.argv[2]} if sys.argv[1] == "disk" else {}
    opt = sw.OffloadAdamW(model, tier=sys.argv[1], link=slow, **where)
for step in range(2):
    loss_of(model, step).backward()
    opt.step()
    opt.zero_grad()
print("closing", flush=True)
opt.close()
print(sum(p.double().sum().item() for p in model.parameters()))
"""


@pytest.mark.parametrize("engine", ["subspace", "host", "disk"])
def test_a_process_that_is_suspended_in_close_keeps_its_last_step(tmp_path, engine):
    def closed(stopped_s):
        command = [sys.executable, "-c", SLOW, engine, str(tmp_path / str(stopped_s))]
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "tests/python")}
        child = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        assert child.stdout.readline() == "closing\n", child.communicate()[1]
        if stopped_s:
            time.sleep(0.2)
            child.send_signal(signal.SIGSTOP)
            time.sleep(stopped_s)
            child.send_signal(signal.SIGCONT)
        out, err = child.communicate(timeout=3 * LIMIT_S)
        assert child.returncode == 0, err
        return out

    assert closed(8) == closed(0)  # Longer than close() waits for a lane that stands still.
