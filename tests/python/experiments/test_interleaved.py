"""Runs that take turns: they compute what they compute alone, and their ratio is robust."""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import time
from importlib.metadata import version
from itertools import chain, pairwise

import pytest
from conftest import REPOSITORY, read_lines

from experiments.quickstart.interleaved import (
    IMPORTED_ONCE,
    TURN_STEPS,
    Turn,
    TurnTaker,
    busy_seconds,
    order_of,
    others_cores,
    take_turns,
)
from experiments.quickstart.run_folder import RunFolder, as_override
from experiments.quickstart.turn_ratio import turn_ratio

ROUNDS, STEPS_THAT_COUNT = 24, 4
RATIO = 1.25


def made_up_rounds(seconds: float, noise: float = 0.0, seed: int = 0) -> dict[int, list[float]]:
    """Step times of a run whose steps take `seconds`, more or less."""
    draw = random.Random(seed)
    return {
        number: [seconds * (1 + noise * draw.random()) for _ in range(STEPS_THAT_COUNT)]
        for number in range(ROUNDS)
    }


def slowed(rounds: dict[int, list[float]], factors: dict[int, float]) -> dict[int, list[float]]:
    """The same with some rounds slower."""
    return {n: [factors.get(n, 1.0) * s for s in steps] for n, steps in rounds.items()}


@pytest.mark.parametrize("slow", [{3: 2.0}, dict.fromkeys(range(12, 24), 2.0),
                                  {n: 1 + n / 7 for n in range(24)}])  # fmt: skip
def test_what_slows_whole_rounds_does_not_move_a_ratio(slow):
    native, way = made_up_rounds(0.2, noise=0.2, seed=1), made_up_rounds(0.25, noise=0.2, seed=2)
    quiet = turn_ratio(way, native)
    busy = turn_ratio(slowed(way, slow), slowed(native, slow))
    assert busy.median == pytest.approx(quiet.median, rel=1e-12)
    assert (busy.low, busy.high) == pytest.approx((quiet.low, quiet.high), rel=1e-12)


@pytest.mark.parametrize("hit", ["way", "native"])
@pytest.mark.parametrize("factor", [1.7, 50.0])
def test_a_slow_spell_that_hits_one_turn_does_not_move_a_ratio(hit, factor):
    rounds = {"native": made_up_rounds(0.2), "way": made_up_rounds(RATIO * 0.2)}
    rounds[hit] = slowed(rounds[hit], {7: factor})
    found = turn_ratio(rounds["way"], rounds["native"])
    assert found.median == found.low == found.high == pytest.approx(RATIO)


def test_one_slow_step_of_each_turn_does_not_move_a_ratio():
    way = made_up_rounds(RATIO * 0.2)
    for number, steps in way.items():
        steps[number % STEPS_THAT_COUNT] *= 9
    found = turn_ratio(way, made_up_rounds(0.2))
    assert found.low == found.high == pytest.approx(RATIO)


def test_turns_that_differ_show_in_the_spread():
    unequal = slowed(made_up_rounds(0.2), dict.fromkeys(range(0, 24, 3), 2.0))
    found = turn_ratio(unequal, made_up_rounds(0.2))
    assert (found.low, found.median, found.high) == pytest.approx((1.0, 1.0, 2.0))


def test_runs_one_after_the_other_would_have_been_compared_wrongly():
    """The machine gets busy half way: once native is through, or in the middle of the rounds."""
    native, way = made_up_rounds(0.2), made_up_rounds(0.92 * 0.2)
    busy, half = (dict.fromkeys(range(first, ROUNDS), 1.85) for first in (0, ROUNDS // 2))
    later = slowed(way, busy).values()
    medians = [statistics.median(chain.from_iterable(x)) for x in (later, native.values())]
    assert medians[0] / medians[1] == pytest.approx(1.702)
    found = turn_ratio(slowed(way, half), slowed(native, half))
    assert found.median == pytest.approx(0.92)


def test_a_ratio_needs_a_round_with_both():
    with pytest.raises(ValueError, match="no round has steps of both"):
        turn_ratio({0: [0.1]}, {1: [0.1]})
    assert turn_ratio({0: [0.1], 1: [0.3]}, {1: [0.1]}).median == pytest.approx(3.0)


def test_each_run_has_each_place_of_a_round_and_comes_before_and_behind_its_neighbours():
    orders = [order_of(6, number) for number in range(12)]
    assert all(sorted(order) == list(range(6)) for order in orders)
    for place in range(6):
        assert {order[place] for order in orders} == set(range(6))
    before = {(a, b) for order in orders for a, b in pairwise(order)}
    assert all((b, a) in before for a, b in before)


def test_others_are_what_cores_did_beyond_the_run_that_had_its_turn():
    turns = [Turn(clock=1.0, own=0.9, busy=0.9), Turn(clock=3.0, own=3.1, busy=5.1)]
    assert others_cores(turns) == pytest.approx(0.5)
    assert others_cores([Turn(clock=1.0, own=0.93, busy=0.92)]) == 0.0


def test_busy_seconds_see_a_busy_process():
    before, own, until = busy_seconds(), time.process_time(), time.monotonic() + 0.5
    while time.monotonic() < until:
        pass
    own = time.process_time() - own
    assert busy_seconds() - before > own - 0.1  # Ticks are of 10 ms.


WAYS = {
    "native": {"engine.kind": "native"},
    "cores": {"engine": {"kind": "subspace", "codec": "block_random"}},
    "disk": {"engine": {"kind": "offload", "tier": "disk"}, "store.chunk": "64KiB"},
}
STEPS = 7
# Keys of a line of metrics. Times differ, and bytes are counted in the step in which they cross.
SAME = ("step", "loss", "eval_loss", "lr", "grad_norm", "tokens", "skipped", "loss_scale")


@pytest.fixture
def config(write_config, small_model):
    """A few steps with evaluations before, between and after them."""
    return write_config(small_model, train={"steps": STEPS, "eval_every": 3})


def computed(lines: list[dict]) -> list[dict]:
    """Return what two runs of one config must agree in, of every line of metrics."""
    return [{key: line.get(key) for key in SAME} for line in lines]


def test_runs_in_turns_have_the_bits_of_runs_on_their_own(config, tmp_path, sluiceway):
    ways = {name: (tmp_path / "turns" / name, own) for name, own in WAYS.items()}
    said = []
    loads = take_turns(config, ways, said.append)
    assert len(loads) == 2  # Rounds: of five steps and of the two that are left.
    assert [line for line in said if line.startswith("starts")] == [f"starts: {n}" for n in WAYS]
    for name, own in WAYS.items():
        settings = [x for k, v in own.items() for x in ("--set", f"{k}={as_override(v)}")]
        done = sluiceway("train", config, "--out", tmp_path / "alone" / name, *settings)
        assert done.code == 0, done.err
        turns, alone = (tmp_path / where / name for where in ("turns", "alone"))
        assert computed(read_lines(turns)) == computed(read_lines(alone))
        assert len(read_lines(turns)) == 1 + STEPS
        weights = [path.relative_to(alone) for path in alone.rglob("*.safetensors")]
        assert weights
        for path in weights:
            assert (turns / path).read_bytes() == (alone / path).read_bytes(), path
        run = RunFolder(turns, TURN_STEPS)
        assert run.is_done
        assert [line["step"] for line in run.timed] == [4, 5, 7]
        assert {number: len(steps) for number, steps in run.rounds.items()} == {0: 2, 1: 1}


def test_a_run_makes_steps_in_its_turns_only(config, tmp_path):
    folder = tmp_path / "run"
    run = TurnTaker(config, folder, WAYS["cores"])
    try:
        for last, is_over in ((0, False), (TURN_STEPS, False), (STEPS, True)):
            time.sleep(0.3)
            assert [line["step"] for line in read_lines(folder)] == list(range(last + 1))
            assert run.is_over == is_over
            if not is_over:
                turn = run.take_turn()
                assert turn.clock > 0
                assert turn.own > 0
    finally:
        run.kill()


@pytest.mark.skipif(
    tuple(map(int, version("transformers").split(".")[:2])) < (5, 1),
    reason="transformers 5.0 asks itself; the demo's environment has a later one",
)
def test_runs_are_forked_from_a_process_that_has_asked_nothing_of_a_card():
    """Asking how many cards there are starts the driver, which no forked process can use."""
    asks = ["is_available", "device_count", "init"]
    script = [
        "import importlib, sys, torch",
        "def refuse(*_): sys.exit('asked for a card')",
        *(f"torch.cuda.{name} = refuse" for name in asks),
        "torch._C._cuda_getDeviceCount = refuse",
        *(f"importlib.import_module({name!r})" for name in IMPORTED_ONCE),
        "print('loaded', len(sys.modules))",
    ]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(script)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("loaded")


@pytest.mark.parametrize("keeps", [True, False])
def test_freed_memory_is_not_faulted_in_again(keeps):
    """A process of its own, as the limits of malloc are for good."""
    script = [
        "import resource",
        "from experiments.quickstart.interleaved import keep_freed_memory",
        "keep_freed_memory()" if keeps else "",
        "def use(): blocks = [bytearray(4 << 20) for _ in range(10)]",
        "for _ in range(3): use()",
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt",
        "use()",
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)",
    ]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(script)],
        capture_output=True, text=True, check=True, cwd=REPOSITORY,
    )  # fmt: skip
    pages = (40 << 20) // os.sysconf("SC_PAGE_SIZE")
    assert (int(done.stdout) < pages // 10) == keeps


def test_a_run_that_fails_ends_all_of_them_with_what_it_said(config, tmp_path):
    ways = {
        "native": (tmp_path / "native", WAYS["native"]),
        "wrong": (tmp_path / "wrong", {"engine.kind": "naive"}),
    }
    with pytest.raises(SystemExit, match=r"(?s)wrong\.log: the run ended .*engine\.kind"):
        take_turns(config, ways, lambda line: None)
    assert [line["step"] for line in read_lines(tmp_path / "native")] == [0]
