"""An engine of another distribution: the command line trains with it, and refuses a broken one."""

from __future__ import annotations

import json
import random
import shutil
import signal
from pathlib import Path

import pytest
import torch
from conftest import REPOSITORY, Launcher, assert_short_error, read_lines
from safetensors.torch import load_file

from experiments.kill_resume.kills import kill_often, loss_lines, weights_hash

SGD = REPOSITORY / "tests/python/sgd_engine.py"


def install(folder: Path, module: str, *points: str, name: str = "dummy") -> Path:
    """A distribution as pip leaves it: a module, and metadata with its entry points."""
    folder.mkdir(exist_ok=True)
    (folder / f"{name}_engine.py").write_text(module)
    metadata = folder / f"{name}-1.5.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
    (metadata / "entry_points.txt").write_text("\n".join(["[sluiceway.engines]", *points, ""]))
    return folder


@pytest.fixture(scope="module")
def with_sgd(tmp_path_factory):
    """The command line beside the distribution that brings `kind: sgd`."""
    site = tmp_path_factory.mktemp("site")
    install(site, SGD.read_text(), "sgd = dummy_engine:Sgd")
    launcher = Launcher(tmp_path_factory.mktemp("commands"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(site))
        launcher.ask({})
    yield launcher
    launcher.stop()


@pytest.fixture
def sgd_config(tiny_model, write_config):
    """A config of such a run; sections given by name are merged in."""

    def write(**sections) -> Path:
        train = {"schedule": "constant", "lr": 0.3, "accumulate": 2, **sections.pop("train", {})}
        engine = {"kind": "sgd", "momentum": 0.5}
        return write_config(tiny_model, train=train, engine=engine, **sections)

    return write


def test_every_command_knows_an_engine_that_was_installed(with_sgd, sgd_config, tmp_path):
    config, run = sgd_config(compare="native"), tmp_path / "run"

    outcome = with_sgd("train", config, "--out", run)
    assert outcome.code == 0, outcome.err
    assert "sgd: momentum 0.5" in outcome.out
    lines = read_lines(run)
    assert lines[-1]["loss"] < lines[1]["loss"]
    assert lines[-1]["sgd"] == {"momentum": 0.5}
    assert lines[-1]["bytes"] == {"d2h": 0, "h2d": 0, "disk_read": 0, "disk_written": 0}
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["engine"], summary["momentum"], summary["status"]) == ("sgd", 0.5, "done")
    assert summary["native_ratio"] > 0

    outcome = with_sgd("eval", run, "--json")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["loss"] == pytest.approx(summary["final_eval_loss"], rel=1e-6)

    outcome = with_sgd("export", run, "--to", tmp_path / "model")
    assert outcome.code == 0, outcome.err
    saved = load_file(run / "checkpoint" / "model.safetensors")
    for name, tensor in load_file(tmp_path / "model" / "model.safetensors").items():
        assert torch.equal(tensor, saved[name]), name

    outcome = with_sgd("report", run)
    assert outcome.code == 0, outcome.err
    assert "sgd" in (run / "report.html").read_text()


def test_plan_is_what_the_engine_says(with_sgd, sgd_config):
    plans = [
        json.loads(with_sgd("plan", sgd_config(), "--set", f"engine={engine}", "--json").out)
        for engine in ("{kind: sgd}", "{kind: sgd, momentum: 0.5}", "{kind: native}")
    ]
    trained = plans[0]["parameters"]["trained"]
    peaks = [plan["peak_bytes"]["device"] for plan in plans]
    assert [peak - peaks[0] for peak in peaks] == [0, 4 * trained, 8 * trained]
    assert plans[0]["engine"] == "sgd"
    outcome = with_sgd("plan", sgd_config(), "--set", "budget.device=1KiB")
    assert_short_error(outcome, 3, "budget.device: the run needs")


def test_run_that_was_killed_ends_in_the_bits_of_one_that_was_not(with_sgd, sgd_config, tmp_path):
    config = sgd_config(train={"steps": 60, "save_every": 7})
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert with_sgd("train", config, "--out", whole).code == 0
    record = kill_often(with_sgd.start, config, killed, 3, 0.3, random.Random(3))
    assert record
    assert all(kill["code"] == -signal.SIGKILL for kill in record)
    assert weights_hash(killed) == weights_hash(whole)
    assert loss_lines(killed) == loss_lines(whole)


def test_resume_changes_the_keys_that_the_engine_lets_change(with_sgd, sgd_config, tmp_path):
    run = tmp_path / "run"
    assert with_sgd("train", sgd_config(train={"steps": 2}), "--out", run).code == 0
    outcome = with_sgd("resume", run, "--set", "engine.momentum=0.1")
    assert_short_error(outcome, 2, "engine.momentum was 0.5, is now 0.1", "engine.label")
    outcome = with_sgd("resume", run, "--set", "engine.label=again", "--set", "train.steps=3")
    assert outcome.code == 0, outcome.err
    assert "engine.label was , is now again" in outcome.err
    assert "sgd: momentum 0.5 again" in outcome.out


def test_misspelled_key_of_its_section_is_told_the_nearest(with_sgd, sgd_config):
    outcome = with_sgd("plan", sgd_config(), "--set", "engine.momentun=1")
    assert_short_error(outcome, 2, "unknown key engine.momentun, did you mean engine.momentum?")
    outcome = with_sgd("plan", sgd_config(), "--set", "engine.kind=sdg")
    words = (
        "engine.kind is 'sdg', expected one of: subspace, native, offload, zo, sgd; did you mean "
        "sgd?"
    )
    assert_short_error(outcome, 2, words)


SECTION = """
from typing import Literal
from sluiceway.config.engine_section import EngineSection
class DummySection(EngineSection):
    kind: Literal["{kind}"] = "{kind}"
class Dummy:
    section = DummySection
"""
INCOMPLETE = SECTION.format(kind="sgd").replace("class Dummy:", "class Dummy(ResidentEngine):")
INCOMPLETE = "from sluiceway.engines.resident import ResidentEngine\n" + INCOMPLETE


@pytest.mark.parametrize(
    ("module", "kind", "words"),
    [
        pytest.param(
            "import nowhere_to_be_found", "sgd",
            "(dummy_engine:Dummy), which cannot be loaded, ModuleNotFoundError: No module named "
            "'nowhere_to_be_found'; mend or uninstall", id="import-error",
        ),
        pytest.param(
            "", "sgd", "cannot be loaded, AttributeError: module 'dummy_engine' has no attribute",
            id="no-such-name",
        ),
        pytest.param(
            "def Dummy(): pass", "sgd", "whose section is None, expected an EngineSection",
            id="no-engine",
        ),
        pytest.param(
            SECTION.format(kind="sdg"), "sgd", "whose section has kind 'sdg' by default, expected "
            "'sgd'", id="other-kind",
        ),
        pytest.param(
            SECTION.format(kind="sgd"), "sgd", "is no sluiceway.engines.engine.Engine; let it "
            "inherit from GradientEngine", id="other-class",
        ),
        pytest.param(
            INCOMPLETE, "sgd", "does not define make_optimizer, plan, update", id="no-methods",
        ),
        pytest.param(
            SECTION.format(kind="native"), "native", "is registered by sluiceway itself and by "
            "dummy 1.5, expected one; uninstall dummy 1.5", id="built-in-kind",
        ),
    ],
)  # fmt: skip
def test_broken_plugin_is_one_error_that_names_its_distribution(
    python_m_sluiceway, monkeypatch, tiny_model, write_config, tmp_path, module, kind, words
):
    site = install(tmp_path / "site", module, f"{kind} = dummy_engine:Dummy")
    monkeypatch.setenv("PYTHONPATH", str(site))
    config = write_config(tiny_model, engine={"kind": kind})
    outcome = python_m_sluiceway("train", config, "--out", tmp_path / "out")
    assert_short_error(outcome, 2, f"engine.kind {kind}", words)
    assert not (tmp_path / "out").exists()


def test_two_distributions_that_bring_one_kind_are_both_named(
    python_m_sluiceway, monkeypatch, tiny_model, write_config, tmp_path
):
    for name in ("dummy", "other"):
        install(tmp_path / "site", SGD.read_text(), f"sgd = {name}_engine:Sgd", name=name)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    outcome = python_m_sluiceway("plan", write_config(tiny_model, engine={"kind": "sgd"}))
    assert_short_error(outcome, 2, "registered by dummy 1.5 and by other 1.5, expected one")


def test_broken_plugin_does_not_keep_other_kinds_from_running(
    python_m_sluiceway, monkeypatch, tiny_model, write_config, tmp_path
):
    site = install(tmp_path / "site", "import nowhere_to_be_found", "sgd = dummy_engine:Dummy")
    monkeypatch.setenv("PYTHONPATH", str(site))
    outcome = python_m_sluiceway("plan", write_config(tiny_model), "--json")
    assert outcome.code == 0, outcome.err
    shutil.rmtree(site)
    assert json.loads(outcome.out)["engine"] == "native"
