"""`kind: zo` on the command line: what it trains, saves, goes on from, and says."""

from __future__ import annotations

import contextlib
import json
import random
import re
import shutil
import signal
from functools import partial
from pathlib import Path

import pytest
import sluiceway as sw
import torch
from conftest import assert_short_error, read_lines, wait_for_step
from safetensors.torch import load_file, save_file
from sluiceway.config.file import load_config
from sluiceway.engines import engine_of
from sluiceway.machine.placement import DTYPES, denormals
from sluiceway.model.folder import load_model
from sluiceway.run.held_out import mean_loss
from sluiceway.run.loop import learning_rates
from sluiceway.run.session import read_inputs
from sluiceway.run.timeline import Timeline
from sluiceway.text.batches import Batches, in_order
from zo_oracle import fp8_bytes

from experiments.kill_resume.kills import kill_often, loss_lines, weights_hash

WRITE_BACK = {"tier": "host", "mode": "write_back"}
NOTHING = {"d2h": 0, "h2d": 0, "disk_read": 0, "disk_written": 0}


@pytest.fixture
def uneven_text(tmp_path):
    """Documents of different lengths: micro-batches of a step learn different counts of tokens."""
    draw = random.Random(7)
    folder = tmp_path / "text"
    folder.mkdir()
    for number in range(40):
        words = "".join(draw.choices("abcdef gh.", k=draw.randrange(5, 31)))
        (folder / f"{number:02}.txt").write_text(words)
    return str(folder / "*.txt")


@pytest.fixture
def zo_config(tiny_model, write_config):
    """A config of a run; sections given by name are merged in."""

    def write(folder: Path = tiny_model, /, **sections) -> Path:
        sections["engine"] = {"kind": "zo", **sections.get("engine", {})}
        sections["train"] = {"lr": 1e-4, "accumulate": 2, **sections.get("train", {})}
        return write_config(folder, **sections)

    return write


def plain_loss(model, **inputs):
    return model(**inputs).loss


def by_hand(path: Path) -> tuple[list[float], list[list[float]], dict[str, torch.Tensor]]:
    """Losses, g and weights of ZoSgd in a loop of its own."""
    config = load_config(path)
    train, engine = config.train, config.engine
    inputs = read_inputs(config, Path(config.model.path))
    model = load_model(Path(config.model.path), DTYPES[config.model.dtype]).eval()
    torch.set_num_threads(1)
    batches, losses, g = Batches(inputs.train, train.micro_batch, train.seed), [], []
    loss_of = sw.ChunkedLoss(model) if config.model.dtype == "bf16" else partial(plain_loss, model)
    opt = sw.ZoSgd(
        model, weight_decay=train.weight_decay, eps=engine.eps, directions=engine.directions,
        noise=engine.noise, seed=train.seed,
    )  # fmt: skip
    uneven, rate = 0, learning_rates(train)
    with denormals(config, inputs.placement):
        for step in range(train.steps):
            first, second = batches[2 * step], batches[2 * step + 1]
            uneven += first.learned != second.learned
            total = first.learned + second.learned

            def closure(batch, total=total):
                return loss_of(**batch.inputs, use_cache=False) * (batch.learned * 2 / total)

            for group in opt.param_groups:
                group["lr"] = rate(step)
            losses.append(opt.step([partial(closure, first), partial(closure, second)]).item())
            g.append(opt.stats()["zo"]["g"])
    assert uneven
    return losses, g, dict(model.state_dict())


@pytest.mark.parametrize(
    ("dtype", "engine", "train"),
    [
        ("fp32", {}, {}),
        ("fp32", {"directions": 3, "noise": "gaussian", "eps": 2e-3}, {"weight_decay": 0.3}),
        ("bf16", {"eps": 1e-2}, {"lr": 1e-3, "seed": 5}),
        ("fp32", {"tier": "host", "directions": 2}, {"weight_decay": 0.3}),
        ("bf16", {"tier": "host", "eps": 1e-2, "depth": 5}, {"lr": 1e-3}),
        ("fp32", {**WRITE_BACK, "directions": 2}, {}),
        ("bf16", {**WRITE_BACK, "eps": 1e-2, "depth": 5}, {"lr": 1e-3}),
        ("fp32", {"tier": "disk", "directions": 2, "consolidate": 3}, {}),
        ("bf16", {"tier": "disk", "eps": 1e-2, "depth": 5}, {"lr": 1e-3}),
    ],
    ids=[
        "fp32",
        "directions",
        "bf16",
        "streamed",
        "streamed-bf16",
        "write_back",
        "write_back-bf16",
        "disk",
        "disk-bf16",
    ],
)
def test_a_run_is_zo_sgd_driven_by_hand_bit_for_bit(
    sluiceway, zo_config, uneven_text, tmp_path, dtype, engine, train
):
    config = zo_config(
        data={"train": [uneven_text], "eval": [uneven_text], "packing": False},
        model={"dtype": dtype}, engine=engine, train={"steps": 7, "warmup_steps": 2, **train},
    )  # fmt: skip
    outcome = sluiceway("train", config, "--out", tmp_path / "out")
    assert outcome.code == 0, outcome.err
    losses, g, weights = by_hand(config)
    lines = read_lines(tmp_path / "out")[1:]
    assert [line["loss"] for line in lines] == losses
    assert [line["zo"]["g"] for line in lines] == g
    assert len({*losses}) == 7
    saved = load_file(tmp_path / "out" / "checkpoint" / "model.safetensors")
    assert all(torch.equal(saved[name], weights[name]) for name in saved)
    before = load_file(Path(load_config(config).model.path) / "model.safetensors")
    assert saved.keys() == before.keys()
    shape = json.loads((tmp_path / "out" / "checkpoint" / "config.json").read_text())
    assert shape["architectures"] == ["LlamaForCausalLM"]
    assert any(not torch.equal(saved[name].float(), before[name].float()) for name in saved)


def test_a_run_says_what_it_is_and_its_lines_that_nothing_crosses(sluiceway, zo_config, tmp_path):
    folder = tmp_path / "out"
    config = zo_config(engine={"directions": 2}, train={"steps": 3}, compare="native")
    outcome = sluiceway("train", config, "--out", folder)
    assert outcome.code == 0, outcome.err
    summary = json.loads((folder / "summary.json").read_text())
    trained = summary["parameters"]["trained"]
    assert summary["parameters"]["frozen"] == 0
    for said in (
        f"zo: trains {trained:,} of {trained:,} parameters from losses alone, 4 forwards a step",
        "zo: 2 directions a step of rademacher noise, eps 0.001, in 2 blocks of model.layers",
        "nothing crosses a link, nothing is written back",
    ):
        assert said in outcome.out
    assert summary["zo"] == {
        "tier": "device", "noise": "rademacher", "eps": 1e-3, "directions": 2,
        "blocks": "model.layers", "block_count": 2,
    }  # fmt: skip
    assert summary["engine"] == "zo"
    assert summary["native_ratio"] > 0
    for line in read_lines(folder)[1:]:
        assert line["bytes"] == NOTHING
        assert "eval_bytes" not in line
        assert line["stall_seconds"] == 0
        assert line["zo"]["directions"] == len(line["zo"]["g"]) == 2
        assert (line["grad_norm"], line["skipped"]) == (None, 0)
    native = load_config(folder / "native" / "config.yaml")
    assert (native.engine.kind, native.engine.embeddings) == ("native", "trained")


def test_a_streamed_run_counts_what_crosses_and_that_nothing_comes_back(
    sluiceway, zo_config, tmp_path
):
    folder = tmp_path / "out"
    config = zo_config(
        engine={"tier": "host", "directions": 2}, train={"steps": 4, "accumulate": 3}
    )
    planned = sluiceway("plan", config, "--json")
    assert planned.code == 0, planned.err
    link = json.loads(planned.out)["bytes_per_step"]
    outcome = sluiceway("train", config, "--out", folder)
    assert outcome.code == 0, outcome.err
    assert "weights stay in host memory, and are streamed to the device once a step" in outcome.out
    lines = read_lines(folder)
    crossed = [line["bytes"] for line in lines[1:]]
    evaluated = [line["eval_bytes"] for line in lines if "eval_loss" in line]
    assert len(evaluated) == 2
    assert all({**b, "h2d": 0} == NOTHING and b["h2d"] > 0 for b in evaluated)
    assert {(b["d2h"], b["disk_read"], b["disk_written"]) for b in crossed} == {(0, 0, 0)}
    # The next pass begins to cross before a step ends: whole passes in all, but for one's start.
    assert sum(b["h2d"] for b in crossed) == pytest.approx(4 * link["h2d"], abs=link["h2d"])
    assert link["d2h"] == 0


def test_a_run_that_writes_steps_into_weights_counts_what_comes_back(
    sluiceway, zo_config, tmp_path
):
    folder = tmp_path / "out"
    config = zo_config(
        engine={**WRITE_BACK, "directions": 2}, train={"steps": 4}, data={"eval": []}
    )
    planned = sluiceway("plan", config, "--json")
    assert planned.code == 0, planned.err
    link = json.loads(planned.out)["bytes_per_step"]
    outcome = sluiceway("train", config, "--out", folder)
    assert outcome.code == 0, outcome.err
    assert "the step before is written into each, and it goes back" in outcome.out
    assert json.loads((folder / "summary.json").read_text())["zo"]["mode"] == "write_back"
    crossed = [line["bytes"] for line in read_lines(folder)[1:]]
    # The first pass has nothing to write, and of the last one some is under way.
    assert 2 * link["d2h"] <= sum(b["d2h"] for b in crossed) <= 3 * link["d2h"]
    assert link["d2h"] < link["h2d"]  # What is tied comes twice, and goes back once.


def test_a_run_whose_images_cross_counts_what_was_planned(
    sluiceway, zo_config, tiny_model, tmp_path
):
    folder = tmp_path / "out"
    config = zo_config(engine={**WRITE_BACK, "wire": "fp8"}, train={"steps": 3}, data={"eval": []})
    planned = sluiceway("plan", config, "--json")
    assert planned.code == 0, planned.err
    outcome = sluiceway("train", config, "--out", folder)
    assert outcome.code == 0, outcome.err
    assert "images of fp8 are streamed to the device once a step" in outcome.out
    crossed = [line["bytes"] for line in read_lines(folder)[1:]]
    link = json.loads(planned.out)["bytes_per_step"]
    assert {b["d2h"] for b in crossed} == {0}
    total = sum(b["h2d"] for b in crossed)  # Some of the next pass may be among them.
    assert total == pytest.approx(len(crossed) * link["h2d"], abs=link["h2d"])
    matrices = [p for _, p in load_model(tiny_model, torch.float32).named_parameters(
        remove_duplicate=False) if p.dim() >= 2]  # fmt: skip
    assert link["h2d"] == sum(fp8_bytes(p.numel()) for p in matrices)


def test_a_run_on_disk_counts_what_is_read_and_new_bases_apart(sluiceway, zo_config, tmp_path):
    folder = tmp_path / "out"
    config = zo_config(engine={"tier": "disk", "consolidate": 2}, train={"steps": 5})
    outcome = sluiceway("train", config, "--out", folder)
    assert outcome.code == 0, outcome.err
    assert "weights stay on disk, and are streamed to the device once a step" in outcome.out
    assert "written 0 B" in outcome.out
    assert re.search(r"new bases [\d.]+ KiB  wear [\d.e+-]+ TB/day", outcome.out)
    assert {line["eval_bytes"]["disk_read"] > 0 for line in read_lines(folder)[::5]} == {True}
    lines = [line["bytes"] for line in read_lines(folder)[1:]]
    weights = (tmp_path / "out" / "checkpoint" / "model.safetensors").stat().st_size
    assert {(b["d2h"], b["disk_written"]) for b in lines} == {(0, 0)}
    assert sum(b["disk_read"] for b in lines) > 4 * weights
    assert [b["consolidated"] > 0.9 * weights for b in lines] == [False, False, True, False, True]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["disk"]["written_bytes"] == 0
    assert summary["disk"]["consolidated_bytes"] == sum(b["consolidated"] for b in lines)
    assert sorted(path.name for path in (folder / "store").iterdir()) == ["drive0.sws"]
    assert sluiceway("report", folder).code == 0
    assert "written for new bases, all steps" in (folder / "report.html").read_text()
    # Another run's store is not taken for the model's weights.
    done = sluiceway(
        "train", config, "--out", tmp_path / "b", "--set", f"store.path={folder}/store"
    )
    assert_short_error(done, 2, "has the weights of another run; choose another path")
    assert not (tmp_path / "b").exists()  # Nothing is left, so the command can be repeated.


def test_a_store_is_made_of_mapped_files(tiny_model):
    model = load_model(tiny_model, torch.float32, mapped=True)
    lines = Path("/proc/self/maps").read_text().splitlines()
    mapped = [line.split()[0].split("-") for line in lines if str(tiny_model) in line]
    spans = [range(int(begin, 16), int(end, 16)) for begin, end in mapped]
    assert all(any(p.data_ptr() in span for span in spans) for p in model.parameters())
    whole = load_model(tiny_model, torch.float32)
    assert all(map(torch.equal, model.parameters(), whole.parameters()))
    assert not any(p.data_ptr() in span for span in spans for p in whole.parameters())


@pytest.mark.parametrize(
    ("engine", "at_once"), [({}, 4), ({"eval_batches": 3}, 3)], ids=["as-a-step", "said"]
)
def test_an_evaluation_brings_weights_once_for_several_batches(
    zo_config, uneven_text, monkeypatch, engine, at_once
):
    config = load_config(
        zo_config(
            data={"train": [uneven_text], "eval": [uneven_text], "packing": False},
            engine={"tier": "host", **engine},
        )
    )
    inputs = read_inputs(config, Path(config.model.path))
    h2d = []
    with contextlib.closing(engine_of(config)) as zo:
        zo.open(Path(config.model.path), inputs.placement, None)
        assert zo.evaluated_at_once == at_once
        zo.update(list(in_order(inputs.train, 2, 4)), Timeline(None))
        evaluate = zo.optimizer.evaluate

        def counted(closures):
            found = evaluate(closures)
            h2d.append(zo.optimizer.stats()["bytes"]["h2d"])
            return found

        monkeypatch.setattr(zo.optimizer, "evaluate", counted)
        loss = zo.loss_on(zo.model, inputs.placement)
        held_out, one_each = (zo.model, inputs.held_out, 2), lambda group: [loss(*group).item()]
        alone = mean_loss(*held_out, one_each, 20)
        together = mean_loss(*held_out, zo.losses, 20, at_once=at_once)
        link = zo.model.lm_head.weight.nbytes  # Tied: it is the embedding, too.
        link += sum(p.nbytes for p in zo.model.parameters() if p.dim() >= 2)
        assert zo.take_evaluation_bytes() == {**NOTHING, "h2d": sum(h2d)}
        assert zo.take_evaluation_bytes() == {}
    assert together == alone
    passes = -(-10 // at_once)
    assert len(h2d) == passes
    # Without what came during the step before, with the beginning of what comes next.
    assert passes - 1 < sum(h2d) / link < passes + 1


@pytest.mark.parametrize(
    ("tier", "dtype"), [("device", "bf16"), ("host", "fp32"), ("disk", "bf16")]
)
def test_other_commands_take_a_run(sluiceway, zo_config, tmp_path, tier, dtype):
    run = tmp_path / "run"
    config = zo_config(engine={"tier": tier}, train={"steps": 3}, model={"dtype": dtype})
    done = sluiceway("train", config, "--out", run)
    assert done.code == 0, done.err
    summary = json.loads((run / "summary.json").read_text())
    done = sluiceway("eval", run, "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["loss"] == summary["final_eval_loss"]
    done = sluiceway("export", run, "--to", tmp_path / "model")
    assert done.code == 0, done.err
    saved = load_file(run / "checkpoint" / "model.safetensors")
    for name, tensor in load_file(tmp_path / "model" / "model.safetensors").items():
        assert torch.equal(tensor, saved[name]), name
    done = sluiceway("report", run)
    assert done.code == 0, done.err
    page = (run / "report.html").read_text()
    assert "forwards and update" in page
    assert '"zo"' in page or ">zo<" in page
    assert "zo: g (root mean square)" in page


@pytest.mark.parametrize(
    ("dtype", "engine", "train"),
    [
        ("fp32", {}, {}),
        ("fp32", {}, {"weight_decay": 0.5}),
        ("bf16", {}, {"lr": 1e-3}),
        ("bf16", {"noise": "lowrank", "rank": 2, "period": 4}, {"lr": 1e-3}),
        ("fp32", {"tier": "host", "noise": "lowrank", "period": 4}, {"weight_decay": 0.5}),
        ("fp32", {"tier": "disk", "noise": "lowrank", "period": 4}, {"weight_decay": 0.5}),
        ("bf16", {"tier": "host"}, {"lr": 1e-3}),
        ("bf16", {"tier": "disk", "consolidate": 2}, {"lr": 1e-3, "weight_decay": 0.5}),
        ("fp32", WRITE_BACK, {"weight_decay": 0.5}),
        ("bf16", WRITE_BACK, {"lr": 1e-3, "weight_decay": 0.5}),
        ("bf16", {**WRITE_BACK, "master": "bf16"}, {"lr": 1e-3, "weight_decay": 0.5}),
        ("bf16", {**WRITE_BACK, "wire": "bf16"}, {"lr": 1e-3, "weight_decay": 0.5}),
        ("bf16", {**WRITE_BACK, "wire": "fp8"}, {"lr": 1e-3, "weight_decay": 0.5}),
    ],
    ids=[
        "fp32", "decay", "bf16", "low-rank", "streamed-low-rank", "low-rank-on-disk",
        "streamed-bf16", "disk", "write_back", "write_back-bf16", "write_back-at-random",
        "write_back-narrow",
        "write_back-fp8",
    ],
)  # fmt: skip
def test_a_run_in_two_sittings_ends_in_the_bits_of_a_run_in_one(
    sluiceway, zo_config, tmp_path, dtype, engine, train
):
    for name, steps in (("one", 6), ("two", 3)):
        config = zo_config(
            model={"dtype": dtype}, engine={"directions": 2, **engine},
            train={"schedule": "constant", **train, "steps": steps},
        )  # fmt: skip
        done = sluiceway("train", config, "--out", tmp_path / name)
        assert done.code == 0, done.err
    done = sluiceway("resume", tmp_path / "two", "--set", "train.steps=6")
    assert done.code == 0, done.err
    assert weights_hash(tmp_path / "one") == weights_hash(tmp_path / "two")
    first, second = (
        [(line.get("loss"), line.get("zo")) for line in read_lines(tmp_path / name)]
        for name in ("one", "two")
    )
    assert first == second


@pytest.mark.parametrize(
    ("engine", "dtype"),
    [
        ({}, "fp32"),
        ({"tier": "host"}, "fp32"),
        (WRITE_BACK, "bf16"),
        ({"tier": "disk", "consolidate": 3}, "bf16"),
    ],
    ids=["device", "host", "write_back", "disk"],
)
def test_a_run_that_was_killed_ends_in_the_bits_of_one_that_was_not(
    sluiceway, zo_config, tmp_path, engine, dtype
):
    config = zo_config(
        model={"dtype": dtype}, engine=engine,
        train={"steps": 60, "save_every": 7, "lr": 1e-3, "weight_decay": 0.5},
    )  # fmt: skip
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert sluiceway("train", config, "--out", whole).code == 0
    resumable = ("checkpoint", "checkpoint.old")
    if engine.get("tier") == "disk":  # Each base is gone on from, too.
        resumable = ("config.yaml",)
    record = kill_often(sluiceway.start, config, killed, 3, 0.3, random.Random(3), resumable)
    assert record
    assert all(kill["code"] == -signal.SIGKILL for kill in record)
    assert weights_hash(killed) == weights_hash(whole)
    assert loss_lines(killed) == loss_lines(whole)


@pytest.mark.parametrize(
    "engine",
    [{}, WRITE_BACK, {"tier": "disk", "consolidate": 2}],
    ids=["device", "write_back", "disk"],
)
def test_a_signal_saves_and_the_run_goes_on_with_the_same_bits(
    sluiceway, zo_config, tmp_path, engine
):
    stopped, whole = tmp_path / "stopped", tmp_path / "whole"
    # In mode write_back a save is under way in each step.
    train = {"steps": 100_000, "schedule": "constant", "save_every": int(engine == WRITE_BACK)}
    config = zo_config(engine=engine, train=train)
    command = sluiceway.start("train", config, "--out", stopped)
    wait_for_step(stopped, 3)
    command.signal(signal.SIGINT)
    assert_short_error(command.wait(), 130, "saved")
    reached = json.loads((stopped / "checkpoint" / "state.json").read_text())["position"]["step"]
    assert read_lines(stopped)[-1]["step"] == reached >= 3
    steps = f"train.steps={reached + 2}"
    done = sluiceway("resume", stopped, "--set", steps)
    assert done.code == 0, done.err
    done = sluiceway("train", config, "--out", whole, "--set", steps)
    assert done.code == 0, done.err
    assert weights_hash(stopped) == weights_hash(whole)
    losses = [[line.get("loss") for line in read_lines(folder)] for folder in (stopped, whole)]
    assert losses[0] == losses[1]


def test_a_resume_changes_eps_and_decay_and_nothing_that_the_noise_depends_on(
    sluiceway, zo_config, tmp_path
):
    run = tmp_path / "run"
    config = zo_config(train={"steps": 2, "schedule": "constant"})
    assert sluiceway("train", config, "--out", run).code == 0
    for key, was, now in (
        ("directions", "1", "2"), ("noise", "auto", "gaussian"),
    ):  # fmt: skip
        done = sluiceway("resume", run, "--set", f"engine.{key}={now}")
        assert_short_error(done, 2, f"engine.{key} was {was}, is now {now}", "engine.eps")
    before = load_file(run / "checkpoint" / "model.safetensors")
    # A rate of which the losses move nothing, and the decay halves every matrix.
    done = sluiceway(
        "resume", run, "--set", "train.steps=3", "--set", "train.weight_decay=5e11",
        "--set", "train.lr=1e-12", "--set", "engine.eps=1e-2",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert "engine.eps was 0.001, is now 0.01" in done.err
    after = load_file(run / "checkpoint" / "model.safetensors")
    assert len(before) > 2
    for name, weight in before.items():
        expected = weight / 2 if weight.dim() >= 2 else weight
        torch.testing.assert_close(after[name], expected, rtol=1e-5, atol=1e-7)


def test_dropout_is_off(sluiceway, zo_config, tiny_model, tmp_path):
    noisy = tmp_path / "noisy"
    shutil.copytree(tiny_model, noisy)
    shape = json.loads((noisy / "config.json").read_text())
    (noisy / "config.json").write_text(json.dumps(shape | {"attention_dropout": 0.5}))
    for name, model in (("plain", tiny_model), ("dropped", noisy)):
        config = zo_config(model, train={"steps": 3, "eval_every": 1})
        done = sluiceway("train", config, "--out", tmp_path / name)
        assert done.code == 0, done.err
    assert loss_lines(tmp_path / "plain") == loss_lines(tmp_path / "dropped")


def test_losses_that_are_not_finite_skip_steps_and_end_the_run(
    sluiceway, zo_config, tiny_model, tmp_path
):
    spoilt, folder = tmp_path / "spoilt", tmp_path / "out"
    shutil.copytree(tiny_model, spoilt)
    weights = load_file(spoilt / "model.safetensors")
    weights["model.norm.weight"][3] = torch.nan
    save_file(weights, spoilt / "model.safetensors", {"format": "pt"})
    config = zo_config(spoilt, data={"eval": []}, train={"steps": 9, "max_skipped": 4})
    done = sluiceway("train", config, "--out", folder)
    assert done.code == 1
    assert "step 4: skipped, as were all of the last 4 steps: the loss is nan" in done.err
    lines = [line for line in read_lines(folder) if "loss" in line]
    assert [line["skipped"] for line in lines] == [1] * 4
    assert {line["loss"] for line in lines} == {None}
    assert [line["zo"]["g"] for line in lines] == [[0.0]] * 4
    assert json.loads((folder / "summary.json").read_text())["status"] == "diverged"
