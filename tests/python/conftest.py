"""Small models, and the command line as a user runs it."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from experiments.kill_resume.kills import read_lines, wait_for_step

REPOSITORY = Path(__file__).resolve().parents[2]


def pytest_addoption(parser):
    """Places of a save that are flipped, for `test_flipped_bytes.py`; the device of `gpu_*.py`."""
    parser.addoption("--flips", type=int, default=16)
    parser.addoption("--flip-seed", type=int, default=None)
    parser.addoption("--device", default="cuda:0", help="or host, to see that gpu_*.py run")


def pytest_generate_tests(metafunc):
    """One case for each place, with the number that draws it."""
    if "flip_case" in metafunc.fixturenames:
        first = metafunc.config.getoption("flip_seed")
        first = _fresh_seed(metafunc.config) if first is None else first
        cases = [(k, first + k) for k in range(metafunc.config.getoption("flips"))]
        metafunc.parametrize("flip_case", cases, ids=[f"seed{seed}" for _, seed in cases])


@pytest.fixture(scope="session")
def device(request):
    """Device of `gpu_*.py`; without a card they fail, as a skip would hide a broken machine."""
    import torch
    from sluiceway import _core

    name = request.config.getoption("device")
    if name != "host":
        there = torch.cuda.device_count(), _core.cuda_device_count()
        assert min(there) > 0, f"no CUDA device: torch sees {there[0]}, our build {there[1]}"
    return torch.device("cpu" if name == "host" else name)


@pytest.fixture
def memory_folder():
    """A new folder on a file system without direct I/O: a tmpfs, wherever this machine has one."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    places = [place for _, place, kind, *_ in mounts if kind == "tmpfs"]
    usable = [place for place in places if os.access(place, os.W_OK | os.X_OK)]
    assert usable, f"none of the tmpfs {places} may be written to"
    with tempfile.TemporaryDirectory(dir=min(usable, key=lambda p: p != "/dev/shm")) as folder:
        yield Path(folder)


@pytest.fixture(autouse=True)
def nothing_was_compiled_before():
    """Undo compilations by other tests: after any compilation `step()` itself waits."""
    frames = sys.modules.get("torch._dynamo.convert_frame")
    if frames is not None and frames.FRAME_COUNTER > 0:
        sys.modules["torch._dynamo"].reset()


def _fresh_seed(config) -> int:
    """The same in every worker of one run, as they must find the same cases."""
    run = getattr(config, "workerinput", {}).get("testrunuid")
    return random.SystemRandom().randrange(2**31) if run is None else int(run[:7], 16)


def _environment() -> dict[str, str]:
    spec = importlib.util.find_spec("sluiceway")
    package = Path(spec.submodule_search_locations[0]).parent
    paths = [str(package), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in paths if p)}


@dataclass
class Outcome:
    """Result of a command."""

    code: int
    out: str
    err: str


class Command:
    """A `sluiceway` command that is running."""

    def __init__(self, launcher: Launcher, pid: int, out: Path, err: Path) -> None:
        self._launcher, self.pid, self._out, self._err = launcher, pid, out, err

    def signal(self, number: int) -> None:
        """Send a signal; a command that has ended does not mind."""
        os.kill(self.pid, number)

    def is_running(self) -> bool:
        """Tell whether the process still runs; one that has ended is a zombie until `wait`."""
        stat = Path(f"/proc/{self.pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] != "Z"

    def wait(self) -> Outcome:
        """Wait for the end; a signal's exit code is minus its number."""
        code = self._launcher.ask({"wait": self.pid})["code"]
        return Outcome(code, self._out.read_text(), self._err.read_text())


# Imports once what every command imports, then forks a fresh process for each: a command takes a
# second in place of seven. The child is an ordinary process of its own, signals and all.
_LAUNCHER = """
import json, os, signal, sys
import sluiceway.run.run, sluiceway.commands.plan
import transformers.models.llama.modeling_llama
from transformers import AutoModelForCausalLM, AutoTokenizer
from sluiceway.commands.cli import run
def child(request):
    os.setsid()
    os.chdir(request["cwd"])
    for name, number in (("out", 1), ("err", 2)):
        os.dup2(os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    code = 70
    try:
        code = run(request["start"])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
print(json.dumps({}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    if "start" in request:
        pid = os.fork()
        if pid == 0:
            child(request)
        answer = {"pid": pid}
    elif "wait" not in request:
        answer = {}
    else:
        status = os.waitpid(request["wait"], 0)[1]
        answer = {"code": os.waitstatus_to_exitcode(status)}
    print(json.dumps({**answer, "number": request["number"]}), flush=True)
"""


class Launcher:
    """Starts `sluiceway` commands in processes of their own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = self._asked = 0
        self._server: subprocess.Popen | None = None

    def ask(self, request: dict) -> dict:
        """One question, one answer."""
        if self._server is None:
            self._server = subprocess.Popen(
                [sys.executable, "-c", _LAUNCHER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=_environment(),
            )
            self._server.stdout.readline()
        self._asked += 1
        self._server.stdin.write(json.dumps({**request, "number": self._asked}) + "\n")
        self._server.stdin.flush()
        while True:
            answer = json.loads(self._server.stdout.readline())
            if answer["number"] == self._asked:  # Others belong to a test that was given up.
                return answer

    @property
    def server_pid(self) -> int:
        """Process that commands are forked from; they inherit its cores."""
        self.ask({})
        return self._server.pid

    def start(self, *arguments: object, cwd: Path | None = None) -> Command:
        """Start a command."""
        self._count += 1
        out, err = (self._folder / f"{self._count}.{name}" for name in ("out", "err"))
        for path in (out, err):  # A command that is killed at once does not make them.
            path.touch()
        request = {
            "start": [str(a) for a in arguments],
            "cwd": str(cwd or self._folder),
            "out": str(out),
            "err": str(err),
        }
        return Command(self, self.ask(request)["pid"], out, err)

    def __call__(self, *arguments: object, cwd: Path | None = None) -> Outcome:
        """Run a command to its end."""
        return self.start(*arguments, cwd=cwd).wait()

    def stop(self) -> None:
        """End the server."""
        if self._server is not None:
            self._server.stdin.close()
            self._server.wait()


@pytest.fixture(scope="session")
def sluiceway(tmp_path_factory):
    """Run a command: `sluiceway("train", config, "--out", folder)` gives code, out and err."""
    launcher = Launcher(tmp_path_factory.mktemp("commands"))
    yield launcher
    launcher.stop()


@pytest.fixture
def forked_by_scripts(sluiceway, monkeypatch):
    """Commands that scripts of experiments/ start by `run_folder` are forked as those above."""
    from experiments.quickstart import run_folder

    def run(command: list[str], *, cwd: Path, check: bool, **options: object):
        if command[1:3] != ["-m", "sluiceway"]:
            return subprocess.run(command, cwd=cwd, check=check, **options)
        done = sluiceway(*command[3:], cwd=cwd)
        ended = subprocess.CompletedProcess(command, done.code, done.out, done.err)
        if check:
            ended.check_returncode()
        return ended

    monkeypatch.setattr(run_folder, "subprocess", SimpleNamespace(run=run))


@pytest.fixture(scope="session")
def python_m_sluiceway():
    """The same through `python -m sluiceway`, from an interpreter that has imported nothing."""

    def run(*arguments: object, cwd: Path | None = None, **options) -> Outcome:
        done = subprocess.run(
            [sys.executable, "-m", "sluiceway", *map(str, arguments)],
            capture_output=True,
            text=True,
            cwd=cwd,
            env=_environment(),
            check=False,
            **options,
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    return run


def build_llama(folder: Path, hidden: int, layers: int = 2, context: int = 128) -> Path:
    """Write a byte-level Llama with random weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from experiments.quickstart.byte_tokenizer import VOCABULARY_SIZE, write_tokenizer

    torch.manual_seed(11)
    shape = LlamaConfig(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        bos_token_id=256,
        eos_token_id=256,
        pad_token_id=256,
    )
    LlamaForCausalLM(shape).save_pretrained(folder)
    write_tokenizer(folder, context)
    return folder


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> Path:
    """A model folder of some 20,000 parameters: too small for anything to be compressed."""
    return build_llama(tmp_path_factory.mktemp("models") / "tiny", hidden=32)


@pytest.fixture(scope="session")
def small_model(tmp_path_factory) -> Path:
    """A model folder whose linear weights are large enough to be compressed."""
    return build_llama(tmp_path_factory.mktemp("models") / "small", hidden=256, layers=2)


@pytest.fixture(scope="session")
def prose(tmp_path_factory) -> Path:
    """A text file of some 12 KB."""
    from sluiceway.text.pydoc_text import pydoc_text

    path = tmp_path_factory.mktemp("text") / "prose.txt"
    path.write_text("\n\n".join(pydoc_text("train"))[:12_000])
    return path


@pytest.fixture(scope="session")
def finished(sluiceway, tiny_model, prose, tmp_path_factory):
    """A run of plain AdamW with a comparison; (folder, outcome)."""
    here = tmp_path_factory.mktemp("finished")
    config = {
        "model": {"path": str(tiny_model)},
        "data": {"train": [str(prose)], "eval": ["pydoc"], "sequence_length": 32},
        "compare": "native",
        "train": {"steps": 6, "micro_batch": 2, "accumulate": 2, "lr": 1e-2, "eval_every": 2,
                  "eval_sequences": 4, "save_every": 3},
        "engine": {"kind": "native"},
        "device": {"name": "host", "threads": 1},
    }  # fmt: skip
    (here / "run.yaml").write_text(yaml.safe_dump(config))
    outcome = sluiceway("train", here / "run.yaml", "--out", here / "out")
    assert outcome.code == 0, outcome.err
    return here / "out", outcome


@pytest.fixture
def write_config(tmp_path, prose):
    """Write a config for a model folder; sections given by name are merged in."""

    def write(folder: Path, /, name: str = "run.yaml", **sections) -> Path:
        tree = {
            "model": {"path": str(folder)},
            "data": {"train": [str(prose)], "eval": [str(prose)], "sequence_length": 32},
            "train": {"steps": 6, "micro_batch": 2, "lr": 1e-2, "eval_sequences": 4},
            "engine": {"kind": "native"},
            "device": {"name": "host", "threads": 1},
        }
        for section, keys in sections.items():
            tree[section] = {**tree.get(section, {}), **keys} if isinstance(keys, dict) else keys
        path = tmp_path / name
        path.write_text(yaml.safe_dump(tree, sort_keys=False))
        return path

    return write


@pytest.fixture
def load(tmp_path):
    """Loads a config that is given as text, with what `--set` would say."""
    from sluiceway.config.file import load_config

    def from_text(text, *overrides):
        path = tmp_path / "run.yaml"
        path.write_text(text)
        return load_config(path, list(overrides))

    return from_text


def assert_short_error(outcome, code, *words):
    """One or two lines on stderr, no traceback, and the exit code."""
    assert outcome.code == code, outcome.err
    lines = outcome.err.splitlines()
    assert 1 <= len(lines) <= 2, outcome.err
    assert "Traceback" not in outcome.err
    for word in words:
        assert word in outcome.err, outcome.err


__all__ = ["assert_short_error", "build_llama", "read_lines", "wait_for_step"]
