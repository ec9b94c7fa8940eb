"""Folders of models that are no language model, or whose files do not fit, and what commands say.

The right losses are computed here with transformers alone.
"""

from __future__ import annotations

import json
import shutil

import pytest
import torch
import transformers
from conftest import assert_short_error
from safetensors.torch import load_file, save_file

_SIZES = {
    "vocab_size": 257,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 128,
}
_UNSHIFTED = {"vocab_size": 257, "d_model": 32, "n_layer": 2, "n_head": 2, "d_inner": 64}
_DECODER = {"decoder_layers": 2, "decoder_attention_heads": 2, "decoder_ffn_dim": 64, "d_model": 32}


def folder_of(model, tiny_model, to):
    """A folder of the model with the tokenizer of bytes."""
    model.save_pretrained(to)
    for path in tiny_model.glob("token*"):
        shutil.copyfile(path, to / path.name)
    return to


def models():
    made = transformers
    torch.manual_seed(3)
    yield "XLNetLMHeadModel", made.XLNetLMHeadModel(made.XLNetConfig(**_UNSHIFTED))
    bart = made.BartConfig(vocab_size=257, max_position_embeddings=128, is_decoder=True, **_DECODER)
    yield "BartForCausalLM", made.BartForCausalLM(bart)
    yield "BertLMHeadModel", made.BertLMHeadModel(made.BertConfig(**_SIZES))
    # That of 5.0, and later ones, are causal.
    if (5, 0) < tuple(map(int, made.__version__.split(".")[:2])) < (5, 24):
        roformer = made.RoFormerConfig(**_SIZES, is_decoder=True)
        yield "RoFormerForCausalLM", made.RoFormerForCausalLM(roformer)


def test_models_that_see_the_token_they_predict_are_refused(
    sluiceway, tiny_model, write_config, prose, tmp_path
):
    for name, model in models():
        folder = folder_of(model, tiny_model, tmp_path / name)
        for dtype in ("fp32", "bf16") if name.startswith("Bert") else ("fp32",):
            config = write_config(folder, model={"dtype": dtype})
            outcome = sluiceway("train", config, "--out", tmp_path / "out")
            assert_short_error(outcome, 2, f"{name} is no model of the next token: its loss")
            assert not (tmp_path / "out").exists()
        outcome = sluiceway("eval", folder, "--data", prose, "--sequence-length", 32)
        assert outcome.code == 2
        assert "is no model of the next token" in outcome.err


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16", "autocast"])
def test_models_of_the_next_token_pass_in_any_type(
    sluiceway, tiny_model, write_config, tmp_path, dtype
):
    torch.manual_seed(4)
    sizes = {
        **_SIZES,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "num_key_value_heads": 2,
    }
    mixture = transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**sizes))
    folders = {"tiny": tiny_model, "moe": folder_of(mixture, tiny_model, tmp_path / "moe")}
    for name, folder in folders.items():
        kept = {"autocast": "bf16"} if dtype == "autocast" else {"dtype": dtype}
        config = write_config(folder, model=kept, train={"steps": 1})
        for length in (2, 3, 32):
            out = tmp_path / f"{name}{length}"
            outcome = sluiceway("train", config, "--out", out, "--set",
                                f"data.sequence_length={length}")  # fmt: skip
            assert outcome.code == 0, outcome.err


def test_perplexity_is_without_the_routers_loss(sluiceway, tiny_model, write_config, tmp_path):
    torch.manual_seed(5)
    shape = transformers.OlmoeConfig(
        **_SIZES, num_experts=8, num_experts_per_tok=4, output_router_logits=True
    )
    model = transformers.OlmoeForCausalLM(shape)
    folder = folder_of(model, tiny_model, tmp_path / "olmoe")
    text = "Some text to read. " * 40
    (tmp_path / "x.txt").write_text(text)
    outcome = sluiceway("eval", folder, "--data", tmp_path / "x.txt", "--sequence-length", 32,
                        "--json")  # fmt: skip
    assert outcome.code == 0, outcome.err
    ids = torch.tensor([*text.encode(), 256])
    ids = ids[: len(ids) // 32 * 32].view(-1, 32)
    with torch.no_grad():
        logits = model.eval()(input_ids=ids, output_router_logits=False).logits[:, :-1]
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    found = json.loads(outcome.out)
    assert found["loss"] == pytest.approx(expected.item(), rel=1e-5)
    config = write_config(folder, data={"eval": [str(tmp_path / "x.txt")]},
                          train={"steps": 1, "eval_sequences": None})  # fmt: skip
    outcome = sluiceway("train", config, "--out", tmp_path / "out", "--json")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["first_eval_loss"] == pytest.approx(expected.item(), rel=1e-5)


def edited(tiny_model, to, change, config=None):
    """A copy of the tiny model with other tensors in its file."""
    shutil.copytree(tiny_model, to)
    tensors = load_file(to / "model.safetensors")
    change(tensors)
    save_file(tensors, to / "model.safetensors", {"format": "pt"})
    shape = json.loads((to / "config.json").read_text())
    (to / "config.json").write_text(json.dumps({**shape, **(config or {})}))
    return to


_UP = "model.layers.1.mlp.up_proj.weight"


@pytest.mark.parametrize(
    ("change", "config", "words"),
    [
        (lambda t: t.update({"lora_A.weight": torch.ones(2)}), {}, "1 tensors in {}"),
        (lambda t: t.update({"up_proj.scale": torch.ones(2)}), {}, "first up_proj.scale"),
        (lambda t: None, {"num_hidden_layers": 1}, "first model.layers.1.input_layernorm.weight"),
    ],
)
def test_tensors_that_the_model_has_no_place_for_are_named(
    sluiceway, tiny_model, write_config, tmp_path, change, config, words
):
    folder = edited(tiny_model, tmp_path / "model", change, config)
    outcome = sluiceway(
        "train", write_config(folder, train={"steps": 1}), "--out", tmp_path / "out"
    )
    assert outcome.code == 0, outcome.err
    assert outcome.err.startswith("sluiceway: model.path: ")
    assert words.format(folder) in outcome.err


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.update({_UP: torch.zeros(3, 32)}), f"{_UP} in {{}} is (3, 32), expected ("),
        (lambda t: t.update({_UP: t[_UP].to(torch.int8)}), f"has {_UP} in I8, expected weights"),
    ],
)
def test_weights_of_another_shape_or_type_are_refused_by_name(
    sluiceway, tiny_model, write_config, tmp_path, change, words
):
    folder = edited(tiny_model, tmp_path / "model", change)
    outcome = sluiceway("train", write_config(folder), "--out", tmp_path / "out")
    assert_short_error(outcome, 2, words.format(folder))


def test_export_has_every_chat_template_of_the_model(sluiceway, tiny_model, write_config, tmp_path):
    shutil.copytree(tiny_model, tmp_path / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    tokenizer.chat_template = {"default": "{{ messages }}", "tool_use": "T{{ messages }}"}
    tokenizer.save_pretrained(tmp_path / "model")
    config = write_config(tmp_path / "model", train={"steps": 1})
    assert sluiceway("train", config, "--out", tmp_path / "out").code == 0
    outcome = sluiceway("export", tmp_path / "out", "--to", tmp_path / "to")
    assert outcome.code == 0, outcome.err
    found = transformers.AutoTokenizer.from_pretrained(tmp_path / "to")
    assert found.chat_template == tokenizer.chat_template
