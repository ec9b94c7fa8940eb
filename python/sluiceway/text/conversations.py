"""Turns conversations into tokens, and finds the tokens that the assistant says.

Three ways, the first that a tokenizer's template allows:

1. The template marks the assistant's part with {% generation %}.
2. It is one of those that TRL has a marked copy of: Qwen, Llama 3, Gemma, gpt-oss, Phi 3 and more.
3. Turns are located in the text, which works if the template never rewrites an earlier turn.
"""

from __future__ import annotations

import datetime
import difflib
import re
import sys
from collections.abc import Iterable
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from sluiceway.config.schema import is_file_name
from sluiceway.errors import InvalidArgument, IoError, Unavailable, first_line
from sluiceway.text.documents import Document

_MARK = "\ue000"  # A private-use character, which no template has.
_MARKED = re.compile(r"\{%-?\s*generation\s*-?%\}")
# Templates that write today's date get this one: equal data must give equal tokens on every day.
_DAY = datetime.date(2024, 7, 26)
_CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_TODAY = re.compile(r"""strftime_now\(\s*(["'])([^"']*)\1\s*\)""")


def named_template(name: str) -> str:
    """Read the template that `data.chat_template` names.

    Raises
    ------
    sluiceway.errors.IoError
        The file cannot be read.
    sluiceway.errors.InvalidArgument
        TRL has no template of this name; the text has similar names.
    sluiceway.errors.Unavailable
        TRL would be needed and is not installed.
    """
    if is_file_name(name):
        try:
            return Path(name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8"
            raise IoError(
                f"data.chat_template: {name} cannot be read, {reason}",
                getattr(error, "errno", None),
                name,
            ) from None
    if name == "chatml":
        return _CHATML
    if (trl := find_spec("trl")) is None:
        raise Unavailable(
            f"data.chat_template: {name} is a name of trl's, which is not installed; install it "
            "with pip install 'sluiceway[train]', or name a .jinja file"
        )
    folder = Path(trl.origin).parent / "chat_templates"
    known = {path.stem: path for path in folder.glob("*.jinja")}
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise InvalidArgument(
            f"data.chat_template: trl has no template {name}; {hint}expected a .jinja file, or one "
            f"of chatml, {', '.join(sorted(known))}"
        )
    return known[name].read_text(encoding="utf-8")


def marked_template(tokenizer: Any, place: str) -> str | None:
    """Return a template that marks what the assistant says; None if there is none to be had.

    Raises
    ------
    sluiceway.errors.Unavailable
        TRL would be needed and is not installed.
    """
    template = tokenizer.chat_template
    if isinstance(template, dict):  # Several, by name.
        template = template["default"]
    if template is None or not tokenizer.is_fast or _MARKED.search(template):
        return template
    try:
        from trl import get_training_chat_template
    except ImportError:
        raise Unavailable(
            f"{place}: is a conversation, and trl, which knows the chat templates, is not "
            "installed; install it with pip install 'sluiceway[train]'"
        ) from None
    try:
        return get_training_chat_template(tokenizer)
    except ValueError:  # TRL does not know it.
        return None


def tell_lost_tools(documents: Iterable[Document], tokenizer: Any) -> None:
    """Say that conversations have tools, or calls of tools, if the template writes none."""
    template = tokenizer.chat_template
    if template is None or "tool" in str(template):
        return
    lost = sum(
        bool(d.tools) or any("tool_calls" in message for message in d.messages or ())
        for d in documents
    )
    if lost:
        print(
            f"sluiceway: data: {lost:,} conversations have tools or calls of tools, which the chat "
            "template does not write, so nothing of them is learned",
            file=sys.stderr,
        )


def conversation_tokens(
    document: Document, tokenizer: Any, marked: str | None
) -> tuple[np.ndarray, np.ndarray]:
    """Tokenise a conversation, and tell which tokens are learned.

    `marked` is the result of `marked_template`.
    """
    if tokenizer.chat_template is None:
        raise InvalidArgument(
            f"{document.place}: has messages, but the model's tokenizer has no chat template; name "
            "one in data.chat_template, or use records with text"
        )
    if not tokenizer.is_fast:
        raise InvalidArgument(
            f"{document.place}: has messages, but the model's tokenizer cannot say where its "
            "tokens are; use one with a tokenizer.json, or records with text"
        )
    if marked is None:
        return _by_turns(document, tokenizer)
    return _by_marks(document, tokenizer, marked)


def common_prefix(prompt: Any, tokens: Any) -> int:
    """Count the first tokens that are equal."""
    size = min(len(prompt), len(tokens))
    differ = np.flatnonzero(np.asarray(prompt[:size]) != np.asarray(tokens[:size]))
    return int(differ[0]) if len(differ) else size


def _by_marks(document: Document, tokenizer: Any, marked: str) -> tuple[np.ndarray, np.ndarray]:
    options = {"chat_template": marked, "tokenize": True, "return_dict": True}
    messages = document.messages or []
    found = _templated(document, tokenizer, messages, return_assistant_tokens_mask=True, **options)
    tokens = np.array(found["input_ids"], np.int32)
    learned = np.array(found["assistant_masks"], bool)
    if document.given:
        before = _templated(
            document, tokenizer, messages[: document.given], add_generation_prompt=True, **options
        )
        learned[: common_prefix(before["input_ids"], tokens)] = False
    return tokens, learned


def _by_turns(document: Document, tokenizer: Any) -> tuple[np.ndarray, np.ndarray]:
    """Tokenise all turns up to the assistant's last.

    Turns are located in the template's text and not among the tokens, because tokens may merge
    across an edge. A token is marked if any of its characters is the assistant's.
    """
    messages = document.messages or []
    text = ""
    turns: list[tuple[int, int]] = []
    for turn, message in enumerate(messages):
        if message["role"] != "assistant" or turn < document.given:
            continue
        upto = _written(document, tokenizer, messages[: turn + 1])
        begin = _turn_begins(document, tokenizer, messages[: turn + 1], upto)
        if begin is None or begin < len(text) or not upto.startswith(text):
            raise InvalidArgument(
                f"{document.place}: the tokenizer's chat template rewrites earlier turns when turn "
                f"{turn + 1} is added; use a template that only appends"
            )
        turns.append((begin, len(upto)))
        text = upto
    marks = np.zeros(len(text) + 1, np.int64)  # marks[i]: the assistant's characters before i.
    for begin, end in turns:
        marks[begin + 1 : end + 1] = 1
    marks = np.cumsum(marks)
    found = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    begins, ends = np.array(found["offset_mapping"], np.int64).reshape(-1, 2).T
    # Some tokenizers leave spaces out of a token's span, so a token begins where the last ended.
    begins = np.minimum(begins, np.maximum.accumulate(np.append(0, ends))[:-1])
    return np.array(found["input_ids"], np.int32), marks[ends] > marks[begins]


def _turn_begins(document: Document, tokenizer: Any, messages: list, upto: str) -> int | None:
    """Find the begin of the last turn in the text `upto`; None if earlier turns were rewritten.

    A turn begins after the generation prompt if the template uses it, else at its content.
    """
    earlier, last = messages[:-1], messages[-1]
    before = ""
    if earlier:
        before, prompt = (_written(document, tokenizer, earlier, p) for p in (False, True))
        if prompt != before and upto.startswith(prompt):
            return len(prompt)
        if not upto.startswith(before):
            return None
    marked = _written(document, tokenizer, [*earlier, {**last, "content": _MARK}])
    begin = marked.find(_MARK, len(before))
    if begin < 0:
        raise InvalidArgument(
            f"{document.place}: the tokenizer's chat template leaves out the content of turn "
            f"{len(messages)}; use a template that writes every message"
        )
    return begin if upto.startswith(marked[:begin]) else None


def _written(document: Document, tokenizer: Any, messages: list, prompt: bool = False) -> str:
    return _templated(document, tokenizer, messages, tokenize=False, add_generation_prompt=prompt)


@lru_cache
def _dated(template: str) -> str:
    """Replace today's date, which transformers gives as a function of a format."""
    return _TODAY.sub(lambda found: repr(_DAY.strftime(found[2])), template)


def _templated(document: Document, tokenizer: Any, messages: list, **options: Any) -> Any:
    from jinja2 import TemplateError

    if document.tools:
        options["tools"] = document.tools
    try:
        template = tokenizer.get_chat_template(options.pop("chat_template", None), document.tools)
        return tokenizer.apply_chat_template(messages, chat_template=_dated(template), **options)
    except (TemplateError, ValueError, TypeError) as error:
        raise InvalidArgument(
            f"{document.place}: the tokenizer's chat template rejects the messages, "
            f"{first_line(error)}"
        ) from None
