"""Configs: what is refused, with which words, and that nothing is left unsaid in a resolved one."""

from __future__ import annotations

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from sluiceway.base import sizes
from sluiceway.config.engines.subspace import SubspaceSection
from sluiceway.config.file import check_config, load_config
from sluiceway.config.schema import Config, TrainSection
from sluiceway.config.shape import shape_of
from sluiceway.config.shipped import shipped, shipped_configs
from sluiceway.errors import InvalidArgument, IoError, Unavailable

SMALLEST = "model: {path: m}\ndata: {train: [pydoc]}\n"


def test_smallest_config_gets_every_default(load):
    config = load(SMALLEST)
    assert config.engine == SubspaceSection()
    assert config.train == TrainSection()
    assert (config.model.dtype, config.model.autocast, config.trace) == ("fp32", None, True)


@pytest.mark.parametrize("name", shipped_configs())
def test_configs_of_the_package_are_found_in_any_folder(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    config = load_config(name)
    if "quickstart" not in name:  # Their model is in the repository alone.
        assert shape_of(config.model.path)["model_type"] in ("llama", "opt", "qwen2")


def test_a_config_of_the_package_gives_way_to_a_file_of_the_same_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = "configs/laptop_1b.yaml"
    assert shipped(name).is_absolute()
    (tmp_path / "configs").mkdir()
    (tmp_path / name).write_text(SMALLEST)
    assert load_config(name).model.path == "m"
    for other in ("configs/none.yaml", "laptop_1b.yaml", str(tmp_path / "configs/none")):
        assert str(shipped(other)) == other
    with pytest.raises(IoError, match=r"none.yaml: .* come along: .*configs/laptop_1b.yaml"):
        load_config("configs/none.yaml")


@pytest.mark.parametrize(
    ("shape", "dtype", "length"),
    [
        ({"dtype": "bfloat16", "max_position_embeddings": 4096}, "bf16", 2048),
        ({"torch_dtype": "float32", "n_positions": 1024}, "fp32", 1024),
        ({"dtype": "float16"}, "fp32", 2048),
        ({"text_config": {"dtype": "bfloat16", "max_position_embeddings": 64}}, "bf16", 64),
        ({"dtype": "float8_e4m3fn", "max_position_embeddings": None}, "fp32", 2048),
        ([], "fp32", 2048),
        (None, "fp32", 2048),
    ],
)
def test_type_and_length_are_those_of_the_model_unless_they_are_said(
    load, tmp_path, shape, dtype, length
):
    if shape is not None:
        (tmp_path / "config.json").write_text(json.dumps(shape))
    config = load(f"model: {{path: {tmp_path}}}\ndata: {{train: pydoc}}\n")
    assert (config.model.dtype, config.data.sequence_length) == (dtype, length)
    said = load(
        f"model: {{path: {tmp_path}}}\ndata: {{train: pydoc, sequence_length: 8}}\n",
        "model.dtype=fp16",
    )
    assert (said.model.dtype, said.data.sequence_length) == ("fp16", 8)


def test_resolved_config_reads_back_as_itself(load):
    config = load(SMALLEST, "budget.device=4GiB", "device.link={d2h_gbps: 12, h2d_gbps: 6}")
    again = load(yaml.safe_dump(config.resolved()))
    assert again == config
    assert again.budget.device == 4 * 2**30


def test_resolved_config_names_every_key_of_the_schema(load):
    def keys(tree):
        return {k: keys(v) for k, v in tree.items()} if isinstance(tree, dict) else None

    written = keys(load(SMALLEST).resolved())
    assert set(written) == set(Config.model_fields)
    assert set(written["engine"]) == set(SubspaceSection.model_fields)
    assert set(written["train"]) == set(TrainSection.model_fields)


@pytest.mark.parametrize("name", ["cuda:0", "host", "auto"])
def test_a_device_may_be_its_name_alone(load, name):
    short = load(SMALLEST + f"device: {name}\n")
    assert short == load(SMALLEST + f"device: {{name: {name}}}\n")
    assert short.resolved()["device"]["name"] == name
    assert short == load(SMALLEST, f"device={name}")


def test_keys_of_a_device_that_is_its_name_alone_are_set(load):
    short = load(SMALLEST + "device: host\n", "device.threads=1")
    assert short == load(SMALLEST + "device: {name: host, threads: 1}\n")


def test_a_device_that_is_not_known_by_its_name_alone_is_refused_with_its_line(load):
    with pytest.raises(InvalidArgument, match=r"run.yaml:3: device.name is 'tpu', expected auto"):
        load(SMALLEST + "device: tpu\n")
    with pytest.raises(InvalidArgument, match="device is 3, expected keys of its own"):
        load(SMALLEST, "device=3")


def test_unknown_key_is_refused_with_nearest_name_and_line(load):
    with pytest.raises(InvalidArgument) as refused:
        load(SMALLEST + "train:\n  steps: 3\n  warmpu_steps: 1\n")
    text = str(refused.value)
    assert "run.yaml:5: unknown key train.warmpu_steps" in text
    assert "did you mean train.warmup_steps?" in text


def test_key_of_a_deeper_section_is_refused_with_its_line(load):
    with pytest.raises(InvalidArgument, match=r"run.yaml:4: unknown key device.link.d2h_gbs"):
        load(SMALLEST + "device:\n  link: {d2h_gbs: 1, h2d_gbps: 1}\n")


def test_key_in_the_wrong_section_is_told_where_it_belongs(load):
    with pytest.raises(InvalidArgument, match=r"did you mean train\.lr\?"):
        load(SMALLEST + "lr: 1\n")


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("train.num_train_epoch", "train.epochs"),
        ("train.learning_rat", "train.lr"),
        ("engine.learning_rate", "train.lr"),
        ("max_grad_norm", "train.max_norm"),
    ],
)
def test_typo_of_the_trainers_name_for_a_key_is_told_our_name(load, key, meant):
    with pytest.raises(InvalidArgument, match=f"unknown key {key}, did you mean {meant}"):
        load(SMALLEST, f"{key}=1")


def test_key_of_another_engine_is_refused(load):
    with pytest.raises(InvalidArgument, match=r"unknown key engine\.codec, known .*fused"):
        load(SMALLEST, "engine={kind: native, codec: svd}")


def test_misspelled_key_comes_before_the_value_it_leaves_missing(load):
    with pytest.raises(InvalidArgument, match=r"did you mean model\.path\?"):
        load("model: {pth: m}\ndata: {train: [pydoc]}\n")


known_keys = st.sampled_from(
    [
        *(f"train.{key}" for key in TrainSection.model_fields if len(key) > 4),
        *(f"engine.{key}" for key in SubspaceSection.model_fields if len(key) > 4),
    ]
)


@given(key=known_keys, place=st.integers(0, 100))
def test_swapping_two_letters_of_a_long_key_still_finds_it(key, place):
    section, name = key.split(".")
    at = place % (len(name) - 1)
    typo = name[:at] + name[at + 1] + name[at] + name[at + 2 :]
    tree = {"model": {"path": "m"}, "data": {"train": ["pydoc"]}, section: {typo: 1}}
    if typo == name:
        return
    with pytest.raises(InvalidArgument, match=f"did you mean {key}"):
        check_config(tree)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("train.lr=abc", "--set train.lr: train.lr is 'abc', expected a valid number"),
        ("train.lr=-1", "train.lr is -1, expected greater than or equal to 0"),
        ("train.steps=0", "train.steps is 0, expected greater than or equal to 1"),
        ("train.steps=true", "train.steps is true, expected a number"),
        ("train.max_norm=.nan", "train.max_norm is nan"),
        ("train.betas=[0.9]", "train.betas is [0.9], expected one value more"),
        ("train.betas=[0.9, 1]", "train.betas is 1, expected less than 1"),
        ("train.warmup_steps=201", "train.warmup_steps is 201, expected at most train.steps, 200"),
        ("train=3", "train is 3, expected keys of its own"),
        ("model.dtype=fp8", "model.dtype is 'fp8', expected 'fp32', 'bf16' or 'fp16'"),
        ("budget.device=4 GoB", "'4 GoB', expected bytes as an integer or a text such as"),
        ("device.name=tpu", "device.name is 'tpu', expected auto, host, cuda or cuda:N"),
        ("device.link={d2h_gbps: 1}", "device.link.h2d_gbps is missing"),
        ("data.train=[]", "data.train is [], expected at least 1 value"),
        ("engine={kind: nativ}", "engine.kind is 'nativ', expected one of: subspace, native"),
        ("engine.ratio=1.5", "engine.ratio is 1.5, expected 'auto' or less than or equal to 1"),
        ("nonsense", "--set nonsense: expected a.b=value"),
        ("train.lr=[", "'[' is not a YAML value"),
    ],
)
def test_bad_value_is_refused_with_what_is_and_what_was_expected(load, override, words):
    with pytest.raises(InvalidArgument) as refused:
        load(SMALLEST, override)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds nothing, expected keys such as model"),
        ("- 1\n", "holds list"),
        ("model: {path: m\n", "run.yaml:2: is not YAML"),
        ("model: {path: m}\nmodel: {path: n}\n", "run.yaml:2: model is given twice, first in lin"),
        ("data: {train: [pydoc]}\n", "model is missing"),
    ],
)
def test_file_that_is_no_config_is_refused_with_the_line(load, text, words):
    with pytest.raises(InvalidArgument) as refused:
        load(text)
    assert words in str(refused.value)


def test_missing_file_is_an_io_error_with_its_name(tmp_path):
    with pytest.raises(IoError) as refused:
        load_config(tmp_path / "none.yaml")
    assert refused.value.filename == str(tmp_path / "none.yaml")
    assert refused.value.errno == 2


@pytest.mark.parametrize(
    "overrides",
    [["engine={kind: zo}", "device.lane_threads=2"], ["store.path=x"],
     ["engine.refresh={source: closure}"]],
)  # fmt: skip
def test_value_of_a_later_version_is_unavailable(load, overrides):
    with pytest.raises(Unavailable):
        load(SMALLEST, *overrides)


def test_override_wins_over_the_file_and_is_parsed_as_yaml(load):
    config = load(SMALLEST + "train: {lr: 1}\n", "train.lr=1e-3", "model.autocast=off")
    assert config.train.lr == 1e-3
    assert config.model.autocast is None


@pytest.mark.parametrize(
    ("text", "count"),
    [("0", 0), ("512MiB", 512 << 20), ("1.5 GiB", 3 << 29), ("4kb", 4000), (7, 7), ("8B", 8)],
)
def test_sizes_are_read_in_binary_and_decimal_units(text, count):
    assert sizes.parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "MiB", "-1", -1, True, "1e3", "4 XiB", 1.5])
def test_size_that_is_none_is_refused(text):
    with pytest.raises(InvalidArgument):
        sizes.parse_bytes(text)


@given(st.integers(0, 2**60))
def test_shown_size_is_within_half_a_percent(count):
    shown = sizes.format_bytes(count)
    assert abs(sizes.parse_bytes(shown) - count) <= max(1, 0.006 * count)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (999, "999"), (1000, "1.00 k"), (20_544, "20.5 k"), (1_234_567, "1.23 M"),
     (8_030_261_248, "8.03 G"), (175_000_000_000, "175 G")],
)  # fmt: skip
def test_counts_have_three_digits(count, text):
    assert sizes.format_count(count) == text
