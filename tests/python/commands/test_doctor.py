"""`sluiceway doctor`: what it finds agrees with the machine, and what is missing has its price."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import resource
import signal
import time
from pathlib import Path

import pytest
import sluiceway
from conftest import assert_short_error
from sluiceway.commands import engine_trials
from sluiceway.commands.doctor import doctor, examine
from sluiceway.commands.engine_trials import TRIALS, engine_findings
from sluiceway.machine import disk, processor, software

NAMES = ["python", "torch", "compiled module", "gpu", "driver", "page-locked", "cores", "memory",
         "memlock", "io_uring", "huge pages", "O_DIRECT", "free space"]  # fmt: skip
RATES = ["disk write", "disk read", "link"]


def findings(outcome):
    """Parse the findings in --json, by name."""
    assert outcome.code == 0, outcome.err
    said = json.loads(outcome.out)
    assert said["ok"] is True
    return {finding["name"]: finding for finding in said["findings"]}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder to look at; machines with a GPU look like those without one."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return tmp_path


def test_person_gets_one_line_for_each_thing_and_rates_leave_no_file(sluiceway, tmp_path):
    outcome = sluiceway("doctor", "--path", tmp_path)
    assert outcome.code == 0, outcome.err
    lines = outcome.out.splitlines()
    for name in NAMES + RATES + [f"engine {name} " for name in TRIALS]:
        (line,) = [line for line in lines if line.startswith(f"{name} ")]
        assert line[len(name) :].split()[0] in ("ok", "slow", "missing")
    assert list(tmp_path.iterdir()) == []


def test_what_is_found_is_what_the_system_says(sluiceway, tmp_path):
    found = findings(sluiceway("doctor", "--path", tmp_path, "--quick", "--json"))
    assert not found.keys() & set(RATES)
    assert found["cores"]["figures"]["usable"] == len(os.sched_getaffinity(0))
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    assert found["memlock"]["figures"]["bytes"] == (None if soft < 0 else soft)
    with open("/proc/meminfo") as file:
        total = int(file.readline().split()[1]) << 10
    assert found["memory"]["figures"]["total_bytes"] == pytest.approx(total, rel=0.01)
    room = os.statvfs(tmp_path)
    assert found["free space"]["figures"]["bytes"] == pytest.approx(
        room.f_bavail * room.f_frsize, rel=0.1
    )
    with open("/proc/cpuinfo") as file:
        flags = set(file.read().split())
    for name, flag in (("AVX2", "avx2"), ("AVX512-BF16", "avx512_bf16"), ("AMX", "amx_bf16")):
        if name in found:  # Other processors have other instruction sets.
            assert found[name]["found"] == ("yes" if flag in flags else "no")


def test_rates_are_positive_and_say_whether_the_page_cache_was_passed(sluiceway, tmp_path):
    found = findings(sluiceway("doctor", "--path", tmp_path, "--json"))
    for way in ("write", "read"):
        figures = found[f"disk {way}"]["figures"]
        assert figures["gbps"] > 0
        assert figures["bytes"] >= 4 << 20
        assert figures["huge_bytes"] % (2 << 20) == 0
        assert figures["direct"] == (found["O_DIRECT"]["verdict"] == "ok")
    assert min(found["link"]["figures"].values()) > 0


def test_small_limits_are_slow_and_say_what_to_do(python_m_sluiceway, here):
    def limit():
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 16, 1 << 16))
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

    outcome = python_m_sluiceway("doctor", "--path", here, "--quick", "--json", preexec_fn=limit)
    found = findings(outcome)
    assert (found["memlock"]["found"], found["memlock"]["verdict"]) == ("64 KiB", "slow")
    assert "limits.conf" in found["memlock"]["advice"]
    assert (found["cores"]["figures"]["usable"], found["cores"]["verdict"]) == (1, "slow")
    assert "takes turns" in found["cores"]["advice"]


def test_gpu_that_torch_cannot_use_is_missing_and_says_why(python_m_sluiceway, here, monkeypatch):
    (here / "nvidia-smi").write_text("#!/bin/sh\necho '550.54, Imaginary 9000'\n")
    (here / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{here}:{os.environ['PATH']}")
    found = findings(python_m_sluiceway("doctor", "--path", here, "--quick", "--json"))
    assert found["driver"]["found"] == "550.54"
    assert found["gpu"]["verdict"] == "missing"
    assert "Imaginary 9000, which torch cannot use" in found["gpu"]["found"]
    assert "host device computes instead" in found["gpu"]["advice"]


def test_torch_that_does_not_load_is_exit_code_one_and_how_to_get_it(
    python_m_sluiceway, here, monkeypatch
):
    (here / "sitecustomize.py").write_text(
        "import sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'torch':\n"
        "            raise ImportError('not for you')\n"
        "sys.meta_path.insert(0, Refuse())\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(here))
    outcome = python_m_sluiceway("doctor", "--path", here, "--quick", "--json")
    assert_short_error(outcome, 1, "torch is missing, not for you", "pip install torch")
    said = json.loads(outcome.out)
    assert said["ok"] is False
    assert [f["name"] for f in said["findings"] if f["required"] and f["verdict"] == "missing"] == [
        "torch"
    ]


def test_module_that_does_not_load_is_missing(here, monkeypatch):
    def refuse(name):
        raise ImportError("libhwy.so.1: cannot open shared object file: No such file")

    monkeypatch.setattr(software, "import_module", refuse)
    monkeypatch.delattr(sluiceway, "_core")
    with pytest.raises(sluiceway.Error, match="compiled module is missing, libhwy"):
        doctor(here, quick=False, as_json=False)


def test_module_with_cuda_beside_a_torch_without_says_what_is_not_there(monkeypatch):
    def refuse(name):
        raise ImportError("libcublas.so.13: cannot open shared object file: No such file")

    monkeypatch.setattr(software, "import_module", refuse)
    with pytest.raises(
        ImportError, match=r"torch \S+ brings no libcublas\.so\.13; install a torch"
    ):
        software.load_compiled_module()


def test_each_engine_trains_on_the_host(tmp_path):
    found = {f.name: f for f in engine_findings(tmp_path, "host")}
    assert list(found) == [f"engine {name}" for name in TRIALS]
    assert {f.verdict for f in found.values()} == {"ok"}, found
    assert all(f.found.startswith("3 steps on host, the last in ") for f in found.values())
    assert list(tmp_path.iterdir()) == []


def test_engine_that_fails_says_why_and_what_its_error_was(tmp_path):
    for finding in engine_findings(tmp_path, "cuda:99"):
        assert finding.verdict == "missing"
        assert finding.found.startswith("fails on cuda:99: ")
        assert "report this line" in finding.advice


def test_engine_that_hangs_or_crashes_stops_no_other(tmp_path, monkeypatch):
    python = tmp_path / "python"
    python.write_text(
        "#!/bin/bash\n"
        "shift 4\n"
        'for name; do case "$name" in\n'
        "  subspace) exec sleep 100 ;;\n"
        "  'offload, host') echo 'out of luck' >&2; kill -SEGV $$ ;;\n"
        "  'zo, device') exit 3 ;;\n"
        "  'zo, host') exec python3 -X faulthandler -c 'import os; os.abort()' ;;\n"
        '  *) echo "{\\"name\\": \\"$name\\", \\"seconds\\": 0.5}" ;;\n'
        "esac; done\n"
    )
    python.chmod(0o755)
    monkeypatch.setattr(engine_trials.sys, "executable", str(python))
    found = {f.name.removeprefix("engine "): f for f in engine_findings(tmp_path, "host", 10.0)}
    assert list(found) == list(TRIALS)
    why = {name: f.found for name, f in found.items() if f.verdict == "missing"}
    assert why == {
        "subspace": "fails on host: it did not end in 10 s",
        "offload, host": "fails on host: signal 11 ended it: out of luck",
        "zo, device": "fails on host: it ended with 3",
        "zo, host": "fails on host: signal 6 ended it: Fatal Python error: Aborted, "
        'File "<string>", line 1 in <module>',
    }
    assert found["native"].found == "3 steps on host, the last in 500.0 ms"
    assert list(tmp_path.iterdir()) == [python]


def test_disk_that_refuses_is_a_finding(python_m_sluiceway, here):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    outcome = python_m_sluiceway("doctor", "--path", here, "--json", preexec_fn=limit)
    found = findings(outcome)
    assert found["disk write"]["verdict"] == "missing"
    assert "cannot be measured, File too large" in found["disk write"]["found"]
    assert list(here.iterdir()) == []


def test_path_that_is_no_folder_is_refused(sluiceway, tmp_path):
    (tmp_path / "file").write_text("")
    for name in ("file", "none"):
        outcome = sluiceway("doctor", "--path", tmp_path / name)
        assert_short_error(outcome, 2, f"{name} is not a folder")


def test_file_system_without_o_direct_is_measured_through_the_page_cache(memory_folder):
    assert not disk.has_direct(memory_folder)
    rates = disk.disk_rates(memory_folder, ("read",), size=8 << 20, seconds=0.01)
    assert rates["direct"] is False
    assert rates["read"]["bytes"] >= 4 << 20  # A block, however busy the machine is.
    found = {f.name: f for f in examine(memory_folder, quick=True)}
    assert found["O_DIRECT"].verdict == "missing"
    assert "takes memory" in found["O_DIRECT"].advice
    assert os.listdir(memory_folder) == []


def test_rates_take_a_second_at_most_on_a_disk_that_is_not_slow(tmp_path, monkeypatch):
    asked = []

    def measure(path, mixes, **options):
        asked.append((mixes, options["seconds"]))
        rates = [{"mix": m, "bytes": 1, "seconds": 1, "processor_seconds": 0} for m in mixes]
        keys = ("backend", "direct", "note", "memory_bytes", "huge_bytes")
        return {"rates": rates, **dict.fromkeys(keys, 0)}

    monkeypatch.setattr(disk._core, "drive_rates", measure)
    examine(tmp_path, quick=False)
    ((mixes, seconds),) = asked
    assert (1 + len(mixes)) * seconds <= 1  # The blocks are written once before.


def test_ctrl_c_while_the_disk_is_measured_leaves_no_file(sluiceway, tmp_path):
    doctor = sluiceway.start("doctor", "--path", tmp_path)
    deadline = time.monotonic() + 30
    while doctor.is_running() and not open_files_of(doctor.pid, tmp_path):
        assert time.monotonic() < deadline
        time.sleep(0.002)
    doctor.signal(signal.SIGINT)
    outcome = doctor.wait()
    assert outcome.code == 130, outcome.err
    assert list(tmp_path.iterdir()) == []


def open_files_of(pid, folder):
    """Files of a folder that a process has open, with or without a name."""
    found = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found += [name] if (name := os.readlink(link)).startswith(f"{folder}/") else []
    return found


@pytest.mark.parametrize(
    ("mode", "free", "verdict"),
    [
        ("always [madvise] never", 0, "ok"),
        ("[always] madvise never", 0, "ok"),
        ("always madvise [never]", 0, "slow"),
        ("always madvise [never]", 64, "ok"),
        (None, 0, "slow"),
    ],
)
def test_huge_pages_are_made_up_or_set_aside_or_their_lack_has_its_price(
    tmp_path, monkeypatch, mode, free, verdict
):
    meminfo, enabled = tmp_path / "meminfo", tmp_path / "enabled"
    meminfo.write_text(f"MemAvailable: 9 kB\nHugePages_Free: {free}\nHugepagesize: 2048 kB\n")
    if mode is not None:
        enabled.write_text(mode + "\n")
    monkeypatch.setattr(processor, "_MEMINFO", meminfo)
    monkeypatch.setattr(processor, "_TRANSPARENT", enabled)
    finding = processor._huge_pages()
    assert (finding.verdict, finding.figures["free_bytes"]) == (verdict, free * (2 << 20))
    assert ("two thirds" in finding.advice) == (verdict == "slow")


@pytest.mark.parametrize(
    ("number", "words"),
    [(errno.EPERM, "not allowed"), (errno.ENOSYS, "this kernel does not have it")],
)
def test_io_uring_that_is_refused_says_by_whom(tmp_path, monkeypatch, number, words):
    class Kernel:
        def syscall(self, *arguments):
            ctypes.set_errno(number)
            return -1

    monkeypatch.setattr(processor.ctypes, "CDLL", lambda *_, **__: Kernel())
    finding = processor._io_uring()
    assert finding.verdict == "missing"
    assert words in finding.found
