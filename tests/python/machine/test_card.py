"""`doctor` and `plan` report on the GPU of this machine. The GPUs are made up."""

from __future__ import annotations

import json
import os
import types

import pytest
import sluiceway as sw
import torch
import yaml
from sluiceway import _core
from sluiceway.commands import plan as plan_command
from sluiceway.config.file import load_config
from sluiceway.config.values import Link
from sluiceway.machine import card, device_ops, placement, storage
from sluiceway.machine.card import card_findings
from sluiceway.model import speeds

GIB = 1 << 30


class MadeUpCuda:
    """`torch.cuda` of a machine with as many cards of 16 GiB."""

    def __init__(self, count=1, free=14 * GIB):
        self.count, self.free, self.capability = count, free, (8, 9)

    def is_available(self):
        return self.count > 0

    def device_count(self):
        return self.count

    def get_device_properties(self, _device):
        major, minor = self.capability
        return types.SimpleNamespace(
            name="Imaginary 9000", total_memory=16 * GIB, major=major, minor=minor
        )

    def mem_get_info(self, _device):
        if isinstance(self.free, Exception):
            raise self.free
        return self.free, 16 * GIB


def made_up_torch(cuda, version="13.0"):
    return types.SimpleNamespace(cuda=cuda, version=types.SimpleNamespace(cuda=version))


def made_up_core(count=1, refusal=""):
    """The compiled module; it writes down what it was asked to lock."""
    core = types.SimpleNamespace(asked=[])

    def page_lock_refusal(ordinal, size):
        core.asked.append((ordinal, size))
        return refusal

    core.cuda_device_count = lambda: count
    core.page_lock_refusal = page_lock_refusal
    return core


@pytest.fixture
def driver(monkeypatch):
    """Set the answer of nvidia-smi; None makes it not answer."""

    def say(*answer):
        monkeypatch.setattr(card, "_nvidia_smi", lambda _: list(answer) or None)

    say("580.1", "Imaginary 9000")
    return say


def found_by(torch_, core):
    return {finding.name: finding for finding in card_findings(torch_, core)}


def test_a_card_is_named_with_its_memory_driver_and_page_locked_memory(driver):
    core = made_up_core()
    found = found_by(made_up_torch(MadeUpCuda(count=2)), core)
    assert found["gpu"].found == "Imaginary 9000, 16 GiB, sm_89, one of 2, 14 GiB of it free"
    assert found["gpu"].figures == {"memory_bytes": 16 * GIB, "free_bytes": 14 * GIB, "count": 2}
    assert found["driver"].found == "580.1"
    assert found["page-locked"].found == "yes, 64 MiB tried"
    assert core.asked == [(0, 64 << 20)]
    assert {finding.verdict for finding in found.values()} == {"ok"}


def test_without_a_card_everything_says_why_there_is_none(driver):
    driver()
    core = made_up_core(count=0)
    found = found_by(made_up_torch(MadeUpCuda(count=0), version=None), core)
    assert found["gpu"].found == (
        "none: nvidia-smi does not answer, and this torch is built without CUDA"
    )
    assert found["page-locked"].found.startswith("none: the compiled module has no GPU")
    assert (found["gpu"].verdict, found["driver"].verdict) == ("missing", "missing")
    assert core.asked == []


@pytest.mark.parametrize(
    ("version", "library", "fix"),
    [
        (None, "libc.so.6", "built without CUDA"),
        ("13.0", "libc.so.6", "CUDA_VISIBLE_DEVICES"),
        ("13.0", "libnone.so.1", "the driver's library, libnone.so.1, is not found: install it"),
    ],
)
def test_a_driver_whose_card_torch_does_not_see_says_what_to_look_at(
    driver, monkeypatch, version, library, fix
):
    monkeypatch.setattr(card, "_DRIVER_LIBRARY", library)
    gpu = found_by(made_up_torch(MadeUpCuda(count=0), version), made_up_core(0))["gpu"]
    assert gpu.found == "Imaginary 9000, which torch cannot use"
    assert fix in gpu.advice


@pytest.mark.parametrize(
    "script",
    [
        "echo 'No devices were found'",
        "echo 'lorem, ipsum'",
        r"printf '\377\376, \200\n'",
        "echo 'NVIDIA-SMI has failed'; exit 9",
        "echo",
        "true",
    ],
)
def test_an_nvidia_smi_that_names_no_gpu_is_none(tmp_path, monkeypatch, script):
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    card._nvidia_smi.cache_clear()
    found = found_by(made_up_torch(MadeUpCuda(count=0)), made_up_core(count=0))
    card._nvidia_smi.cache_clear()
    assert found["gpu"].found == "none: nvidia-smi does not answer"
    assert found["driver"].found == "nvidia-smi does not answer"


def test_a_module_without_cuda_is_told_apart_from_a_torch_without(driver):
    gpu = found_by(made_up_torch(MadeUpCuda()), made_up_core(count=0))["gpu"]
    assert gpu.verdict == "missing"
    assert gpu.found.endswith("14 GiB of it free, which the compiled module cannot use")
    assert "SLUICEWAY_CUDA=ON" in gpu.advice


def test_a_card_that_fails_is_a_finding_and_no_error(driver):
    driver()
    broken = MadeUpCuda(free=RuntimeError("CUDA error: device is lost\nand more"))
    found = found_by(made_up_torch(broken), made_up_core())
    assert found["gpu"].verdict == "missing"
    assert found["gpu"].found.endswith("sm_89: CUDA error: device is lost")
    assert "torch can use it" in found["driver"].found


def test_memory_that_is_not_locked_is_slow_and_says_the_limit(driver):
    core = made_up_core(refusal="cudaHostRegister: cudaErrorMemoryAllocation")
    found = found_by(made_up_torch(MadeUpCuda()), core)["page-locked"]
    assert found.verdict == "slow"
    assert found.found == "not 64 MiB: cudaHostRegister: cudaErrorMemoryAllocation"
    assert "ulimit -l" in found.advice


def test_a_card_that_cuda_13_has_no_code_for_is_no_card_to_use(driver):
    cuda = MadeUpCuda()
    cuda.capability = 6, 1
    gpu = found_by(made_up_torch(cuda), made_up_core())["gpu"]
    assert gpu.verdict == "missing"
    assert gpu.found == (
        "Imaginary 9000, 16 GiB, sm_61, older than sm_75, the oldest that CUDA 13 supports"
    )
    assert gpu.advice.startswith("the host device computes instead")


def test_a_link_that_cannot_be_measured_is_a_finding(monkeypatch):
    def refuse(size, device):
        raise RuntimeError(f"CUDA error: no room for {size} bytes on {device}")

    monkeypatch.setattr("sluiceway.machine.roofs.link_seconds", refuse)
    (found,) = storage.link_findings()
    assert found.verdict == "missing"
    assert found.found.startswith("not measured: CUDA error: no room for 67108864 bytes")


@pytest.fixture
def card_of_16_gib(monkeypatch):
    """cuda:0 is here for whoever asks; what would be measured on it is measured on the host."""
    cuda = MadeUpCuda()
    for name in ("is_available", "device_count", "get_device_properties", "mem_get_info"):
        monkeypatch.setattr(torch.cuda, name, getattr(cuda, name))
    monkeypatch.setattr(_core, "cuda_device_count", lambda: 1)
    host = torch.device("cpu")
    measured = []
    tflops, gbps = speeds._tflops, speeds._measured_gbps

    def note(name, where):
        measured.append((name, str(where)))

    def link_seconds(size, device):
        note("link", device)
        return {"d2h": size / 20e9, "h2d": size / 25e9}

    def tflops_on_host(config, where_config, where, build):
        note("tflops", where)
        return tflops(config, where_config, host, build)

    def gbps_on_host(where):
        note("memory", where)
        return gbps(host)

    monkeypatch.setattr(speeds, "link_seconds", link_seconds)
    monkeypatch.setattr(speeds, "_tflops", tflops_on_host)
    monkeypatch.setattr(speeds, "_measured_gbps", gbps_on_host)
    return measured


@pytest.fixture
def config(small_model, write_config):
    """Reads a config for the card."""

    def read(**sections):
        sections = {"device": {"name": "cuda:0"}, "engine": {"kind": "subspace"}} | sections
        return load_config(write_config(small_model, **sections))

    return read


def test_a_plan_for_a_card_that_is_here_is_measured_there_and_tells_its_memory(
    card_of_16_gib, config
):
    made = plan_command.make_plan(config())
    plan = made.figures
    assert plan["device"] == {
        "name": "cuda:0", "here": True, "memory_bytes": 16 * GIB, "free_bytes": 14 * GIB
    }  # fmt: skip
    assert ("link", "cuda:0") in card_of_16_gib
    assert ("tflops", "cuda:0") in card_of_16_gib
    assert ("memory", "cuda:0") in card_of_16_gib
    assert (plan["assumed"]["d2h_gbps"], plan["assumed"]["h2d_gbps"]) == (20.0, 25.0)
    assert plan["over_budget"] is None
    line = made.text().splitlines()[-1]
    assert line == (
        "cuda:0: 16 GiB, 14 GiB of it free; link 20 GB/s to the host, 25 GB/s to the device "
        "(page-locked copies measured here)"
    )
    json.dumps(plan)


def test_what_a_card_has_not_is_refused_though_the_budget_has(card_of_16_gib, config, monkeypatch):
    monkeypatch.setattr(
        plan_command, "card_memory", lambda _: {"memory_bytes": 1 << 20, "free_bytes": 1 << 19}
    )
    made = plan_command.make_plan(config(budget={"device": "32GiB"}))
    plan = made.figures
    assert plan["over_budget"].startswith("cuda:0: the run needs ")
    assert "the card has 1048576 bytes (1 MiB); try model.checkpointing" in plan["over_budget"]
    line = made.text().splitlines()[-1]
    assert "512 KiB of it free, which is less than the run needs" in line
    assert "budget.device is more than it has, 32 GiB" in line


def test_a_card_that_is_not_here_has_room_for_svd_where_no_budget_says_else(config, monkeypatch):
    monkeypatch.setattr(device_ops.HostOps, "offered_bytes", lambda _: 1)
    here = {"host": "1GiB", "pinned": "1GiB"}
    pays = {"steps": 500, "micro_batch": 1024}

    def planned(**budget):
        sections = {"device": {"name": "cuda:9"}, "budget": here | budget, "train": pays}
        return plan_command.make_plan(config(**sections)).figures

    assert planned()["codec"] == "svd"
    narrow = planned(device="1MiB")
    assert narrow["codec"] == "none"
    assert "of device memory, and 0 B are left" in narrow["why"]


def test_a_plan_counts_what_streams_of_a_card_keep_and_where_results_of_kernels_lie(config):
    host = plan_command.make_plan(config(device={"name": "host"})).figures
    cuda = plan_command.make_plan(config(device={"name": "cuda:9"})).figures
    weights = cuda["compressed_weights"]
    assert weights == host["compressed_weights"] > 0
    grown = {
        tier: cuda["peak_bytes"][tier] - host["peak_bytes"][tier]
        for tier in ("device", "host", "pinned")
    }
    scans = 24 * weights
    # Two streams; a scan and another result a weight, and the scans once more in whole pages.
    assert grown["device"] == (8 << 20) + scans + 32 * weights
    assert grown["pinned"] == -(-scans // 4096) * 4096
    assert grown["host"] == 0


@pytest.mark.parametrize(
    ("throttle", "measured", "expected"),
    [
        (None, {}, (8.0, 9.0, 0.0)),
        ({"d2h_gbps": 20, "h2d_gbps": 2, "latency_us": 5}, {}, (20.0, 2.0, 5.0)),
        ({"d2h_gbps": 20, "h2d_gbps": 2, "latency_us": 5}, {"link_gbps_from": "here"},
         (8.0, 2.0, 5.0)),
    ],
)  # fmt: skip
def test_a_throttle_makes_a_real_link_no_faster(config, throttle, measured, expected):
    device = {"name": "host"} | ({"link": throttle} if throttle else {})
    found = speeds.link_of(config(device=device), {"d2h_gbps": 8.0, "h2d_gbps": 9.0, **measured})
    assert found == Link(d2h_gbps=expected[0], h2d_gbps=expected[1], latency_us=expected[2])


def test_the_codec_of_a_plan_is_chosen_for_the_memory_of_the_card(
    card_of_16_gib, config, monkeypatch
):
    asked = []

    class Card(device_ops.CudaOps):
        def offered_bytes(self):
            asked.append(self.name)
            return super().offered_bytes()

    monkeypatch.setattr(device_ops, "CudaOps", Card)
    assert placement.is_here("cuda:0")
    plan_command.make_plan(config())
    assert asked == ["cuda:0"]


def test_without_a_card_nothing_can_be_locked_for_one():
    beyond = _core.cuda_device_count()
    with pytest.raises((sw.Unavailable, sw.InvalidArgument), match=f"CUDA device {beyond}"):
        _core.page_lock_refusal(beyond, 4096)


@pytest.fixture
def auto(config, monkeypatch, recwarn):
    """Return the place of a run whose config names no device, and the warnings."""

    def choose(device=None):
        recwarn.clear()
        chosen = placement.choose_placement(config(device=device or {"threads": 1, "name": "auto"}))
        return chosen.name, [str(warning.message) for warning in recwarn]

    return choose


def test_auto_is_the_card_where_there_is_one_that_can_be_used(card_of_16_gib, auto):
    assert auto() == ("cuda:0", [])
    assert auto({"threads": 1, "name": "host"}) == ("host", [])


def test_a_config_that_says_nothing_of_its_device_is_auto(
    card_of_16_gib, small_model, write_config
):
    path = write_config(small_model)
    sections = yaml.safe_load(path.read_text())
    del sections["device"]
    path.write_text(yaml.safe_dump(sections))
    assert placement.choose_placement(load_config(path)).name == "cuda:0"


def test_auto_is_the_host_device_where_there_is_no_card_and_nothing_is_said(auto, driver):
    driver()
    assert auto() == ("host", [])


def test_auto_says_why_a_card_is_not_used(card_of_16_gib, auto, driver, monkeypatch):
    monkeypatch.setattr(_core, "cuda_device_count", lambda: 0)
    name, (warning,) = auto()
    assert name == "host"
    assert warning.startswith("device.name: auto is the host device here; gpu: Imaginary 9000, ")
    assert "which the compiled module cannot use" in warning

    monkeypatch.setattr(_core, "cuda_device_count", lambda: 1)
    assert auto() == ("cuda:0", [])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    name, (warning,) = auto()
    assert name == "host"
    assert "gpu: Imaginary 9000, which torch cannot use" in warning


def test_a_command_on_the_host_device_says_once_why_it_is_not_on_the_card(
    python_m_sluiceway, tiny_model, write_config, tmp_path, monkeypatch
):
    """The driver answers, and torch sees no card."""
    path = write_config(tiny_model, device={"name": "auto"})
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho '580.1, Imaginary 9000'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    outcome = python_m_sluiceway("plan", path)
    assert outcome.code == 0, outcome.err
    (line,) = [line for line in outcome.err.splitlines() if "auto" in line]
    assert line.startswith("sluiceway: device.name: auto is the host device here; gpu: Imaginary")
    assert "torch sees no device" in line or "libcuda.so.1, is not found" in line
