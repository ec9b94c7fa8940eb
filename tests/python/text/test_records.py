"""Records of the field's formats become documents with the same roles, prompts and answers."""

from __future__ import annotations

import json

import pytest
from sluiceway.errors import InvalidArgument
from sluiceway.text.documents import read_documents

USER, ASSISTANT = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
CALL = {"name": "add", "arguments": {"x": 1}}


def document_of(folder, record, columns=None):
    (folder / "x.jsonl").write_text(json.dumps(record) + "\n")
    (document,) = read_documents([str(folder / "x.jsonl")], "auto", "train", columns).documents
    return document


@pytest.mark.parametrize(
    "record",
    [
        {"messages": [USER, ASSISTANT]},
        {"conversations": [USER, ASSISTANT]},
        {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]},
        {"messages": [USER, {"role": "assistant", "content": [{"type": "text", "text": "a"}]}]},
        {"messages": [{"role": "user", "content": ["q"]}, ASSISTANT], "id": 3},
    ],
)
def test_conversations_are_messages_whatever_their_keys(tmp_path, record):
    document = document_of(tmp_path, record)
    assert document.messages == [USER, ASSISTANT]
    assert (document.kind, document.given, document.tools) == ("conversations", 0, None)


def test_system_beside_a_conversation_is_its_first_turn(tmp_path):
    record = {"system": "Be kind.", "conversations": [USER, ASSISTANT]}
    system = {"role": "system", "content": "Be kind."}
    assert document_of(tmp_path, record).messages == [system, USER, ASSISTANT]
    record["conversations"] = [{"role": "system", "content": "other"}, USER, ASSISTANT]
    assert document_of(tmp_path, record).messages == record["conversations"]


def test_tool_calls_have_arguments_that_are_objects_and_content(tmp_path):
    call = {"type": "function", "function": CALL}
    for given in (call, {"id": "1", "function": {"name": "add", "arguments": '{"x": 1}'}}):
        record = {
            "messages": [USER, {"role": "assistant", "content": None, "tool_calls": [given]}],
            "tools": json.dumps([{"type": "function"}]),
        }
        document = document_of(tmp_path, record)
        assert document.messages[1]["content"] == ""
        assert document.messages[1]["tool_calls"] == [{**given, **call}]
        assert document.tools == [{"type": "function"}]


def test_prompts_and_completions_are_texts_or_messages(tmp_path):
    document = document_of(tmp_path, {"prompt": "2 + 2 = ", "completion": "4"})
    assert (document.prompt, document.text, document.kind) == ("2 + 2 = ", "4", "answers")
    document = document_of(tmp_path, {"prompt": [USER], "completion": [ASSISTANT]})
    assert (document.messages, document.given) == ([USER, ASSISTANT], 1)


@pytest.mark.parametrize("more", ["", "z"])
def test_alpaca_is_a_conversation_and_a_prompt_for_models_without_a_template(tmp_path, more):
    record = {"instruction": "Say.", "input": more, "output": "a", "text": "not this"}
    document = document_of(tmp_path, record)
    asked = "Say.\n\nz" if more else "Say."
    assert document.messages == [{"role": "user", "content": asked}, ASSISTANT]
    assert document.text == "a"
    lines = document.prompt.split("\n\n")
    assert lines[1:] == (
        ["### Instruction:\nSay.", "### Input:\nz", "### Response:\n"] if more
        else ["### Instruction:\nSay.", "### Response:\n"]
    )  # fmt: skip
    assert ("paired with an input" in lines[0]) == bool(more)


def test_columns_with_other_names_are_mapped_and_no_others_are_looked_at(tmp_path):
    record = {"question": "q?", "answer": "a", "text": "not this"}
    columns = {"prompt": "question", "completion": "answer"}
    document = document_of(tmp_path, record, columns)
    assert (document.prompt, document.text) == ("q?", "a")
    assert document_of(tmp_path, record, {"text": "answer"}).text == "a"
    columns = {"instruction": "question", "input": "context", "output": "answer"}
    assert document_of(tmp_path, record, columns).messages[0]["content"] == "q?"
    with pytest.raises(InvalidArgument, match="has answer, question, text, expected body"):
        document_of(tmp_path, record, {"text": "body"})


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"messages": []}, "x.jsonl:1: messages is not a list"),
        ({"messages": "q"}, "messages is not a list"),
        ({"messages": [USER]}, "messages has no turn of the assistant"),
        ({"messages": ["q", "a"]}, "messages[0] is a str"),
        ({"messages": [{"content": "q"}]}, "messages[0] has no role"),
        ({"messages": [{"from": ["human"], "value": "q"}]}, "messages[0] has no role"),
        ({"messages": [USER, {"role": "assistant"}]}, "messages[1] has no content"),
        ({"messages": [USER, {"role": "assistant", "content": 4}]}, "has content of type int"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}, ASSISTANT]},
            "messages[0] has a part that is image, expected parts of text",
        ),
        (
            {"messages": [USER, {"role": "assistant", "tool_calls": [{"type": "function"}]}]},
            "has a tool call without a function's name",
        ),
        (
            {"messages": [USER, {"role": "assistant", "tool_calls": [
                {"function": {"name": "f", "arguments": "{"}}]}]},
            "calls f with arguments that are not JSON",
        ),
        ({"messages": [USER, ASSISTANT], "tools": "["}, "tools is not JSON"),
        ({"messages": [USER, ASSISTANT], "tools": {}}, "tools is a dict"),
        ({"prompt": "q", "completion": [ASSISTANT]}, "completion is a list, expected a string"),
        ({"prompt": "q", "completion": None}, "has completion (null), prompt, expected"),
        ({"messages": [USER, {**ASSISTANT, "tool_calls": 5}]}, "tool_calls that are no list"),
        ({"prompt": [USER], "completion": [USER]}, "completion has no turn of the assistant"),
        ({"instruction": 3, "output": "a"}, "instruction is a int, expected a string"),
        ({"prompt": "\ud83d", "completion": "a"}, "has \\ud83d, half of a surrogate pair"),
        ({"messages": [USER, {"role": "assistant", "content": "\ud83d"}]}, "has \\ud83d"),
        ({}, "has no keys, expected a string text, or messages, conversations"),
    ],
)  # fmt: skip
def test_records_that_cannot_be_learned_are_refused_with_what_is_wrong(tmp_path, record, words):
    with pytest.raises(InvalidArgument) as refused:
        document_of(tmp_path, record)
    assert words in str(refused.value)


def test_columns_that_are_not_read_are_named(tmp_path, capsys):
    path = tmp_path / "x.jsonl"
    rows = [{"instruction": "a", "output": "b", "history": [], "id": 1}, {"text": "c", "id": 2}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    read_documents([str(path)], "auto", "train")
    said = capsys.readouterr().err
    assert said == "sluiceway: data.train: columns that are not read: history, id\n"
    path.write_text(json.dumps({"text": "c"}) + "\n")
    read_documents([str(path)], "auto", "train")
    assert capsys.readouterr().err == ""


def test_records_in_which_nobody_answers_are_left_out_and_counted(tmp_path, capsys):
    records = [{"messages": [USER]}, {"messages": [USER, ASSISTANT]}, {"messages": [USER]}]
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, records)))
    corpus = read_documents([str(tmp_path / "x.jsonl")], "auto", "train")
    assert [d.place for d in corpus.documents] == [f"{tmp_path}/x.jsonl:2"]
    said = capsys.readouterr().err
    assert said.startswith(f"sluiceway: data.train: records left out: 2; the first, {tmp_path}/x")
    assert "x.jsonl:1: messages has no turn of the assistant" in said
    assert said.count("\n") == 1


def test_empty_answers_are_counted_and_calls_of_tools_are_none(tmp_path, capsys):
    silent = {"role": "assistant", "content": " "}
    calls = {**silent, "tool_calls": [{"function": CALL}]}
    records = [
        {"prompt": "q", "completion": "a"},
        {"prompt": "q", "completion": " "},
        {"messages": [USER, silent, USER, ASSISTANT]},
        {"messages": [USER, calls]},
        {"prompt": [USER, silent, USER], "completion": [ASSISTANT]},  # It is no answer to learn.
        {"instruction": "q", "output": ""},
        {"text": ""},
    ]
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, records)))
    read_documents([str(tmp_path / "x.jsonl")], "auto", "eval")
    assert capsys.readouterr().err == (
        f"sluiceway: data.eval: records with an empty answer: 3, the first {tmp_path}/x.jsonl:2; "
        "the model learns to say nothing there\n"
    )
