"""Turns the rows of a data set into documents: texts, answers to prompts, and conversations.

    messages, or conversations of {from, value}     the assistant's turns are learned
    prompt, completion (texts or lists of messages) the completion is learned
    instruction, input, output, system (alpaca)     the output is learned
    text                                            all of it is learned

The first line whose columns a record has says what it is, unless `data.columns` maps columns to
these names; then the others are not looked at.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, get_args

import numpy as np

from sluiceway.config.schema import PYDOC, ColumnName, DataSection
from sluiceway.errors import InvalidArgument
from sluiceway.text.files import Reading
from sluiceway.text.pydoc_text import pydoc_text

_ROLES = {
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
    "observation": "tool",
    "function_response": "tool",
}  # Of sharegpt's conversations; others are names of roles themselves.
KINDS = ("texts", "answers", "conversations")  # Values of Document.kind.
_SPLIT_SEED = 0x5EED
_SHOWN_NAMES = 3
_BLANKS = re.compile(r"\s+")
_EXPECTED = (
    "a string text, or messages, conversations, prompt and completion, or instruction and output"
)
# For tokenizers without a chat template; of Stanford's Alpaca, whose models know it.
_ALPACA = (
    "Below is an instruction that describes a task{paired}. Write a response that appropriately "
    "completes the request.\n\n### Instruction:\n{instruction}\n\n{input}### Response:\n"
)


@dataclass(frozen=True)
class Document:
    """One text, one answer to a prompt, or one conversation.

    An alpaca record has both: messages for tokenizers with a chat template, and a prompt.
    """

    place: str  # "file:line", for errors.
    text: str = ""
    messages: list[dict[str, Any]] | None = None
    prompt: str = ""  # Comes before the text and is not learned.
    given: int = 0  # The first messages, of which nothing is learned.
    tools: list[Any] | None = None  # For the chat template.
    source: str = ""  # Name in data.train or data.eval.

    @property
    def kind(self) -> str:
        """Name what the document is, in the plural."""
        if self.messages is not None:
            return "conversations"
        return "answers" if self.prompt else "texts"

    @property
    def has_empty_answer(self) -> bool:
        """Tell whether an answer to learn has no text, so that only its end is learned."""
        if self.messages is None:
            return bool(self.prompt) and not self.text.strip()
        return any(
            m["role"] == "assistant" and not m["content"].strip() and not m.get("tool_calls")
            for m in self.messages[self.given :]
        )


class _NothingToLearn(InvalidArgument):
    """A record in which the assistant says nothing."""


@dataclass
class Corpus:
    """Documents that were read, and the count of repairs."""

    documents: list[Document] = field(default_factory=list)
    files: int = 0
    replaced: int = 0  # Bytes that were not UTF-8.
    replaced_at: str = ""  # File and line of the first.
    other_parts: list[str] = field(default_factory=list)  # Splits and files that are not read.

    def kinds(self) -> dict[str, int]:
        """Count the documents of each kind."""
        return dict(Counter(document.kind for document in self.documents))


def read_corpora(data: DataSection) -> tuple[Corpus, Corpus | None]:
    """Read the documents for training, and those that are held out; None if there are none."""
    train, held_out = _read_part(data, "train"), None
    if train.other_parts and not data.eval:
        _tell_other_parts(train.other_parts)
    if data.eval:
        held_out = _read_part(data, "eval")
    elif data.split:
        train, held_out = _split(train, data.split)
    return replace(train, documents=_weighted(train.documents, data.weights)), held_out


def read_held_out(data: DataSection) -> Corpus:
    """Read the documents that are held out of a run with `eval` or `split`."""
    if data.eval:
        return _read_part(data, "eval")
    return _split(_read_part(data, "train"), data.split)[1]


def _read_part(data: DataSection, part: str) -> Corpus:
    names = data.train if part == "train" else data.eval
    return read_documents(names, data.format, part, data.columns)


def _weighted(documents: list[Document], weights: Mapping[str, float]) -> list[Document]:
    """Repeat the documents of each weighted name, and take a part of them for a fraction."""
    if not weights:
        return documents
    taken: list[Document] = []
    for source, group in groupby(documents, key=lambda document: document.source):
        each = list(group)
        rounds, part = divmod(weights.get(source, 1.0), 1)
        taken += each * int(rounds)
        order = np.random.Generator(np.random.PCG64(_SPLIT_SEED)).permutation(len(each))
        taken += [each[k] for k in sorted(order[: round(part * len(each))].tolist())]
    if not any(d.messages or d.text.strip() for d in taken):
        raise InvalidArgument(
            "data.weights: leave no document of data.train, expected larger weights"
        )
    return taken


def _split(corpus: Corpus, share: float) -> tuple[Corpus, Corpus]:
    """Hold out a share of the documents, at least one; always the same ones of the same data."""
    documents = [d for d in corpus.documents if d.messages or d.text.strip()]
    if len(documents) == 1 and documents[0].kind == "texts":
        documents = _halved(documents[0], share)
        return Corpus(documents[:1], corpus.files, corpus.replaced), Corpus(documents[1:])
    if len(documents) < 2:
        raise InvalidArgument(
            "data.split: there is one document, expected at least 2 to hold one out; name another "
            "file in data.eval"
        )
    count = min(max(1, round(share * len(documents))), len(documents) - 1)
    order = np.random.Generator(np.random.PCG64(_SPLIT_SEED)).permutation(len(documents))
    held_out = set(order[:count].tolist())
    parts = [[], []]
    for number, document in enumerate(documents):
        parts[number in held_out].append(document)
    train = Corpus(parts[0], corpus.files, corpus.replaced)
    return train, Corpus(parts[1], corpus.files)


def _halved(document: Document, share: float) -> list[Document]:
    """Cut a text behind a blank, so that about `share` of it is in the second part."""
    text = document.text
    first, last = len(text) - len(text.lstrip()), len(text.rstrip())
    middle = min(last - 1, int((1 - share) * len(text)))
    before, behind = _BLANKS.search(text[middle::-1]), _BLANKS.search(text, middle)
    ends = [middle + 1 - before.start()] if before else []
    ends += [behind.end()] if behind else []
    if not (ends := [end for end in ends if first < end < last]):
        raise InvalidArgument(
            f"{document.place}: is one text without a blank, expected one to split it at; name "
            "another file in data.eval"
        )
    at = min(ends, key=lambda end: abs(end - middle))
    return [replace(document, text=part) for part in (text[:at], text[at:])]


def read_documents(
    names: list[str], file_format: str, part: str, columns: Mapping[str, str] | None = None
) -> Corpus:
    """Read files, folders, globs and `pydoc`, in the order given.

    Conversations in which the assistant says nothing are left out, and a line says how many. The
    part is "train" or "eval"; `columns` has the file's column for each name of this module's list
    that is used.

    Raises
    ------
    sluiceway.errors.IoError
        A file is missing or cannot be read.
    sluiceway.errors.InvalidArgument
        A record does not parse, or the files have no text; the error has file and line.
    """
    names_of_columns = columns.values() if columns else get_args(ColumnName)
    corpus, reading = Corpus(), Reading(file_format, part, set(names_of_columns))
    unread: set[str] = set()
    silent: list[_NothingToLearn] = []
    for name in names:
        if name == PYDOC:
            corpus.documents += [
                Document(f"pydoc:{number}", text, source=name)
                for number, text in enumerate(pydoc_text(part), start=1)
            ]
            continue
        for place, row in reading.rows(name):
            if isinstance(row, str):
                document = Document(place, row)
            else:
                try:
                    document = _of(row, place, columns)
                except _NothingToLearn as error:
                    silent.append(error)
                    continue
                unread |= set() if columns else _unread(row)
            corpus.documents.append(replace(document, source=name))
    corpus.files, corpus.replaced = reading.files, reading.replaced
    corpus.replaced_at, corpus.other_parts = reading.replaced_at, reading.other_parts
    if not any(d.messages or d.text.strip() for d in corpus.documents):
        if silent:
            raise silent[0]
        raise InvalidArgument(
            f"data.{part}: {', '.join(names)} has no text ({corpus.files} files), expected at "
            "least one document"
        )
    _tell_oddities(corpus, part, unread, silent)
    return corpus


def _tell_oddities(
    corpus: Corpus, part: str, unread: set[str], silent: list[_NothingToLearn]
) -> None:
    """Name columns that nobody reads, and count records that teach nothing or silence."""
    empty = [document for document in corpus.documents if document.has_empty_answer]
    said = []
    if corpus.replaced:
        said.append(
            f"bytes that are not UTF-8: {corpus.replaced:,}, the first in {corpus.replaced_at}; "
            "they are read as \N{REPLACEMENT CHARACTER}; if that is not intended, save the file as "
            "UTF-8: iconv -f latin1 -t utf-8"
        )
    if unread:
        said.append(f"columns that are not read: {', '.join(sorted(map(str, unread)))}")
    if silent:
        said.append(f"records left out: {len(silent):,}; the first, {silent[0]}")
    if empty:
        said.append(
            f"records with an empty answer: {len(empty):,}, the first {empty[0].place}; the model "
            "learns to say nothing there"
        )
    for line in said:
        print(f"sluiceway: data.{part}: {line}", file=sys.stderr)


def _tell_other_parts(names: list[str]) -> None:
    more = f" and {len(names) - _SHOWN_NAMES:,} more" if len(names) > _SHOWN_NAMES else ""
    print(
        f"sluiceway: data.train: not read: {', '.join(names[:_SHOWN_NAMES])}{more}; to hold one of "
        "them out, name it in data.eval",
        file=sys.stderr,
    )


def _of(record: dict[str, Any], place: str, columns: Mapping[str, str] | None) -> Document:
    has = ", ".join(sorted(f"{k} (null)" if v is None else str(k) for k, v in record.items()))
    record = {key: value for key, value in record.items() if value is not None}
    if columns:
        record = _mapped(record, place, columns, has)
    read = next((read for needs, _, read in _KINDS if needs <= record.keys()), None)
    if read is not None:
        document = read(record, place)
    elif isinstance(record.get("text"), str):
        document = Document(place, record["text"])
    elif "chosen" in record:
        raise InvalidArgument(
            f"{place}: has chosen and no completion, so it is a preference; the command line "
            "trains on answers alone. docs/examples.md has DPO in Python"
        )
    else:
        raise InvalidArgument(
            f"{place}: has {has or 'no keys'}, expected {_EXPECTED}; "
            "data.columns gives columns other names, such as data.columns: {text: body}"
        )
    _check_characters(document)
    return document


def _unread(record: dict[str, Any]) -> set[str]:
    """Columns that `_of` does not read of a record that it takes."""
    values = {key for key, value in record.items() if value is not None}
    return set(record) - next((reads for needs, reads, _ in _KINDS if needs <= values), {"text"})


def _mapped(
    record: dict[str, Any], place: str, columns: Mapping[str, str], has: str
) -> dict[str, Any]:
    lacks = [column for column in columns.values() if column not in record]
    optional = {columns[name] for name in ("input", "system", "tools") if name in columns}
    if missing := [column for column in lacks if column not in optional]:
        raise InvalidArgument(
            f"{place}: has {has or 'no keys'}, expected {', '.join(missing)} as data.columns says"
        )
    return {name: record[column] for name, column in columns.items() if column in record}


def _string(record: dict[str, Any], key: str, place: str) -> str:
    value = record.get(key)
    if value is not None and not isinstance(value, str):
        raise InvalidArgument(f"{place}: {key} is a {type(value).__name__}, expected a string")
    return value or ""


def _conversation(record: dict[str, Any], place: str) -> Document:
    key = "messages" if "messages" in record else "conversations"
    messages = _messages(record[key], place, key)
    system = _string(record, "system", place)
    if system and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": system})
    _check_learns(messages, place, key)
    return Document(place, messages=messages, tools=_tools(record, place))


def _answer(record: dict[str, Any], place: str) -> Document:
    prompt, completion = record["prompt"], record["completion"]
    if isinstance(prompt, str) or isinstance(completion, str):
        prompt, completion = (_string(record, key, place) for key in ("prompt", "completion"))
        return Document(place, completion, prompt=prompt)
    given = _messages(prompt, place, "prompt")
    answer = _messages(completion, place, "completion")
    _check_learns(answer, place, "completion")
    return Document(
        place, messages=[*given, *answer], given=len(given), tools=_tools(record, place)
    )


def _alpaca(record: dict[str, Any], place: str) -> Document:
    instruction, more, output, system = (
        _string(record, key, place) for key in ("instruction", "input", "output", "system")
    )
    asked = f"{instruction}\n\n{more}" if more else instruction
    messages = [{"role": "user", "content": asked}, {"role": "assistant", "content": output}]
    if system:
        messages.insert(0, {"role": "system", "content": system})
    prompt = _ALPACA.format(
        paired=", paired with an input that provides further context" if more else "",
        instruction=instruction,
        input=f"### Input:\n{more}\n\n" if more else "",
    )
    return Document(place, output, messages, f"{system}\n\n{prompt}" if system else prompt)


def _messages(found: object, place: str, key: str) -> list[dict[str, Any]]:
    """Return messages with role and content, whatever their keys are called in the record."""
    if not isinstance(found, list) or not found:
        raise InvalidArgument(f"{place}: {key} is not a list of {{role, content}} objects")
    return [_message(m, f"{place}: {key}[{number}]") for number, m in enumerate(found)]


def _message(found: object, at: str) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise InvalidArgument(f"{at} is a {type(found).__name__}, expected {{role, content}}")
    message = dict(found)
    if "from" in message:
        role = message.pop("from")
        message["role"] = _ROLES.get(role, role) if isinstance(role, str) else role
    if "value" in message:
        message["content"] = message.pop("value")
    if message.get("weight") == 0 or message.get("train") is False:
        raise InvalidArgument(
            f"{at} is marked as not to be learned, which is not supported: what the assistant says "
            "is learned; leave the mark out, or give the turns before it as prompt and the others "
            "as completion"
        )
    if not isinstance(message.get("role"), str):
        raise InvalidArgument(f"{at} has no role, expected a string such as user")
    message["content"] = _content(message, at)
    if calls := message.get("tool_calls"):
        if not isinstance(calls, list):
            raise InvalidArgument(f"{at} has tool_calls that are no list")
        message["tool_calls"] = [_call(call, at) for call in calls]
    return message


def _content(message: dict[str, Any], at: str) -> str:
    content = message.get("content")
    if content is None and message.get("tool_calls"):
        return ""
    if isinstance(content, list):
        content = "".join(_part(part, at) for part in content)
    if not isinstance(content, str):
        what = "no content" if content is None else f"content of type {type(content).__name__}"
        raise InvalidArgument(f"{at} has {what}, expected a string, or parts of text")
    return content


def _part(part: object, at: str) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return part["text"]
    kind = part.get("type", "part without text") if isinstance(part, dict) else part
    raise InvalidArgument(f"{at} has a part that is {kind}, expected parts of text alone")


def _call(call: object, at: str) -> dict[str, Any]:
    """Return a tool call whose arguments are an object: templates write them as JSON."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise InvalidArgument(f"{at} has a tool call without a function's name")
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            raise InvalidArgument(
                f"{at} calls {function['name']} with arguments that are not JSON"
            ) from None
    return {"type": "function", **call, "function": {**function, "arguments": arguments}}


def _tools(record: dict[str, Any], place: str) -> list[Any] | None:
    tools = record.get("tools")
    if isinstance(tools, str):  # Tables cannot hold schemas that differ, so people store text.
        try:
            tools = json.loads(tools) if tools.strip() else None
        except (ValueError, RecursionError):
            raise InvalidArgument(f"{place}: tools is not JSON, expected a list") from None
    if tools is not None and not isinstance(tools, list):
        raise InvalidArgument(f"{place}: tools is a {type(tools).__name__}, expected a list")
    return tools or None


def _check_learns(messages: list[dict[str, Any]], place: str, key: str) -> None:
    if not any(m["role"] == "assistant" for m in messages):
        roles = ", ".join(sorted({m["role"] for m in messages}))
        raise _NothingToLearn(
            f"{place}: {key} has no turn of the assistant to learn from, expected at least one "
            f"(its roles: {roles})"
        )


def _check_characters(document: Document) -> None:
    parts = (document.prompt, document.text, document.messages, document.tools)
    try:
        for part in parts:
            text = part if isinstance(part, str) else json.dumps(part, ensure_ascii=False)
            text.encode()
    except RecursionError:
        raise InvalidArgument(f"{document.place}: is nested too deeply") from None
    except UnicodeEncodeError as error:
        half = f"\\u{ord(text[error.start]):04x}"
        raise InvalidArgument(
            f"{document.place}: has {half}, half of a surrogate pair, expected whole characters"
        ) from None


# Kinds of records: the columns that tell one, all that it reads, and its reader. Texts come last.
_KINDS = (
    ({"messages"}, {"messages", "system", "tools"}, _conversation),
    ({"conversations"}, {"conversations", "system", "tools"}, _conversation),
    ({"prompt", "completion"}, {"prompt", "completion", "tools"}, _answer),
    ({"instruction", "output"}, {"instruction", "input", "output", "system"}, _alpaca),
)
