"""experiments/gpu/run.sh with stand-ins for card and tools: what it runs, and what again."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest
from conftest import REPOSITORY

GPU = REPOSITORY / "experiments" / "gpu"
# Each writes down what it was asked, then does what the file FAKES/<name> says, if there is one.
TOOL = """#!/bin/bash
name=$(basename "$0")
echo "$name $*" >>"$FAKES/asked"
[ ! -f "$FAKES/$name" ] || . "$FAKES/$name"
"""
# The recorder and the question for torch are real.
PYTHON = f"""#!/bin/bash
case "$1 $2" in
  "-m experiments.gpu.record" | "-c "*) exec {sys.executable} "$@" ;;
esac
{TOOL.partition(chr(10))[2]}"""
TESTS = (
    "kernels_compress",
    "kernels_compress_linear",
    "kernels_decompress",
    "kernels_overflow_scan",
    "kernels_residual",
    "runtime_device_cuda_stream",
    "runtime_device_cuda_link",
    "runtime_engine_subspace_device_engine",
)
SANITIZER = """
case "$*" in *"$(cat "$FAKES/too_long")"*) exit 124 ;; esac
echo '========= ERROR SUMMARY: 0 errors'
"""
CTEST = """
build=$(sed 's/.*--test-dir \\([^ ]*\\).*/\\1/' <<<"$*")
echo '{"tests": [{"name": "kernels_wire_test", "command": ["'"$build"'/tests/wire"]}]}'
"""
PYTEST = """
case "$*" in "-m pytest "*)
  xml=$(sed 's/.*--junitxml \\([^ ]*\\).*/\\1/' <<<"$*")
  echo '<t><testcase name="a" status="run"/></t>' >"$xml" ;;
esac
"""
# A test binary writes its name down, too, and hangs where FAKES/hangs says so.
BINARY = """#!/bin/bash
name=$(basename "$0")
echo "$name $*" >>"$FAKES/asked"
echo "[ RUN      ] SomeTest.IsTheOne"
[ "$name" != "$(cat "$FAKES/hangs")" ] || sleep 60
echo "[  PASSED  ] 1 test."
"""
TRAIN = """
case "$*" in *"$(cat "$FAKES/broken")"*) echo 'no such device' >&2; exit 1 ;; esac
"""


class Sandbox:
    """A tree with run.sh, in which builds and tools are stand-ins."""

    def __init__(self, root):
        self.root, self.out, self.fakes = root, root / "out", root / "fakes"
        shutil.copytree(GPU, root / "experiments" / "gpu")
        for name in ("step", "laptop", "quickstart", "bench", "harness.py"):
            (root / "experiments" / name).symlink_to(REPOSITORY / "experiments" / name)
        for name in ("python", "configs"):
            (root / name).symlink_to(REPOSITORY / name)
        tools = root / "tools"
        for name in ("nvidia-smi", "nvcc", "cmake", "ctest", "compute-sanitizer"):
            self.executable(tools / name, TOOL)
        self.executable(tools / "python", PYTHON)
        build = root / "build" / "cuda"
        self.executable(build / "experiments/bench/bench_device", "#!/bin/sh\necho scan/f\n")
        (build / "sluiceway_commit").write_text("one\n")
        for name in TESTS:
            self.executable(build / "tests" / f"{name}_test", BINARY)
        lines = [f"{name}_test\ttests/{name}_test\n" for name in TESTS]
        (build / "gpu_tests.txt").write_text("".join(lines))
        (build / "python/bindings").mkdir(parents=True)
        (build / "python/bindings/_core.so").touch()  # The installed one is not to be seen.
        (root / "tests/python").mkdir(parents=True)
        (root / ".ci").symlink_to(REPOSITORY / ".ci")
        self.fakes.mkdir()
        self.does("too_long", "nothing")
        self.does("broken", "nothing")
        self.does("hangs", "nothing")
        self.environment = {
            **os.environ, "FAKES": str(self.fakes), "PATH": f"{tools}:{os.environ['PATH']}",
            "PYTHON": str(tools / "python"), "SLUICEWAY_COMMIT": "one",
        }  # fmt: skip

    @staticmethod
    def executable(path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def does(self, name, text):
        (self.fakes / name).write_text(text)

    def run(self, *arguments, **environment) -> subprocess.CompletedProcess:
        """One call; what it asked of the tools is in `asked` afterwards."""
        (self.fakes / "asked").write_text("")
        done = subprocess.run(
            [str(self.root / "experiments/gpu/run.sh"), *arguments[:1], str(self.out),
             *arguments[1:]],
            env={**self.environment, **environment}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        asked = (self.fakes / "asked").read_text().splitlines()
        self.asked = [line for line in asked if not line.startswith(("nvidia-smi", "nvcc"))]
        return done

    def record(self, part) -> dict:
        return json.loads((self.out / f"{part}.json").read_text())


@pytest.fixture
def sandbox(tmp_path):
    return Sandbox(tmp_path)


def test_smoke_runs_binaries_python_and_quickstarts_and_ends_in_their_table(sandbox):
    sandbox.does("python", PYTEST)
    done = sandbox.run("smoke")
    assert done.returncode == 0, done.stderr
    pieces = sandbox.record("smoke")["pieces"]
    others = {"python", "doctor", "laptop", "subspace", "cores", "offload_disk", "zo_host"}
    assert set(pieces) == {*others, *(f"{name}_test" for name in TESTS)}
    assert {piece["state"] for piece in pieces.values()} == {"passed"}
    (pytest_line,) = (line for line in sandbox.asked if "-m pytest" in line)
    assert " -n 8 " in pytest_line
    assert pytest_line.endswith("tests/python")
    *_, one, _, last = done.stdout.splitlines()
    assert one.startswith("| ")
    assert last == f"{len(pieces)} passed"


def test_a_binary_that_hangs_is_cut_and_the_others_pass_and_it_alone_runs_again(sandbox):
    sandbox.does("python", PYTEST)
    sandbox.does("hangs", "kernels_compress_test")
    done = sandbox.run("smoke", TURN_SECONDS="5")  # Far above what the others take.
    assert done.returncode == 1
    pieces = sandbox.record("smoke")["pieces"]
    states = {name: piece["state"] for name, piece in pieces.items()}
    assert states.pop("kernels_compress_test") == "not finished"
    assert set(states.values()) == {"passed"}
    cut = pieces["kernels_compress_test"]
    assert cut["told"] == "0 tests ended, then SomeTest.IsTheOne"
    assert cut["log"] == ["[ RUN      ] SomeTest.IsTheOne"]
    assert 10 <= cut["seconds"] < 40
    assert f"{len(states)} passed, 1 not finished" in done.stdout.splitlines()
    sandbox.does("hangs", "nothing")
    shutil.rmtree(sandbox.root / "build" / "gpu")  # As on a machine that only OUT went to.
    assert sandbox.run("smoke").returncode == 0
    assert [line.split()[0] for line in sandbox.asked] == ["kernels_compress_test"]
    assert sandbox.run("smoke").returncode == 0
    assert sandbox.asked == []


def test_a_part_takes_no_longer_than_it_may_and_says_what_was_left(sandbox):
    sandbox.does("python", 'case "$*" in *train*) sleep 60 ;; esac')
    done = sandbox.run("engines", PART_SECONDS="16", TURN_SECONDS="4")
    assert done.returncode == 1
    record = sandbox.record("engines")
    assert record["seconds"] < 40
    told = [piece["told"] for piece in record["pieces"].values()]
    assert told.count("no time was left for it") >= 6
    assert {piece["state"] for piece in record["pieces"].values()} == {"not finished"}


def test_sanitizers_that_did_not_end_fail_and_alone_are_run_again(sandbox):
    sandbox.does("compute-sanitizer", SANITIZER)
    sandbox.does("too_long", "racecheck --error-exitcode 9 build/cuda/tests/kernels_residual")
    done = sandbox.run("sanitize")
    assert done.returncode == 1, done.stderr
    pieces = sandbox.record("sanitize")["pieces"]
    states = {name: piece["state"] for name, piece in pieces.items()}
    assert states.pop("racecheck_kernels_residual") == "not finished"
    assert set(states.values()) == {"passed"}
    assert {"memcheck_runtime_device_cuda_stream", "memcheck_runtime_device_cuda_link",
            "memcheck_kernels_compress", "racecheck_runtime_engine_subspace_device_engine"
            } <= set(states)  # fmt: skip
    assert len(sandbox.asked) == len(pieces)
    sandbox.does("too_long", "nothing")
    assert sandbox.run("sanitize").returncode == 0
    assert len(sandbox.asked) == 1
    assert "racecheck" in sandbox.asked[0]
    table = (sandbox.out / "table.txt").read_text()
    assert "| racecheck_kernels_residual | passed |" in table


def test_a_test_binary_that_is_missing_is_a_failure(sandbox):
    sandbox.does("python", PYTEST)
    (sandbox.root / "build/cuda/tests/runtime_device_cuda_link_test").unlink()
    assert sandbox.run("smoke").returncode == 1
    missing = sandbox.record("smoke")["pieces"]["runtime_device_cuda_link_test"]
    assert missing["state"] == "failed"
    assert "No such file or directory" in missing["told"]


def test_the_build_makes_the_module_and_the_tests_of_the_label(sandbox):
    sandbox.does("ctest", CTEST)
    done = sandbox.run("build")
    assert done.returncode == 0, done.stderr
    targets = [line.partition("--target ")[2] for line in sandbox.asked if "--target" in line]
    assert targets == ["bench_device _core _host_allocator", "kernels_wire_test"]
    assert sandbox.record("build")["pieces"]["resources"]["state"] == "passed"
    tests = (sandbox.root / "build/cuda/gpu_tests.txt").read_text()
    assert tests == "kernels_wire_test\ttests/wire\n"


def test_each_step_is_a_process_and_the_next_goes_on_where_one_was_cut(sandbox):
    ends = """
n=$(grep -c experiments.step.step "$FAKES/asked")
case $n in 1) exit 3 ;; 2) kill -ALRM $$ ;; 3) trap "" ABRT; sleep 60 ;; esac
"""
    sandbox.does("python", ends)
    links = '--links "PCIe 4.0 x16" --rounds 1'
    done = sandbox.run("step", STEP_ARGS=links, TURN_SECONDS="1")
    assert done.returncode == 0, done.stderr
    assert len(sandbox.asked) == 4
    assert sandbox.asked[3].endswith("--links PCIe 4.0 x16 --rounds 1")
    assert all("--pacing absolute ratio" in line for line in sandbox.asked)
    assert all(" --turns 1 " in line for line in sandbox.asked)
    assert [" --retry " in line for line in sandbox.asked] == [True, False, False, False]
    assert sandbox.record("step")["status"] == 0


def test_no_step_begins_in_the_last_seconds_of_the_part(sandbox):
    sandbox.does("python", "exit 3")
    done = sandbox.run("step", PART_SECONDS="8", TURN_SECONDS="4")
    assert done.returncode == 0, done.stderr
    assert sandbox.asked
    assert sandbox.record("step")["seconds"] < 8


def test_a_packed_build_names_its_commit_and_where_its_packages_are(sandbox):
    environment = sandbox.root / "build/cuda/environment"
    environment.write_text("export SLUICEWAY_COMMIT=one PYTHONPATH=/packed\n")
    sandbox.does("python", 'echo "$PYTHONPATH" >"$FAKES/path"')
    done = sandbox.run("engines", SLUICEWAY_COMMIT="")
    assert done.returncode == 0, done.stderr
    assert (
        (sandbox.fakes / "path")
        .read_text()
        .endswith(f"/build/cuda/site:/packed:{sandbox.root}/python\n")
    )
    assert sandbox.record("engines")["commit"] == "one"


def test_a_build_of_another_commit_is_built_anew_before_anything_else(sandbox):
    sandbox.does("ctest", CTEST)
    assert sandbox.run("build").returncode == 0
    assert sandbox.run("build").returncode == 0
    assert sandbox.asked == [], "it is there"
    of = sandbox.root / "build/cuda/sluiceway_commit"
    for found in ("two", None):  # As on a machine that OUT was brought to, whose build is its own.
        of.unlink()
        if found:
            of.write_text(found + "\n")
        done = sandbox.run("engines")
        assert done.returncode == 1
        told = f"engines: build/cuda is of commit {found or 'unknown'}, expected one; run "
        assert told in done.stderr
        assert sandbox.asked == []
        assert not (sandbox.out / "engines.json").exists()
        assert sandbox.run("build").returncode == 0
        assert any("cmake --build" in line for line in sandbox.asked)
        assert of.read_text() == "one\n"
    assert sandbox.run("engines").returncode == 0
    (sandbox.root / "build/cuda/experiments/bench/bench_device").unlink()
    assert "bench: build/cuda is missing; run " in sandbox.run("bench").stderr


def test_a_build_that_failed_is_of_no_commit(sandbox):
    sandbox.does("cmake", 'case "$*" in *--build*) exit 1 ;; esac')
    assert sandbox.run("build", "--again").returncode == 1
    assert "is of commit unknown" in sandbox.run("engines").stderr


def test_a_tree_that_differs_from_its_commit_is_built_whenever_asked(sandbox):
    sandbox.does("ctest", CTEST)
    for _ in range(2):
        assert sandbox.run("build", SLUICEWAY_COMMIT="one-dirty").returncode == 0
        assert any("cmake --build" in line for line in sandbox.asked)


def test_what_there_is_no_tool_for_is_not_run_and_the_table_says_so(sandbox):
    sandbox.does("ctest", CTEST)
    lacks = 'case "$*" in *cuda_resources*) echo "no cuobjdump on PATH"; exit 77 ;; esac'
    sandbox.does("python", lacks)
    done = sandbox.run("build", "--again")
    assert done.returncode == 0, done.stderr
    assert sandbox.record("build")["pieces"]["resources"]["state"] == "not run"
    for line in ("| build | 0, not run: resources | 0 |", "| resources | not run | "):
        assert line in done.stdout
    assert " | no cuobjdump on PATH |" in done.stdout
    sandbox.does("python", lacks.replace("77", "1"))
    assert sandbox.run("build", "--again").returncode == 1
    assert sandbox.record("build")["pieces"]["resources"]["state"] == "failed"


STEPS = r"""
out=$(sed 's/.*--out \([^ ]*\).*/\1/' <<<"$*")
case "$*" in *--rounds*) left=0 ;; *) left=$(cat "$FAKES/left") ;; esac
echo "{\"commit\": \"one\", \"left\": $left}" >"$out"
"""


def test_steps_that_were_narrowed_are_not_all_of_them(sandbox):
    sandbox.does("python", STEPS)
    sandbox.does("left", "5")
    narrow = {"STEP_ARGS": "--rounds 1"}
    done = sandbox.run("step", **narrow)
    assert done.returncode == 0, done.stderr
    assert "| step | 0 | 0 of --rounds 1 |" in done.stdout
    assert sandbox.run("step", **narrow).returncode == 0
    assert sandbox.asked == []
    for left, asked in ((5, 1), (0, 1), (0, 0)):
        sandbox.does("left", str(left))
        assert f"| step | 0 | {left} |" in sandbox.run("step").stdout
        assert len(sandbox.asked) == asked
    assert "| 0 of --rounds 1 |" in sandbox.run("step", **narrow).stdout
    assert len(sandbox.asked) == 1, "what these leave was not counted"


def test_whole_models_that_failed_are_run_again(sandbox):
    assert sandbox.run("memory").returncode == 0
    assert " --retry " in sandbox.asked[0]
    assert " --run-limit 30 " in sandbox.asked[0]


def test_steps_that_fail_are_not_begun_again(sandbox):
    sandbox.does("python", "exit 1")
    assert sandbox.run("step").returncode == 1
    assert len(sandbox.asked) == 1


def test_every_engine_runs_and_a_failure_is_that_engines_alone(sandbox):
    sandbox.does("python", TRAIN)
    sandbox.does("broken", "engine.fused=true")
    assert sandbox.run("engines").returncode == 1
    pieces = sandbox.record("engines")["pieces"]
    assert list(pieces) == [
        "native", "subspace", "cores", "fused", "offload_host", "zo", "zo_host", "offload_disk",
    ]  # fmt: skip
    assert pieces["fused"]["state"] == "failed"
    assert pieces["fused"]["told"] == "no such device"
    assert all("--set device.name=cuda:0" in line for line in sandbox.asked)
    sandbox.does("broken", "nothing")
    assert sandbox.run("engines").returncode == 0
    assert len(sandbox.asked) == 1
    assert sandbox.run("engines", "--again").returncode == 0
    assert len(sandbox.asked) == len(pieces)


def test_all_parts_leave_one_file_each_and_a_table(sandbox):
    sandbox.does("ctest", CTEST)
    sandbox.does("python", PYTEST)
    sandbox.does("compute-sanitizer", SANITIZER)
    (sandbox.root / "build/cuda/tests/wire").write_text(BINARY)
    (sandbox.root / "build/cuda/tests/wire").chmod(0o755)
    done = sandbox.run("all")
    assert done.returncode == 0, done.stderr
    parts = ("build", "smoke", "step", "memory", "bench", "engines", "peers", "fidelity")
    assert {path.name for path in sandbox.out.iterdir()} == {
        *(f"{part}.json" for part in parts), "sanitize.json", "table.txt",
    }  # fmt: skip
    assert done.stdout.rstrip().endswith((sandbox.out / "table.txt").read_text().rstrip())


def test_another_commits_results_are_refused(sandbox):
    assert sandbox.run("engines").returncode == 0
    done = sandbox.run("engines", SLUICEWAY_COMMIT="two")
    assert done.returncode == 2
    assert "engines.json is of commit one, expected two; give another OUT" in done.stderr
    assert sandbox.asked == []


def test_tests_for_a_card_fail_without_one():
    folder = "tests/python/optim/common"
    files = [f"{folder}/gpu_training.py", f"{folder}/gpu_around_training.py"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o",
               "python_files=gpu_*.py", *files]  # fmt: skip
    done = subprocess.run(
        command, cwd=REPOSITORY, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "no CUDA device: torch sees 0" in done.stdout
    assert all(f"ERROR {file}" in done.stdout for file in files)
    assert " passed" not in done.stdout.splitlines()[-1]
    assert "skipped" not in done.stdout.splitlines()[-1]
