"""`sluiceway chat` answers as transformers does, from a model and from a run's last save."""

from __future__ import annotations

import shutil

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
FEW = ["--tokens", 12]
ASK = ["--prompt", "x"]


def answer_of(folder, text: str, tokens: int = 12) -> str:
    """The likeliest tokens after a text, by transformers alone."""
    tokenizer, model = (c.from_pretrained(folder) for c in (AutoTokenizer, AutoModelForCausalLM))
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        made = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False,
            pad_token_id=0,
        )  # fmt: skip
    return tokenizer.decode(made[0, ids.shape[1] :], skip_special_tokens=True)


def test_a_model_without_a_template_goes_on_with_the_text(sluiceway, tiny_model):
    done = sluiceway("chat", tiny_model, "--prompt", "Once upon", *FEW)
    assert done.code == 0, done.err
    assert done.out.rstrip("\n") == answer_of(tiny_model, "Once upon").rstrip("\n")


def test_a_run_answers_with_its_last_save(sluiceway, finished):
    folder, _ = finished
    done = sluiceway("chat", folder, "--prompt", "Once upon", *FEW)
    assert done.code == 0, done.err
    assert done.out.rstrip("\n") == answer_of(folder / "checkpoint", "Once upon").rstrip("\n")


def test_a_conversation_is_remembered(tiny_model, tmp_path, python_m_sluiceway):
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    (model / "chat_template.jinja").write_text(TEMPLATE)
    done = python_m_sluiceway(
        "chat", model, "--system", "Be brief", *FEW, input="one\ntwo\n\nthree\n"
    )
    assert done.code == 0, done.err
    first = answer_of(model, "<system>Be brief<user>one<assistant>")
    text = f"<system>Be brief<user>one<assistant>{first}<user>two<assistant>"
    assert done.out.startswith(first)
    assert answer_of(model, text).strip() in done.out
    assert done.err.count("> ") == 3


def test_the_same_seed_draws_the_same_answer(sluiceway, tiny_model):
    asked = ["chat", tiny_model, "--prompt", "x", "--temperature", 1.5, *FEW]
    first, again, other = (
        sluiceway(*asked, "--seed", seed).out for seed in (1, 1, 2)
    )  # fmt: skip
    assert first == again != other


def test_wrong_folders_and_options_are_one_clear_error(sluiceway, tiny_model, tmp_path):
    for arguments, said in (
        ([tmp_path / "absent"], "does not exist"),
        ([tmp_path], "config.json"),
        ([tiny_model, "--system", "x"], "has no chat template"),
        ([tiny_model, "--prompt", ""], "--prompt: is empty"),
        ([tiny_model, "--prompt", "x" * 1000], "and the context of the model"),
    ):
        done = sluiceway("chat", *(arguments if "--prompt" in arguments else [*arguments, *ASK]))
        assert done.code == 2, done.err
        assert said in done.err
