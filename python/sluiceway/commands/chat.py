"""`sluiceway chat`: answers from a run's last save, or from a transformers folder."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError

from sluiceway.config.shape import context_of
from sluiceway.errors import InvalidArgument
from sluiceway.run.last_save import last_save
from sluiceway.run.run_folder import CONFIG_FILE

if TYPE_CHECKING:
    import torch

_LEAVE = "an empty line or Ctrl-D ends"


@dataclass(frozen=True)
class Asked:
    """Options of the command.

    Attributes
    ----------
    prompt : str or None
        The only question; None reads questions until an empty line.
    tokens : int
        Largest number of tokens of an answer.
    temperature : float
        0 takes the likeliest token each time.
    """

    prompt: str | None
    system: str | None
    tokens: int
    temperature: float
    seed: int


def chat(path: Path, asked: Asked) -> None:
    """Print answers, token by token; the model remembers the conversation if it has a template.

    Without a chat template it goes on with each text that it is given.

    Raises
    ------
    sluiceway.errors.InvalidArgument
        The folder has no run and no model; or --system is given, and the model has no template.
    """
    if asked.prompt is not None and not asked.prompt.strip():
        raise InvalidArgument("--prompt: is empty; give a text")
    model, tokenizer = _loaded(path)
    if asked.system and not tokenizer.chat_template:
        raise InvalidArgument(f"--system: {path} has no chat template; leave it out")
    import torch
    from transformers import TextStreamer

    torch.manual_seed(asked.seed)
    turns = [{"role": "system", "content": asked.system}] if asked.system else []
    streamer = TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    for question in _questions(asked.prompt):
        turns.append({"role": "user", "content": question})
        inputs = _inputs(tokenizer, turns).to(model.device)
        room = _room(model, inputs["input_ids"].shape[1])
        options = {"do_sample": asked.temperature > 0, "max_new_tokens": min(asked.tokens, room)}
        if asked.temperature > 0:
            options["temperature"] = asked.temperature
        made = model.generate(
            **inputs, **options, streamer=streamer, pad_token_id=_padding(tokenizer, model)
        )
        answer = made[0, inputs["input_ids"].shape[1] :]
        text = tokenizer.decode(answer, skip_special_tokens=True)
        turns.append({"role": "assistant", "content": text})


def _loaded(path: Path) -> tuple[torch.nn.Module, Any]:
    """Load model and tokenizer, on the GPU if there is one, in the type of the files."""
    import torch

    from sluiceway.engines import engine_of
    from sluiceway.machine.placement import DTYPES, auto_device
    from sluiceway.model.folder import check_model_folder, load_model, load_tokenizer

    name = auto_device()
    device = torch.device("cpu" if name == "host" else name)
    if (path / CONFIG_FILE).is_file():
        save = last_save(path)
        config = save.config
        engine = engine_of(config.engine.in_folder(config, path))
        model = engine.weights(save.folder).load(DTYPES[config.model.dtype], device)
        save.check_unchanged()
        return model.eval(), load_tokenizer(save.folder)
    check_model_folder(path)
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


def _padding(tokenizer: Any, model: torch.nn.Module) -> int | None:
    """Return a token for padding, which one sequence does not need, so that nothing is said."""
    if tokenizer.pad_token_id is not None:
        return tokenizer.pad_token_id
    ends = model.generation_config.eos_token_id
    return ends[0] if isinstance(ends, list) else ends
