"""`data.packing: apart`: documents in one sequence that do not see each other."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from conftest import assert_short_error, build_llama, read_lines
from sluiceway.config.schema import DataSection
from sluiceway.model.folder import load_model, load_tokenizer
from sluiceway.text.batches import collate
from sluiceway.text.documents import read_corpora
from sluiceway.text.sequences import IGNORED, make_sequences
from transformers import BloomConfig, BloomForCausalLM, MambaConfig, MambaForCausalLM

from experiments.quickstart.byte_tokenizer import VOCABULARY_SIZE, write_tokenizer


def write_texts(path, sizes, seed=0):
    """Write documents of random letters; return the config's data section."""
    rng = np.random.default_rng(seed)
    texts = ["".join(rng.choice(list("abcdefgh "), size=int(n))) for n in sizes]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return {"train": [str(path)], "packing": "apart"}


def made(folder, data):
    data = DataSection(**data)
    corpus, _ = read_corpora(data)
    return make_sequences(corpus, load_tokenizer(folder), data, "train", VOCABULARY_SIZE)


def test_positions_begin_anew_and_first_tokens_are_not_learned(tiny_model, tmp_path):
    sizes = np.random.default_rng(3).integers(0, 70, size=60)
    data = write_texts(tmp_path / "x.jsonl", sizes)
    found = made(tiny_model, {**data, "sequence_length": 32})
    joined = made(tiny_model, {**data, "sequence_length": 32, "packing": True})
    each = made(tiny_model, {**data, "packing": False, "sequence_length": 128})
    positions, first = [], []  # Of each token of the stream, one document after the other.
    for length in each.lengths:
        first += [True] + [False] * (int(length) - 1)
    place = 0
    for at, begins in enumerate(first):
        place = 0 if begins or at % 32 == 0 else place + 1
        positions.append(place)
    assert np.array_equal(found.tokens, joined.tokens)
    assert len(found) == len(joined) > 20
    for k, start in enumerate(found.starts):
        want = slice(start, start + 32)
        assert found.positions(k).tolist() == positions[want]
        assert np.array_equal(found.learned[want], joined.learned[want] & ~np.array(first[want]))
    assert found.fingerprint != joined.fingerprint
    batch = collate(found, [1, 3])
    labels = batch.inputs["labels"]
    begins = batch.inputs["position_ids"][:, 1:] == 0
    assert begins.any()
    assert (labels[:, 1:][begins] == IGNORED).all()
    assert batch.learned == int((labels[:, 1:] != IGNORED).sum())


def test_loss_of_a_packed_sequence_is_that_of_its_documents(tiny_model, tmp_path):
    data = write_texts(tmp_path / "x.jsonl", [9, 20, 1, 31, 14, 40, 5, 3])
    apart = made(tiny_model, {**data, "sequence_length": 64})
    each = made(tiny_model, {**data, "packing": False, "sequence_length": 64})
    model = load_model(tiny_model, torch.float32).eval()

    def total(sequences, k):
        batch = collate(sequences, [k])
        with torch.no_grad():
            return model(**batch.inputs, use_cache=False).loss.item() * batch.learned, batch.learned

    packed, learned = total(apart, 0)
    inside = [k for k in range(len(each)) if each.starts[k] + each.lengths[k] <= 64]
    sums = [total(each, k) for k in inside]
    rest = 64 - sum(int(each.lengths[k]) for k in inside)
    if rest > 1:  # The document that the end of the sequence cuts.
        cut = collate(each, [len(inside)])
        short = {name: tensor[:, :rest] for name, tensor in cut.inputs.items()}
        with torch.no_grad():
            sums.append((model(**short, use_cache=False).loss.item() * (rest - 1), rest - 1))
    assert learned == sum(count for _, count in sums)
    assert packed == pytest.approx(sum(loss for loss, _ in sums), rel=1e-5)


ENGINES = [
    {"kind": "native"},
    {"kind": "subspace"},
    {"kind": "offload", "tier": "host", "weights": "streamed"},
    {"kind": "zo", "tier": "host"},
]


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine["kind"])
def test_every_engine_trains_and_evaluates(sluiceway, small_model, write_config, tmp_path, engine):
    data = write_texts(tmp_path / "x.jsonl", np.random.default_rng(5).integers(3, 90, size=40))
    store = {"chunk": "64KiB"} if engine["kind"] == "offload" else {}
    config = write_config(
        small_model, engine=engine, store=store, train={"steps": 2, "accumulate": 2},
        data={**data, "eval": data["train"]},
    )  # fmt: skip
    done = sluiceway("train", config, "--out", tmp_path / "run")
    assert done.code == 0, done.err
    last = read_lines(tmp_path / "run")[-1]
    again = sluiceway("eval", tmp_path / "run", "--json")
    assert json.loads(again.out)["loss"] == pytest.approx(last["eval_loss"], abs=1e-6)
    planned = sluiceway("plan", config, "--json")
    assert planned.code == 0, planned.err


def test_order_of_blocks_gives_the_same_losses(sluiceway, small_model, write_config, tmp_path):
    data = write_texts(tmp_path / "x.jsonl", np.random.default_rng(6).integers(3, 90, size=40))
    losses = {}
    for order in ("step", "block"):
        engine = {"kind": "offload", "tier": "host", "weights": "streamed", "order": order}
        config = write_config(
            small_model, order + ".yaml", engine=engine, store={"chunk": "64KiB"},
            train={"steps": 3, "accumulate": 4}, data={**data, "eval": []},
        )  # fmt: skip
        done = sluiceway("train", config, "--out", tmp_path / order)
        assert done.code == 0, done.err
        losses[order] = [line["loss"] for line in read_lines(tmp_path / order)]
    assert losses["block"] == pytest.approx(losses["step"], rel=1e-5)


def test_the_plan_counts_the_mask(sluiceway, write_config, tmp_path):
    model = build_llama(tmp_path / "long", hidden=64, context=1024)
    data = write_texts(tmp_path / "x.jsonl", np.random.default_rng(7).integers(3, 500, size=60))
    config = write_config(
        model, data={**data, "eval": [], "sequence_length": 1024}, train={"steps": 2}
    )
    planned = json.loads(sluiceway("plan", config, "--json").out)["peak_bytes"]["device"]
    done = sluiceway("train", config, "--out", tmp_path / "run")
    assert done.code == 0, done.err
    peak = max(line["peak_bytes"]["device"] for line in read_lines(tmp_path / "run"))
    assert peak == pytest.approx(planned, rel=0.05)


SHAPE = {"vocab_size": VOCABULARY_SIZE, "hidden_size": 32}
torch.manual_seed(0)
# Of random weights as large as trained ones: with smaller ones a token hardly moves another's loss.
OTHERS = [
    BloomForCausalLM(BloomConfig(**SHAPE, n_layer=2, n_head=2, initializer_range=0.5)),
    MambaForCausalLM(
        MambaConfig(**SHAPE, num_hidden_layers=2, state_size=4, initializer_range=0.5)
    ),
]


@pytest.mark.parametrize("model", OTHERS, ids=lambda model: type(model).__name__)
def test_a_model_that_does_not_keep_documents_apart_is_refused(
    sluiceway, write_config, tmp_path, model
):
    folder = tmp_path / "model"
    model.save_pretrained(folder)
    write_tokenizer(folder, 128)
    data = write_texts(tmp_path / "x.jsonl", [50, 20, 60, 90])
    config = write_config(folder, data={**data, "eval": []}, train={"steps": 1})
    refused = sluiceway("train", config, "--out", tmp_path / "run")
    assert_short_error(refused, 2, "data.packing: apart", "set data.packing: true or false")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_llama_keeps_documents_apart_in_every_type(
    sluiceway, small_model, write_config, tmp_path, dtype
):
    data = write_texts(tmp_path / "x.jsonl", [50, 20, 60, 90])
    config = write_config(
        small_model, data={**data, "eval": []}, train={"steps": 1}, model={"dtype": dtype}
    )
    outcome = sluiceway("train", config, "--out", tmp_path / "run")
    assert outcome.code == 0, outcome.err
