"""Tokens and labels of records are those that TRL's own trainer makes from the same records."""

from __future__ import annotations

import datetime
import json
from importlib.resources import files

import datasets
import pytest
from sluiceway.config.schema import DataSection
from sluiceway.text import conversations
from sluiceway.text.documents import read_documents
from sluiceway.text.sequences import IGNORED, make_sequences
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

TEMPLATES = ("qwen3", "qwen3_5_think", "qwen3_8", "qwen2_5", "gptoss", "llama3", "gemma3", "phi3",
             "phi3_5", "glm4moe", "deepseekv3", "cohere2", "lfm2")  # fmt: skip
ONE = [{"role": "user", "content": "two + two?"}, {"role": "assistant", "content": "Four."}]
TWO = [*ONE, {"role": "user", "content": "äé?"}, {"role": "assistant", "content": "Ja."}]
SYSTEM = [{"role": "system", "content": "Be kind."}, *TWO]
THINKING = [ONE[0], {**ONE[1], "reasoning_content": "2 + 2"}, *TWO[2:]]
CALL = {"type": "function", "function": {"name": "add", "arguments": {"x": 2, "y": 2}}}
CALLS = [ONE[0], {"role": "assistant", "content": "", "tool_calls": [CALL]},
         {"role": "tool", "name": "add", "content": "4"}, ONE[1]]  # fmt: skip
_X = {"x": {"type": "integer", "description": "x"}}
_ADD = {"name": "add", "description": "Add.", "parameters": {"type": "object", "properties": _X}}
TOOLS = [{"type": "function", "function": _ADD}]


@pytest.fixture(scope="module")
def make_tokenizer():
    """Makes a tokenizer of bytes with a template of TRL's, or with none."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytes_alone = models.BPE(vocab={letter: k for k, letter in enumerate(letters)}, merges=[])

    def make(template):
        tokenizer = Tokenizer(bytes_alone)
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.decoder = decoders.ByteLevel()
        made = PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, eos_token="<|im_end|>", bos_token="<s>", pad_token="<pad>"
        )
        if template is not None:
            path = files("trl").joinpath("chat_templates", f"{template}.jinja")
            made.chat_template = path.read_text()
        return made

    return make


@pytest.fixture(scope="module")
def model():
    config = LlamaConfig(vocab_size=300, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                         num_attention_heads=1, num_key_value_heads=1)  # fmt: skip
    return LlamaForCausalLM(config)


def of_trl(records, tokenizer, model, folder, assistant):
    options = {"use_cpu": True, "report_to": "none", "disable_tqdm": True}
    args = SFTConfig(str(folder / "out"), assistant_only_loss=assistant, max_length=None, **options)
    data = datasets.Dataset.from_list(records)
    made = SFTTrainer(model, args, train_dataset=data, processing_class=tokenizer).train_dataset
    return [(row["input_ids"], row["labels"]) for row in made]


def of_ours(records, tokenizer, folder):
    path = folder / "x.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    data = DataSection(train=[str(path)], sequence_length=4096, packing=False)
    corpus = read_documents(data.train, data.format, "train")
    found = make_sequences(corpus, tokenizer, data, "train", 300)
    rows = []
    for start, size in zip(found.starts, found.lengths, strict=True):
        ids, learned = (array[start : start + size] for array in (found.tokens, found.learned))
        marks = zip(ids.tolist(), learned.tolist(), strict=True)
        rows.append((ids.tolist(), [token if mark else IGNORED for token, mark in marks]))
    return rows


@pytest.mark.parametrize("template", TEMPLATES)
def test_conversations_are_those_of_trl(make_tokenizer, model, tmp_path, monkeypatch, template):
    monkeypatch.setattr(conversations, "_DAY", datetime.date.today())  # gpt-oss writes it.
    tokenizer = make_tokenizer(template)
    talks = [ONE, TWO, SYSTEM, THINKING]
    records = [{"messages": talk} for talk in talks]
    assert of_ours(records, tokenizer, tmp_path) == of_trl(
        records, tokenizer, model, tmp_path, True
    )
    answers = [{"prompt": talk[:-1], "completion": talk[-1:]} for talk in (ONE, TWO)]
    assert of_ours(answers, tokenizer, tmp_path) == of_trl(
        answers, tokenizer, model, tmp_path, True
    )


@pytest.mark.parametrize("template", ["qwen3", "qwen2_5", "glm4moe"])
def test_tool_calls_are_those_of_trl(make_tokenizer, model, tmp_path, template):
    tokenizer = make_tokenizer(template)
    records = [{"messages": CALLS, "tools": json.dumps(TOOLS)}]
    assert of_ours(records, tokenizer, tmp_path) == of_trl(
        records, tokenizer, model, tmp_path, True
    )


@pytest.mark.parametrize("prompt", ["", "Two + two = ", "ends in a line\n"])
def test_texts_and_answers_are_those_of_trl(make_tokenizer, model, tmp_path, prompt):
    records = [{"text": prompt + "four"}, {"text": "five äé<|im_end|>"}]
    if prompt:
        records = [{"prompt": prompt, "completion": "four"}, {"prompt": prompt, "completion": "5"}]
    tokenizer = make_tokenizer(None)
    assert of_ours(records, tokenizer, tmp_path) == of_trl(
        records, tokenizer, model, tmp_path, False
    )


def test_conversations_of_sharegpt_are_those_of_trl(make_tokenizer, model, tmp_path):
    talk = [{"from": m["role"], "value": m["content"]} for m in TWO]
    tokenizer = make_tokenizer("qwen3")
    assert of_ours([{"conversations": talk}], tokenizer, tmp_path) == of_trl(
        [{"messages": TWO}], tokenizer, model, tmp_path, True
    )
