"""Tier auto: host memory up to its budget, the rest in files without a name; the same bits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import sluiceway as sw
import torch
from conftest import REPOSITORY
from offload_models import loss_of, offload, run, words
from sluiceway.engines.state_file import read_state, write_state
from small_models import make, same_bits
from test_streamed_weights import Dropping

MICRO = 2


def steps(model: torch.nn.Module, opt: sw.OffloadAdamW, count: int, first: int = 0) -> None:
    for step in range(first, first + count):
        for micro in range(MICRO):
            loss_of(model, MICRO * step + micro).backward()
        opt.step()
        opt.zero_grad()


def bytes_of_memory(**arguments: object) -> int:
    """Host bytes of an optimizer whose states are all in memory."""
    with offload(words(**arguments), accumulate=MICRO) as opt:
        return opt.stats()["peak_bytes"]["host"]


def auto(model: torch.nn.Module, folder: Path, host: int, **arguments: object) -> sw.OffloadAdamW:
    arguments = {"accumulate": MICRO, **arguments}
    return offload(model, folder, tier="auto", budget=sw.Budget(host=host), **arguments)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("io", ["auto", "posix"])
def test_each_budget_has_the_bits_of_memory_and_of_disk(dtype, io, tmp_path):
    expected = words(dtype=dtype)
    with offload(expected, accumulate=MICRO, max_norm=0.1) as opt:
        steps(expected, opt, 4)
        whole = opt.state_dict()["state"]
    room = bytes_of_memory(dtype=dtype)
    on_disk = []
    for share in (0, 0.4, 0.8, 1.3):  # Of a file of all states.
        model = words(dtype=dtype)
        limit = room - 400_000 + int(share * 400_000)
        with auto(model, tmp_path / "s", limit, max_norm=0.1, io=io) as opt:
            assert list((tmp_path / "s").iterdir()) == []
            steps(model, opt, 4)
            opt.synchronize()
            stats = opt.stats()
            assert stats["peak_bytes"]["host"] <= limit
            on_disk.append(stats["peak_bytes"]["disk"])
            assert (stats["bytes"]["disk_written"] > 0) == (on_disk[-1] > 0)
            found = opt.state_dict()["state"]
        assert same_bits(model, expected)
        for number, states in whole.items():
            for key, value in states.items():
                torch.testing.assert_close(found[number][key], value, rtol=0, atol=0)
    assert on_disk[0] > on_disk[1] > on_disk[2] > on_disk[3] == 0
    assert list((tmp_path / "s").iterdir()) == []


def test_states_move_between_the_tiers(tmp_path):
    expected, model = words(), words()
    with offload(expected, accumulate=MICRO) as opt:
        steps(expected, opt, 5)
    limit = bytes_of_memory() - 200_000
    with auto(model, tmp_path / "s", limit) as opt:
        steps(model, opt, 2)
        state = opt.state_dict()
    with offload(model, tmp_path / "disk", accumulate=MICRO) as opt:
        opt.load_state_dict(state)
        steps(model, opt, 1, first=2)
    with offload(model, accumulate=MICRO) as opt:
        opt.load_state_dict(state)  # The step before is not in it.
        with auto(words(), tmp_path / "t", limit) as other:
            other.load_state_dict(opt.state_dict())
    again = words()
    with auto(again, tmp_path / "s", limit) as opt:
        steps(again, opt, 2)
        opt.load_state_dict(opt.state_dict())
        steps(again, opt, 3, first=2)
    assert same_bits(again, expected)


@pytest.mark.parametrize("codec", [{}, {"codec": "block_random", "spill": "core"}])
@pytest.mark.parametrize("state_codec", ["fp32", "8bit"])
def test_streamed_weights_of_which_a_part_is_on_disk(codec, state_codec, tmp_path):
    def train(**where: object) -> torch.nn.Module:
        model = make(Dropping, 0).to(torch.bfloat16)
        kept = {"weights": "streamed", "state_codec": state_codec, **codec}
        with sw.OffloadAdamW(model, chunk=16 << 10, accumulate=1, **kept, **where) as opt:
            for step in range(3):
                torch.manual_seed(step)
                model(torch.randn(5, 16).bfloat16()).float().square().mean().backward()
                opt.step()
                opt.zero_grad()
            train.host = opt.stats()["peak_bytes"]["host"]
            train.disk = opt.stats()["bytes"]["disk_written"]
        return model

    expected = train()
    found = train(
        tier="auto", path=tmp_path / "s", budget=sw.Budget(host=train.host - 100_000), io="posix"
    )
    assert train.disk > 0
    assert same_bits(found, expected)


def test_more_backwards_than_promised_are_refused_with_the_number_to_promise(tmp_path):
    model = words()
    with auto(model, tmp_path / "s", bytes_of_memory() - 200_000, accumulate="auto") as opt:
        run(model, opt, 2)
        loss_of(model, 0).backward()
        with pytest.raises(sw.OutOfMemory, match="gradients of 2 backwards; set accumulate=2"):
            loss_of(model, 1).backward()
        opt.zero_grad()
        run(model, opt, 1)


def test_what_cannot_be_is_refused_and_leaves_nothing(tmp_path):
    folder, room = tmp_path / "s", bytes_of_memory() - 300_000
    for given, error, text in [
        ({"path": None}, sw.InvalidArgument, "tier is 'auto', but there is no path"),
        ({"io": "block"}, sw.InvalidArgument, "io is 'block', but tier is 'auto'"),
        ({"policy": "speculative"}, sw.InvalidArgument, "but tier is auto"),
        ({"budget": sw.Budget(host=100_000)}, sw.OutOfMemory, "100000 bytes"),
        ({"budget": sw.Budget(host=room, disk=100_000)}, sw.OutOfMemory, "100000 bytes"),
    ]:
        with pytest.raises(error, match=text):
            offload(words(), folder, **{"tier": "auto", "accumulate": 1, **given})
        assert not folder.exists()


def test_two_optimizers_may_share_a_folder(tmp_path):
    limit = bytes_of_memory() - 200_000
    with auto(words(), tmp_path / "s", limit) as one, auto(words(), tmp_path / "s", limit) as two:
        assert [len(opt.engine.drives) for opt in (one, two)] == [1, 1]
    assert os.listdir(tmp_path / "s") == []


def test_a_state_is_not_written_after_another_step(tmp_path):
    model = words()
    with offload(model, accumulate=MICRO) as opt:
        steps(model, opt, 1)
        state, filled = opt.state_to_write()
        steps(model, opt, 1)
        with pytest.raises(sw.InvalidArgument, match="of step 1, but the optimizer has taken"):
            write_state(state, tmp_path / "state.pt", filled)


def test_inputs_of_blocks_count_even_if_all_states_are_in_memory(tmp_path):
    model = make(Dropping, 0)
    where = {"tier": "auto", "path": tmp_path / "s", "activations": "disk"}
    with sw.OffloadAdamW(model, accumulate=1, **where) as opt:
        model(torch.randn(4096, 16)).square().mean().backward()
        opt.step()
        stats = opt.stats()
    assert stats["bytes"]["disk_written"] >= 4096 * 64 * 4
    assert stats["peak_bytes"]["disk"] > 0
    with pytest.raises(sw.InvalidArgument, match="tier is auto, which has no drive"):
        sw.SubspaceAdamW(make(Dropping, 0), tier="auto", activations="disk")


@pytest.mark.parametrize("state_codec", ["fp32", "bf16", "8bit"])
def test_frozen_weights_alone_are_on_disk(state_codec, tmp_path):
    def train(**where: object) -> torch.nn.Module:
        model = make(Dropping, 0).to(torch.bfloat16)
        for block in model.blocks[1:]:
            block.requires_grad_(False)
        kept = {"weights": "streamed", "state_codec": state_codec, "chunk": 16 << 10}
        with sw.OffloadAdamW(model, accumulate=1, **kept, **where) as opt:
            torch.manual_seed(0)
            model(torch.randn(5, 16).bfloat16()).float().square().mean().backward()
            opt.step()
            train.peaks = opt.stats()["peak_bytes"]
        return model

    expected, host = train(), train.peaks["host"]
    found = train(tier="auto", path=tmp_path / "s", budget=sw.Budget(host=host - 4096))
    assert train.peaks["disk"] > 0
    assert same_bits(found, expected)
    train(tier="auto", path=tmp_path / "s", budget=sw.Budget(host=host + 8192))
    assert train.peaks["disk"] == 0


def test_a_state_is_written_one_parameter_at_a_time(tmp_path):
    model = words(dtype=torch.bfloat16)
    with auto(model, tmp_path / "s", bytes_of_memory(dtype=torch.bfloat16) - 100_000) as opt:
        steps(model, opt, 2)
        expected = opt.state_dict()
        write_state(*opt.state_to_write()[:1], tmp_path / "zeros.pt")
        state, filled = opt.state_to_write()
        write_state(state, tmp_path / "state.pt", filled)
        found = read_state(tmp_path / "state.pt", mapped=True)
        assert found["param_groups"] == expected["param_groups"]
        for number, states in expected["state"].items():
            assert found["state"][number].keys() == states.keys()
            for key, value in states.items():
                torch.testing.assert_close(found["state"][number][key], value, rtol=0, atol=0)
        opt.load_state_dict(found)


_PEAK = """
import resource, sys, torch, sluiceway as sw
from sluiceway.engines.state_file import write_state
model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024, bias=False) for _ in range(64)))
with sw.OffloadAdamW(model, tier="host", accumulate=1) as opt:
    model(torch.randn(4, 1024)).sum().backward()
    opt.step()
    opt.synchronize()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    state, filled = opt.state_to_write()
    from pathlib import Path
    write_state(state, Path(sys.argv[1]), filled)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_save_takes_no_memory_for_all_states(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", _PEAK, str(tmp_path / "state.pt")],
        cwd=REPOSITORY, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    assert (tmp_path / "state.pt").stat().st_size > 64 << 23  # 2 x 4 bytes of 2^20, 64 times.
    assert int(done.stdout) < 128 << 10  # KiB; a fifth.
