"""The quickstart keeps its promises: the model, its text, its tokenizer, and the configs."""

from __future__ import annotations

import json
import re

import pytest
import torch
from conftest import REPOSITORY
from hypothesis import given, settings
from hypothesis import strategies as st
from sluiceway.model.skeleton import build_skeleton

QUICKSTART = REPOSITORY / "experiments" / "quickstart"
MODEL = QUICKSTART / "model"


@pytest.fixture(scope="module")
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(MODEL, local_files_only=True)


@pytest.fixture(scope="module")
def model():
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        MODEL, local_files_only=True, dtype=torch.float32
    ).eval()


@pytest.fixture(scope="module")
def corpus():
    from experiments.quickstart.stdlib_corpus import load_corpus

    return load_corpus()


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_tokens_are_the_bytes_of_the_text_and_decode_to_it(tokenizer, text):
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    if "<|endoftext|>" not in text:
        assert ids == list(text.encode())
    assert tokenizer.decode(ids) == text


def test_every_byte_has_one_token_and_the_end_of_text_is_the_257th(tokenizer):
    assert len(tokenizer) == 257
    assert tokenizer.eos_token_id == tokenizer.pad_token_id == 256
    assert sorted(tokenizer.get_vocab().values()) == list(range(257))


def test_spaces_line_ends_and_contractions_survive_the_tokenizer(tokenizer):
    text = " two  spaces , a\r\n\ttab , don ' t , \u00e9\u0301 \N{SNOWMAN}\U0001f600 end "
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_stored_files_take_at_most_12_megabytes():
    assert sum(file.stat().st_size for file in MODEL.iterdir()) <= 12_000_000


def test_model_is_a_bf16_llama_of_three_million_parameters():
    from safetensors import safe_open

    config = json.loads((MODEL / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    with safe_open(MODEL / "model.safetensors", framework="pt") as file:
        slices = [file.get_slice(name) for name in file.keys()]  # noqa: SIM118 - not a dict
    assert {s.get_dtype() for s in slices} == {"BF16"}
    count = sum(torch.Size(s.get_shape()).numel() for s in slices)
    assert 2.5e6 < count < 3.5e6


def test_every_linear_inside_the_layers_is_large_enough_to_compress(model):
    linears = [
        m for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and "layers" in n
    ]
    assert len(linears) == 7 * model.config.num_hidden_layers
    assert min(m.weight.numel() for m in linears) >= 2**16


def test_loss_on_the_own_held_out_files_is_at_most_1_45_nats_a_byte(model, corpus):
    from experiments.quickstart.train_base import held_out_loss

    held_out = torch.from_numpy(corpus.held_out)
    assert held_out_loss(model, held_out, 512, limit=60) <= 1.45


def test_card_names_the_command_and_the_loss_that_was_measured_on_all_held_out_files():
    card = (MODEL / "README.md").read_text()
    measured = json.loads((MODEL / "training.json").read_text())["held_out_512"]
    assert "python -m experiments.quickstart.train_base" in card
    assert float(re.search(r"\*\*([\d.]+) nats a byte\*\*", card)[1]) == pytest.approx(
        measured, abs=1e-4
    )
    assert measured <= 1.45


def test_fine_tuning_text_tests_and_idlelib_are_not_among_the_training_files(corpus):
    names = corpus.train_files + corpus.held_out_files
    assert len(names) > 400
    folders = {folder for name in names for folder in name.split("/")[:-1]}
    assert folders.isdisjoint({"pydoc_data", "test", "tests", "idlelib", "site-packages"})
    assert set(corpus.train_files).isdisjoint(corpus.held_out_files)


def test_no_twelve_words_in_a_row_of_the_fine_tuning_text_are_in_the_training_text(corpus):
    from experiments.quickstart.stdlib_corpus import END_OF_TEXT_ID, fine_tuning_shingles, shingles

    forbidden = fine_tuning_shingles()
    assert len(forbidden) > 20_000
    for stream in (corpus.train, corpus.held_out):
        text = bytes(stream[stream != END_OF_TEXT_ID].astype("uint8")).decode("utf-8", "replace")
        assert not any(run in forbidden for run in shingles(text))


def test_corpus_filter_sees_shared_text_through_layout_case_and_punctuation(tmp_path):
    from pydoc_data.topics import topics

    from experiments.quickstart.stdlib_corpus import load_corpus

    words = re.findall(r"\w+", topics["assert"])[:14]
    (tmp_path / "copied.py").write_text("# " + "\n#   ".join(words).upper() + "\n")
    (tmp_path / "own.py").write_text("x = 1\n")
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "left_out.py").write_text("y = 2\n")
    corpus = load_corpus(tmp_path)
    assert corpus.shared_files == ("copied.py",)
    assert corpus.train_files + corpus.held_out_files == ("own.py",)


@pytest.mark.parametrize(
    "name",
    [
        "quickstart",
        "quickstart_offload_disk",
        "quickstart_offload_compressed",
        "quickstart_zo",
        "laptop_1b",
        "laptop_1b_4gb",
        "desktop_7b",
    ],
)
def test_committed_config_is_accepted_and_its_shape_loads_as_a_llama(name):
    from sluiceway.config.file import load_config
    from transformers import AutoConfig

    config = load_config(REPOSITORY / "configs" / f"{name}.yaml")
    shape = AutoConfig.from_pretrained(REPOSITORY / config.model.path)
    assert shape.model_type == "llama"
    assert config.data.sequence_length <= shape.max_position_embeddings


@pytest.mark.parametrize(
    ("shape", "low", "high"),
    [
        ("llama_1b", 1.2e9, 1.3e9),
        ("llama_1_3b", 1.3e9, 1.4e9),
        ("llama_3b", 3.2e9, 3.3e9),
        ("llama_7b", 6.7e9, 6.8e9),
    ],
)
def test_shape_has_the_parameters_its_name_promises(shape, low, high):
    with torch.device("meta"):
        model = build_skeleton(str(REPOSITORY / "configs/shapes" / shape), torch.float32)
    assert low < sum(p.numel() for p in model.parameters()) < high


def test_link_rate_of_the_quickstart_follows_the_formula_in_its_comment():
    from sluiceway.config.file import load_config

    from experiments.quickstart.link_rate import (
        CARD_FLOP_PER_S,
        CARD_LINK_GBPS,
        CARD_TOKENS,
        derived_link_gbps,
    )

    path = REPOSITORY / "configs" / "quickstart.yaml"
    config = load_config(path)
    stated = re.search(
        r"B_here = (\d+) \* \(([\d.e]+) / ([\d.e]+)\) \* \((\d+) / (\d+)\)", path.read_text()
    )
    b_card, f_here, f_card, t_card, t_here = map(float, stated.groups())
    assert (b_card, f_card, t_card) == (CARD_LINK_GBPS, CARD_FLOP_PER_S, CARD_TOKENS)
    expected = b_card * f_here / f_card * t_card / t_here
    assert derived_link_gbps(f_here, int(t_here)) == pytest.approx(expected, rel=1e-12)
    assert config.device.link.d2h_gbps == pytest.approx(expected, rel=0.02)
    assert config.device.link.h2d_gbps == config.device.link.d2h_gbps
    assert t_here == config.train.micro_batch * config.data.sequence_length


@pytest.mark.parametrize(("flop_per_s", "tokens"), [(51.1e9, 1024), (2e10, 192), (1e12, 8192)])
def test_full_gradients_take_the_same_share_of_the_compute_time_as_on_the_card(flop_per_s, tokens):
    from experiments.quickstart.link_rate import (
        CARD_FLOP_PER_S,
        CARD_LINK_GBPS,
        CARD_TOKENS,
        derived_link_gbps,
    )

    def share(gbps, flop_per_s, tokens, parameters=3_016_960):
        transfer = 2 * parameters / (1e9 * gbps)
        return transfer / (6 * parameters * tokens / flop_per_s)

    here = share(derived_link_gbps(flop_per_s, tokens), flop_per_s, tokens)
    assert here == pytest.approx(share(CARD_LINK_GBPS, CARD_FLOP_PER_S, CARD_TOKENS), rel=1e-12)


def test_measured_machine_counts_all_tokens_of_a_step_and_derives_from_its_own_rate(
    write_config, small_model
):
    from experiments.quickstart.link_rate import derived_link_gbps, measured

    data, train = {"sequence_length": 32}, {"micro_batch": 2, "accumulate": 3}
    found = measured(write_config(small_model, data=data, train=train))
    assert found["tokens_per_step"] == 2 * 3 * 32
    # Per layer 4 h^2 + 3 h * 2h weights, and the head; then the two products of attention.
    weights = 2 * (4 + 6) * 256**2 + 257 * 256
    assert found["flop_per_token"] == 6 * (weights + 2 * 256 * 32)
    assert found["flop_per_s"] == pytest.approx(found["flop_per_token"] * 2 * 32 / found["seconds"])
    assert found["link_gbps"] == derived_link_gbps(found["flop_per_s"], 192)
    assert found["device"] == "host"
    assert min(found["own_link_gbps"].values()) > 0


def test_newton_schulz_brings_every_singular_value_near_one():
    from experiments.quickstart.base_optimizer import orthogonalise

    batch = torch.randn(3, 37, 61, generator=torch.Generator().manual_seed(7))
    for matrices in (batch, batch.transpose(1, 2)):
        values = torch.linalg.svdvals(orthogonalise(matrices))
        assert values.min() > 0.5
        assert values.max() < 1.3
