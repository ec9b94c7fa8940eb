"""Conversations: which tokens carry the loss, by a real tokenizer, a real template and a command.

The template writes ChatML. What must be learned is worked out here from the text alone: with a
tokenizer of bytes a token is a byte, and the assistant's turns are where their text is.
"""

from __future__ import annotations

import copy
import itertools
import json
import shutil

import numpy as np
import pytest
import torch
from conftest import assert_short_error, read_lines
from sluiceway.config.schema import DataSection
from sluiceway.errors import InvalidArgument
from sluiceway.model.folder import load_tokenizer
from sluiceway.text.batches import collate
from sluiceway.text.conversations import named_template
from sluiceway.text.documents import Corpus, Document, read_documents
from sluiceway.text.sequences import IGNORED, make_sequences
from sluiceway.text.tokens import tokenise
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
TALKS = [
    [("system", "Count."), ("user", "one"), ("assistant", "two"), ("user", "three?"),
     ("assistant", "four, äé"), ("user", "thanks")],
    [("user", "assistant"), ("assistant", ""), ("assistant", "again"), ("user", "x"),
     ("assistant", "yes")],
]  # fmt: skip


@pytest.fixture
def chat_model(tiny_model, tmp_path):
    """The tiny model, whose tokenizer is one of bytes, with a chat template."""
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture
def chats(tmp_path):
    """The talks as a file of conversations, with a text between them."""
    path = tmp_path / "chats.jsonl"
    records = [
        {"messages": [{"role": role, "content": text} for role, text in talk]} for talk in TALKS
    ]
    records.insert(1, {"text": "plain"})
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def marked(template, tokenizer, talk):
    """The text of a talk with what is learned in [[ ]]."""
    tokenizer.chat_template = template
    messages = [{"role": role, "content": text} for role, text in talk]
    corpus = Corpus([Document("t:1", messages=messages)])
    stream = tokenise(corpus, tokenizer)
    text = ""
    for learned, run in itertools.groupby(
        zip(stream.learned, stream.tokens, strict=True), lambda x: x[0]
    ):
        part = tokenizer.decode([token for _, token in run])
        text += f"[[{part}]]" if learned else part
    return text


@pytest.fixture(scope="module")
def merging():
    """A tokenizer that merges across the edges of turns: "\\n\\n" is one token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=letters, show_progress=False)
    tokenizer.train_from_iterator(["\n\n", "q\n\n", "\n\n a"] * 50, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</>")


CHATML = "{% if messages[0].role != 'system' %}<system>Be kind.</>\n{% endif %}" + TEMPLATE
PLAIN = "{% for m in messages %}{{ m.role }}:\n{{ m.content }}\n{% endfor %}"
PROMPTED = PLAIN + "{% if add_generation_prompt %}assistant:\n{% endif %}"


@pytest.mark.parametrize(
    ("template", "talk", "text"),
    [
        pytest.param(CHATML, [("assistant", "hi"), ("user", "q"), ("assistant", "a")],
                     "<system>Be kind.</>\n<assistant>[[hi</>\n]]<user>q</>\n<assistant>[[a</>\n]]",
                     id="assistant-first"),
        pytest.param(PROMPTED, [("user", "q"), ("assistant", "a\n"), ("user", "r")],
                     "user:\nq\nassistant:\n[[a\n\n]]", id="ends-in-a-newline"),
        pytest.param(PROMPTED, [("user", "q"), ("assistant", "\n a")],
                     "user:\nq\nassistant:[[\n\n a\n]]", id="begins-with-a-newline"),
        pytest.param(PLAIN, [("user", "q"), ("assistant", "a"), ("assistant", "b")],
                     "user:\nq\nassistant:\n[[a\n]]assistant:\n[[b\n]]", id="no-prompt"),
        pytest.param(PLAIN + "{% if add_generation_prompt %}assistant:\n<think>{% endif %}",
                     [("user", "q"), ("assistant", "a")],
                     "user:\nq\nassistant:\n[[a\n]]", id="prompt-that-turns-lack"),
    ],
)  # fmt: skip
def test_turns_are_found_in_the_text_however_tokens_merge(merging, template, talk, text):
    assert marked(template, merging, talk) == text


def test_spaces_that_a_tokenizer_leaves_out_of_its_spans_are_learned(merging):
    trimming = copy.deepcopy(merging)
    trimming.backend_tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    talk = [("user", "q  q"), ("assistant", "a  b =\n   c ")]
    text = "user:\nq  q\nassistant:\n[[a  b =\n   c \n]]"
    assert marked(PROMPTED, trimming, talk) == marked(PROMPTED, merging, talk) == text


def test_character_for_private_use_in_a_message_is_a_character(merging):
    talk = [("user", "q \ue000 r"), ("assistant", "hi \ue000")]
    assert marked(PLAIN, merging, talk) == "user:\nq \ue000 r\nassistant:\n[[hi \ue000\n]]"


def test_template_that_writes_the_date_gives_the_same_tokens_on_every_day(merging):
    template = "{{ strftime_now('%d %b %Y') }}\n" + PROMPTED
    talk = [("user", "q"), ("assistant", "a")]
    assert marked(template, merging, talk) == "26 Jul 2024\nuser:\nq\nassistant:\n[[a\n]]"


def expected(talk):
    """Bytes of a talk up to the assistant's last turn, and which of them are the assistant's."""
    ids, learned = [], []
    last = max(k for k, (role, _) in enumerate(talk) if role == "assistant")
    for role, text in talk[: last + 1]:
        head, turn = f"<{role}>".encode(), f"{text}</>\n".encode()
        ids += [*head, *turn]
        learned += [False] * len(head) + [role == "assistant"] * len(turn)
    return ids, learned


def sequences_of(model, chats, length, packing):
    data = DataSection(train=[str(chats)], sequence_length=length, packing=packing)
    corpus = read_documents(data.train, data.format, "train")
    return make_sequences(corpus, load_tokenizer(model), data, "train", 257)


def test_labels_are_the_assistants_turns_and_nothing_else(chat_model, chats):
    sequences = sequences_of(chat_model, chats, 128, packing=False)
    rows = [expected(TALKS[0]), ([*b"plain", 256], [True] * 6), expected(TALKS[1])]
    batch = collate(sequences, [0, 1, 2])
    for row, (ids, learned) in enumerate(rows):
        labels = [i if mark else IGNORED for i, mark in zip(ids, learned, strict=True)]
        assert batch.inputs["input_ids"][row, : len(ids)].tolist() == ids
        assert batch.inputs["labels"][row, : len(ids)].tolist() == labels
        assert (batch.inputs["labels"][row, len(ids) :] == IGNORED).all()
    # A sequence's first token is predicted from nothing: only the plain text's is marked.
    assert batch.learned == sum(sum(learned) for _, learned in rows) - 1


def test_packing_keeps_every_mark_on_its_token(chat_model, chats):
    length = 16
    sequences = sequences_of(chat_model, chats, length, packing=True)
    plain = ([*b"plain", 256], [True] * 6)
    parts = [expected(TALKS[0]), plain, expected(TALKS[1])]
    ids, learned = (np.concatenate([part[k] for part in parts]) for k in (0, 1))
    cuts = range(0, len(ids) - length + 1, length)
    wanted = [start for start in cuts if learned[start + 1 : start + length].any()]
    assert sequences.starts.tolist() == wanted
    assert 0 < len(wanted) < len(cuts)  # A piece of user's text alone is left out.
    for k, start in enumerate(wanted):
        inputs = collate(sequences, [k]).inputs
        assert inputs["input_ids"][0].tolist() == ids[start : start + length].tolist()
        marks = (inputs["labels"][0] != IGNORED).tolist()
        assert marks == learned[start : start + length].tolist()


def test_loss_of_a_run_is_the_mean_over_the_assistants_tokens(
    sluiceway, chat_model, chats, write_config, tmp_path
):
    from transformers import AutoModelForCausalLM

    data = {"train": [str(chats)], "eval": [str(chats)], "packing": False, "sequence_length": 128}
    train = {"steps": 1, "micro_batch": 2, "accumulate": 2, "eval_sequences": None}
    config = write_config(chat_model, data=data, train=train)
    outcome = sluiceway("train", config, "--out", tmp_path / "out")
    assert outcome.code == 0, outcome.err
    model = AutoModelForCausalLM.from_pretrained(chat_model)
    losses = []
    for ids, learned in [expected(TALKS[0]), ([*b"plain", 256], [True] * 6), expected(TALKS[1])]:
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids])).logits[0, :-1].double()
        each = torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:]), reduction="none")
        losses.append(each[torch.tensor(learned[1:])])
    lines = read_lines(tmp_path / "out")
    assert lines[0]["eval_loss"] == pytest.approx(torch.cat(losses).mean().item(), rel=1e-5)
    everything = sum(len(part) for part in losses)
    said = sluiceway("eval", chat_model, "--data", chats, "--no-packing", "--json")
    assert json.loads(said.out)["tokens"] == everything
    # Two micro-batches of two draw the three sequences and one of the next epoch.
    assert lines[1]["loss"] == pytest.approx(lines[0]["eval_loss"], rel=0.1)


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('roles must alternate') }}", "rejects the messages, roles must alt"),
        ("{% for m in messages %}{{ loop.length }}{{ m.content }}{% endfor %}", "rewrites earlier"),
        ("{% for m in messages %}{{ m.role }}{% endfor %}", "leaves out the content of turn 3"),
        ("{% if", "chat template rejects the messages"),
    ],
)
def test_template_that_cannot_be_used_is_said_with_file_and_line(
    sluiceway, chat_model, chats, write_config, tmp_path, template, words
):
    (chat_model / "chat_template.jinja").write_text(template)
    data = {"train": [str(chats)]}
    outcome = sluiceway("train", write_config(chat_model, data=data), "--out", tmp_path / "out")
    assert_short_error(outcome, 2, f"{chats}:1: the tokenizer's chat template", words)
    assert not (tmp_path / "out").exists()


def test_template_of_the_config_takes_the_place_of_the_tokenizers_and_saves_keep_it(
    sluiceway, tiny_model, chat_model, chats, write_config, tmp_path
):
    file = tmp_path / "chat.jinja"
    file.write_text(TEMPLATE)
    data = {"train": [str(chats)], "eval": [str(chats)], "packing": False, "sequence_length": 128}
    train = {"steps": 2, "keep_best": True, "eval_every": 1}
    losses = []
    for name, model, template in (("own", chat_model, None), ("given", tiny_model, str(file))):
        config = write_config(model, data={**data, "chat_template": template}, train=train)
        assert sluiceway("train", config, "--out", tmp_path / name).code == 0
        losses.append([line.get("eval_loss") for line in read_lines(tmp_path / name)])
    assert losses[0] == losses[1]
    file.unlink()
    longer = sluiceway("resume", tmp_path / "given", "--set", "train.steps=3")
    assert longer.code == 0, longer.err
    assert sluiceway("export", tmp_path / "given", "--to", tmp_path / "exported").code == 0
    for folder in ("given/checkpoint", "given/best", "exported"):
        assert load_tokenizer(tmp_path / folder).chat_template == TEMPLATE, folder


def test_template_that_trl_has_is_known_by_its_name(
    sluiceway, tiny_model, chats, write_config, tmp_path
):
    from importlib.resources import files

    data = {"train": [str(chats)], "chat_template": "qwen2_5", "sequence_length": 128}
    outcome = sluiceway("train", write_config(tiny_model, data=data), "--out", tmp_path / "out")
    assert outcome.code == 0, outcome.err
    assert "the tokenizer has no token for <|im_end|>, <|im_start|> and writes each" in outcome.err
    template = files("trl").joinpath("chat_templates", "qwen2_5.jinja").read_text()
    assert load_tokenizer(tmp_path / "out" / "checkpoint").chat_template == template


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("qwen2.5", "trl has no template qwen2.5; did you mean qwen2_5? expected a .jinja file"),
        ("./none.jinja", "/none.jinja cannot be read, No such file"),
        ("", "data.chat_template"),
    ],
)
def test_template_that_there_is_not_is_refused(
    sluiceway, tiny_model, chats, write_config, tmp_path, template, words
):
    data = {"train": [str(chats)], "chat_template": template}
    outcome = sluiceway("train", write_config(tiny_model, data=data), "--out", tmp_path / "out")
    assert_short_error(outcome, 2, words)
    assert not (tmp_path / "out").exists()


def test_calls_of_tools_that_the_template_does_not_write_are_told(
    sluiceway, chat_model, chats, write_config, tmp_path
):
    call = {"type": "function", "function": {"name": "add", "arguments": {"x": 1}}}
    turns = [
        {"role": "user", "content": "1 + 1?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "2"},
        {"role": "assistant", "content": "two"},
    ]
    with chats.open("a") as file:
        file.write(json.dumps({"messages": turns}) + "\n")
    config = write_config(chat_model, data={"train": [str(chats)], "sequence_length": 64})
    outcome = sluiceway("train", config, "--out", tmp_path / "out")
    assert outcome.code == 0, outcome.err
    assert "1 conversations have tools or calls of tools, which the chat template" in outcome.err


@pytest.mark.parametrize("mark", [{"weight": 0}, {"train": False}])
def test_turns_that_are_marked_as_not_to_be_learned_are_refused(tmp_path, mark):
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", **mark}]
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps({"messages": turns}) + "\n")
    with pytest.raises(InvalidArgument, match="is marked as not to be learned, which is not supp"):
        read_documents([str(path)], "auto", "train")


def test_chatml_is_known_without_trl(merging):
    merging.chat_template = named_template("chatml")
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    text = merging.apply_chat_template(talk, tokenize=False)
    assert text == "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
