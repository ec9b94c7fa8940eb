"""`sluiceway chat`: answers from a run's last save, or from a transformers folder."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from jinja2 import TemplateError
from transformers import TextStreamer

from sluiceway.config.shape import context_of
from sluiceway.errors import InvalidArgument
from sluiceway.machine.placement import DTYPES, auto_device
from sluiceway.model.folder import load_model, load_tokenizer
from sluiceway.run.last_save import last_save
from sluiceway.run.run_folder import CONFIG_FILE

_LEAVE = "an empty line or Ctrl-D ends"


def chat(
    path: Path, prompt: str | None, system: str | None, tokens: int, temperature: float, seed: int
) -> None:
    """Print answers, token by token; the model remembers the conversation if it has a template.

    Without a chat template it goes on with each text that it is given. Without `prompt` it reads
    questions until an empty line. A temperature of 0 takes the likeliest token each time.

    Raises
    ------
    sluiceway.errors.InvalidArgument
        The folder has no run and no model; or --system is given, and the model has no template.
    """
    if prompt is not None and not prompt.strip():
        raise InvalidArgument("--prompt: is empty; give a text")
    model, tokenizer = _loaded(path)
    if system and not tokenizer.chat_template:
        raise InvalidArgument(f"--system: {path} has no chat template; leave it out")
    torch.manual_seed(seed)
    turns = [{"role": "system", "content": system}] if system else []
    streamer = TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    draw = {"do_sample": True, "temperature": temperature} if temperature else {"do_sample": False}
    for question in _questions(prompt):
        turns.append({"role": "user", "content": question})
        inputs = _inputs(tokenizer, turns).to(model.device)
        used = inputs["input_ids"].shape[1]
        made = model.generate(
            **inputs, **draw, max_new_tokens=min(tokens, _room(model, used)), streamer=streamer
        )
        text = tokenizer.decode(made[0, used:], skip_special_tokens=True)
        turns.append({"role": "assistant", "content": text})


def _loaded(path: Path) -> tuple[torch.nn.Module, Any]:
    """Load model and tokenizer, on the GPU if there is one, in the type of the files."""
    name = auto_device()
    device = torch.device("cpu" if name == "host" else name)
    if (path / CONFIG_FILE).is_file():
        save = last_save(path)
        dtype = DTYPES[save.config.model.dtype]
        model = save.engine().weights(save.folder).load(dtype, device)
        save.check_unchanged()
        return model.eval(), load_tokenizer(save.folder)
    return load_model(path, "auto").to(device).eval(), load_tokenizer(path)


def _questions(prompt: str | None) -> Iterator[str]:
    if prompt is not None:
        yield prompt
        return
    print(_LEAVE, file=sys.stderr)
    while True:
        print("> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line.strip():
            return
        yield line.rstrip("\n")


def _room(model: torch.nn.Module, used: int) -> int:
    """Tokens that the model's context has for an answer."""
    context = context_of(model.config.to_dict())
    if context is None:
        return sys.maxsize
    if used >= context:
        raise InvalidArgument(
            f"the conversation has {used} tokens, and the context of the model {context}; begin a "
            "new one"
        )
    return context - used


def _inputs(tokenizer: Any, turns: list[dict[str, str]]) -> Any:
    if not tokenizer.chat_template:
        return tokenizer(turns[-1]["content"], return_tensors="pt", return_token_type_ids=False)
    try:
        return tokenizer.apply_chat_template(
            turns, add_generation_prompt=True, return_dict=True, return_tensors="pt"
        )
    except TemplateError as error:
        raise InvalidArgument(f"the chat template refuses the conversation: {error}") from None
