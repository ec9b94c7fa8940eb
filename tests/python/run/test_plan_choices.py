"""The plan that chooses: every engine's fastest way on a machine, as memory runs out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sluiceway.commands.choose import _budgets
from sluiceway.errors import InvalidArgument, IoError
from sluiceway.machine.catalogue import card_of, card_with, drive_of
from sluiceway.run.choices import find_choices
from sluiceway.run.target_machine import TargetMachine, target_machine
from transformers import BertConfig, LlamaConfig

TOKENS = 512
GIB = 1 << 30
RATES = {
    "tflops": 10.0, "tflops_from": "a test", "memory_gbps": 200.0, "host_gbps": 40.0,
    "host_gbps_from": "a test", "d2h_gbps": 12.0, "h2d_gbps": 12.0, "link_gbps_from": "a test",
    "disk_gbps": 3.0, "disk_gbps_from": "a test",
}  # fmt: skip


def llama(folder: Path, layers: int, heads: int) -> Path:
    """Write nothing but the config.json of a Llama with heads of 128."""
    LlamaConfig(
        vocab_size=512, hidden_size=128 * heads, intermediate_size=352 * heads,
        num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=heads,
        max_position_embeddings=128, dtype="bfloat16",
    ).save_pretrained(folder)  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def shape(tmp_path_factory) -> Path:
    """A model of 196 M parameters."""
    return llama(tmp_path_factory.mktemp("shape") / "llama", layers=8, heads=11)


@pytest.fixture(scope="module")
def size(shape) -> int:
    """Number of parameters."""
    return find_choices(str(shape), machine(1, 1, 0), TOKENS).parameters


def machine(device: int, host: int = 4 * GIB, disk: int = 4 * GIB) -> TargetMachine:
    return TargetMachine("cuda:0", device, host, disk, disk, None, RATES, ["a test"])


def ways(shape: Path, *bytes_: int) -> dict:
    found = find_choices(str(shape), machine(*bytes_), TOKENS)
    assert found.tokens == TOKENS
    return {way.name: way for way in found.ways if not way.short}


def test_a_large_device_trains_with_all_engines_and_the_fastest_is_first(shape):
    found = ways(shape, 4 * GIB)
    assert set(found) == {"native", "offload", "offload, 8bit", "subspace", "zo"}
    *others, last = found.values()
    assert last.name == "zo"
    assert [way.seconds for way in others] == sorted(way.seconds for way in others)
    assert found["offload"].config.engine.weights == "resident"
    assert not found["native"].config.model.checkpointing


def test_where_fp32_has_no_room_native_gives_up_small_updates(shape, size):
    found = ways(shape, 12 * size)
    assert "native" not in found
    assert "small updates" in found["native, bf16"].gives_up


def test_each_way_keeps_to_the_machine_and_streams_weights_that_do_not_fit(tmp_path):
    """Not all of the weights' bytes are left, so weights have to come and go."""
    shape = llama(tmp_path / "llama", layers=16, heads=8)
    device = 2 * 206_000_000  # Of 207 M parameters.
    found = ways(shape, device)
    assert set(found) == {"offload", "offload, 8bit", "zo"}
    assert found["offload"].config.engine.weights == "streamed"
    assert found["zo"].config.engine.tier == "host"
    for way in found.values():
        assert way.tiers["device"] <= device
        assert way.tiers["host"] + way.tiers["pinned"] <= 4 * GIB


def test_little_memory_puts_states_on_the_drive_as_well(shape, size):
    """States of fp32 take 12 bytes a parameter, a gradient that waits 2."""
    memory = (64 << 20) + 8 * size
    found = ways(shape, 4 * GIB, memory)["offload"]
    assert found.config.engine.tier == "auto"
    assert found.tiers["disk"] > 0
    assert found.tiers["host"] + found.tiers["pinned"] <= memory


def test_a_machine_that_is_too_small_fits_nothing_and_says_what_is_missing(shape):
    none = find_choices(str(shape), machine(1 << 20, 1 << 20, 0), TOKENS)
    assert "device" in none.impossible["native"]
    for way in none.ways:
        assert "takes" in way.short
        assert getattr(way.config.engine, "tier", None) not in ("disk", "auto")


def test_of_ways_about_as_fast_the_one_that_gives_up_least_is_first(shape):
    """Products take all of the time, and no way has fewer of them than native."""
    rates = {**RATES, "memory_gbps": 1e6, "host_gbps": 1e6, "d2h_gbps": 1e6, "h2d_gbps": 1e6}
    found = find_choices(
        str(shape), TargetMachine("cuda:0", 4 * GIB, 4 * GIB, 0, 0, None, rates, []), TOKENS
    )
    assert found.ways[0].name == "native"
    assert found.ways[0].seconds * 0.95 < min(way.seconds for way in found.ways[1:-1])


def test_a_step_of_many_sequences_has_few_micro_batches(shape):
    found = find_choices(str(shape), machine(4 * GIB), 100 * 128)
    assert found.tokens == 102 * 128
    for way in found.ways:
        train = way.config.train
        assert train.micro_batch * train.accumulate == 102
        assert train.accumulate <= 17


def test_cards_are_found_by_names_as_people_write_them():
    assert card_of("RTX 4090") is card_of("nvidia geforce rtx-4090") is card_of("rtx4090")
    assert card_of("4090") is card_of("rtx4090")
    assert card_of("rtx4060 laptop").memory_bytes == 8 * GIB
    with pytest.raises(InvalidArgument, match=r"rtx4091.*rtx4090"):
        card_of("rtx4091")


@pytest.mark.parametrize(
    ("memory", "name"),
    [(1, "rtx3070"), (8 * GIB, "rtx4060"), (9 * GIB, "rtx3080"), (24 * GIB, "rtx3090")],
)
def test_a_size_stands_for_a_card_that_has_it(memory, name):
    found = card_with(memory)
    assert found.memory_bytes >= memory
    assert found.memory_bytes == card_of(name).memory_bytes


def test_drives_have_a_size_and_other_texts_are_folders():
    assert drive_of("gen4:2TB").room_bytes == 2 * 10**12
    assert drive_of("sata").gbps < drive_of("gen5").gbps
    assert drive_of("/mnt") is None
    with pytest.raises(InvalidArgument, match="size"):
        drive_of("gen4:large")


def test_another_machine_is_never_timed_here(monkeypatch, tmp_path):
    monkeypatch.setattr("sluiceway.run.choices.measure_speeds", None)
    other = target_machine("rtx4090", None, 64 * GIB, None)
    assert not other.is_here
    assert other.device_bytes == 23 * GIB
    assert other.host_bytes == 59 * GIB
    assert "assumed" in other.lines[0]
    with pytest.raises(IoError, match="gen4:2TB"):
        target_machine("rtx4090", None, None, str(tmp_path / "absent"))


@pytest.mark.parametrize("gib", [0.75, 1.25, 2, 4])
def test_device_and_host_of_one_memory_take_no_more_than_it_together(shape, gib):
    room = int(gib * GIB)
    shared = TargetMachine("cuda:0", room, room, 8 * GIB, 8 * GIB, None, RATES, [], True)
    found = find_choices(str(shape), shared, TOKENS)
    for way in found.ways:
        in_memory = way.tiers["device"] + way.tiers["host"] + way.tiers["pinned"]
        assert (in_memory > room) == way.short.startswith("memory: takes"), way.name
        if not way.short:
            budgets = _budgets(way, shared)
            assert budgets["device"] >= way.tiers["device"]
            assert budgets["device"] + budgets["host"] <= room
    apart = find_choices(str(shape), machine(room, room, 8 * GIB), TOKENS)
    fits, fits_apart = ({way.name for way in each.ways if not way.short} for each in (found, apart))
    assert fits <= fits_apart
    assert fits


def test_a_spark_has_one_memory_for_device_and_host():
    spark = target_machine("DGX Spark", None, None, "none")
    assert spark.shares_memory
    assert spark.device_bytes == spark.host_bytes == 113 * GIB
    assert "119 GiB of memory for device and host together" in spark.lines[0]
    assert "for the run: 113 GiB of memory;" in spark.lines[1]
    assert not target_machine("gh200", None, 480 * GIB, "none").shares_memory


def test_plan_of_a_model_prints_figures_and_writes_a_config_that_trains(
    sluiceway, small_model, prose, tmp_path
):
    """The written config's own plan has the bytes of the table, and its run takes no more."""
    config = tmp_path / "run.yaml"
    done = sluiceway(
        "plan", small_model, "--tokens", 64, "--data", prose, "--write", config, "--disk", tmp_path,
        "--json", cwd=tmp_path,
    )  # fmt: skip
    assert done.code == 0, done.err
    found = json.loads(done.out)
    best = found["ways"][0]
    assert best["fits"]
    assert best["tokens_per_second"] == pytest.approx(64 / best["seconds_per_step"])
    assert best["name"] in done.err
    plan = sluiceway("plan", config, "--json", cwd=tmp_path)
    assert plan.code == 0, plan.err
    assert json.loads(plan.out)["peak_bytes"]["device"] == best["peak_bytes"]["device"]
    run = sluiceway(
        "train", config, "--out", tmp_path / "out", "--set", "train.steps=2",
        "--set", "train.warmup_steps=0", cwd=tmp_path,
    )  # fmt: skip
    assert run.code == 0, run.err
    peak = json.loads((tmp_path / "out/summary.json").read_text())["peak_bytes"]
    # A plan of offload counts all gradients of so small a model as if they waited at once.
    assert 0 < peak["device"] <= 1.05 * best["peak_bytes"]["device"]


def test_the_table_says_what_each_engine_gives_up(sluiceway, shape):
    done = sluiceway("plan", shape, "--card", "rtx4060", "--ram", "16GiB", "--tokens", TOKENS)
    assert done.code == 0, done.err
    assert "modelled, nothing was timed" in done.out
    assert "two losses give one number" in done.out
    assert done.err == "sluiceway: planning every engine, which may take a minute\n"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--device", "1MiB", "--ram", "64MiB", "--disk", "none"], 3, "nothing fits"),
        (["--card", "rtx9999"], 2, "--card is 'rtx9999'"),
        (["--device", "much"], 2, "size"),
        (["--ram", "0"], 2, "is 0, expected more"),
        (["--disk", "gen4:0TB"], 2, "has no room"),
        (["--disk", ""], 2, "--disk"),
        (["--data", "/no/data"], 2, "--data: there is no /no/data"),
        (["--write", "/no/folder/run.yaml"], 2, "there is no folder /no/folder"),
        (["--disk", "/no/folder"], 2, "/no/folder"),
        (["--set", "train.lr=1"], 2, "--set does not go with a model"),
    ],
)
def test_wrong_machines_are_one_clear_error(sluiceway, shape, arguments, code, said):
    done = sluiceway("plan", shape, "--tokens", 64, *arguments)
    assert done.code == code, done.err
    assert said in done.err
    assert done.err.count("\n") <= 2


def test_a_name_of_a_hub_says_how_to_get_the_model(sluiceway, tmp_path):
    done = sluiceway("plan", "Some/Model-1B", "--card", "rtx4090", cwd=tmp_path)
    assert done.code == 2
    assert "hf download Some/Model-1B --local-dir Model-1B" in done.err


def test_launching_kernels_bounds_a_step_of_few_operations(shape):
    """Kernels that take no time are still launched, forward, again, and backward."""
    slow = {**RATES, "tflops": 1e9, "launch_us": 1000.0}
    times = [
        find_choices(
            str(shape),
            TargetMachine("cuda:0", 4 * GIB, 4 * GIB, 0, 0, None, rates, []),
            TOKENS,
        ).ways[0].seconds
        for rates in (RATES, slow)
    ]  # fmt: skip
    assert times[1] > 10 * times[0]


def test_a_config_takes_no_machine(sluiceway, tiny_model, write_config):
    done = sluiceway("plan", write_config(tiny_model), "--card", "rtx4090")
    assert done.code == 2
    assert "--card does not go with a config" in done.err


def test_init_says_that_the_model_has_no_chat_template(tiny_model, tmp_path, python_m_sluiceway):
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    (tmp_path / "x.jsonl").write_text(json.dumps({"messages": turns}))
    answers = f"{tiny_model}\nx.jsonl\nrtx4060\n16GiB\nnone\n64\n"
    done = python_m_sluiceway("init", "mine.yaml", cwd=tmp_path, input=answers)
    assert done.code == 0, done.err
    assert "train would be refused here: " in done.err
    assert "no chat template" in done.err


def test_a_model_that_sees_later_tokens_is_refused(sluiceway, tmp_path):
    BertConfig(vocab_size=64, hidden_size=48, num_hidden_layers=1).save_pretrained(tmp_path)
    done = sluiceway("plan", tmp_path, "--card", "rtx4060")
    assert done.code == 2
    assert "BertLMHeadModel is no model of the next token" in done.err


def test_a_file_that_exists_is_not_replaced(sluiceway, shape, tmp_path):
    there = tmp_path / "run.yaml"
    there.write_text("mine")
    for command in (["plan", shape, "--write", there], ["init", there]):
        done = sluiceway(*command)
        assert done.code == 2
        assert "exists" in done.err
    assert there.read_text() == "mine"


def test_init_asks_and_writes(tiny_model, tmp_path, python_m_sluiceway):
    prose = tmp_path / "prose.txt"
    prose.write_text("a few words of prose; " * 10)
    answers = f"{tiny_model}\n{prose}\nrtx4060\n16GiB\nnone\n64\n"
    done = python_m_sluiceway("init", "mine.yaml", cwd=tmp_path, input=answers)
    assert done.code == 0, done.err
    written = (tmp_path / "mine.yaml").read_text()
    assert str(prose) in written
    assert "rtx4060" in written
    assert "sequences of" in done.out
    assert "mine.yaml: a run of few steps learns little" in done.err
    (section,) = (s[2:] for s in written.splitlines() if s.startswith("# device: "))
    (tmp_path / "mine.yaml").write_text(f"{written}{section}\n")
    planned = python_m_sluiceway("plan", "mine.yaml", "--json", cwd=tmp_path)
    figures = json.loads(planned.out)
    assert figures["assumed"]["tflops"] == 15.1
    assert f"Planned: {figures['seconds_per_step']:.3g} s" in written
    wrong = python_m_sluiceway("init", "other.yaml", cwd=tmp_path, input="/no/model\n")
    assert wrong.code == 2
    assert "/no/model" in wrong.err
    assert not (tmp_path / "other.yaml").exists()
    ended = python_m_sluiceway("init", "other.yaml", cwd=tmp_path, input="")
    assert ended.code == 130
