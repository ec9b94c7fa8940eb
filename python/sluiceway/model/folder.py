"""Loads models and tokenizers from a transformers folder, after checking its files."""

from __future__ import annotations

import errno
import json
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluiceway.config.shape import CONFIG_FILE, context_of
from sluiceway.errors import InvalidArgument, IoError, first_line
from sluiceway.model.safetensors_header import SafetensorsHeader, check_weights_file

if TYPE_CHECKING:
    import torch

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_TRAINED_TYPES = ("BF16", "F16", "F32", "F64")


def check_model_folder(folder: str | os.PathLike, weights: bool = True) -> dict:
    """Check a model folder without loading it; return its config.json.

    Raises
    ------
    sluiceway.errors.IoError
        There is no such folder.
    sluiceway.errors.InvalidArgument
        It is not a transformers folder with safetensors.
    sluiceway.errors.Corrupt
        A file of weights is shorter than its own header says.
    """
    path = Path(folder)
    if not path.is_dir():
        what = "is a file" if path.exists() else "does not exist"
        raise IoError(
            f"model.path: {path} {what}, expected a folder with {CONFIG_FILE} and {WEIGHTS_FILE}; "
            "a model of the Hugging Face hub gets there by: hf download OWNER/NAME --local-dir "
            f"{path}",
            errno.ENOENT,
            str(path),
        )
    config = _read_json(path / CONFIG_FILE)
    if weights:
        _check_not_quantised(path, config)
        for file in _weight_files(path):
            _check_unquantised(file, check_weights_file(file))
    return config


def _check_not_quantised(path: Path, config: dict) -> None:
    how = config.get("quantization_config")
    if how is not None:
        method = how.get("quant_method", "") if isinstance(how, dict) else ""
        raise InvalidArgument(
            f"model.path: {path} is quantised ({method} in {CONFIG_FILE}), expected weights of 16, "
            "32 or 64 bits; take the model that this one was quantised from"
        )


def _check_unquantised(file: Path, header: SafetensorsHeader) -> None:
    for tensor in header.tensors:
        if tensor.name.endswith(".weight") and not tensor.dtype.startswith(_TRAINED_TYPES):
            raise InvalidArgument(
                f"model.path: {file} has {tensor.name} in {tensor.dtype}, expected weights of 16, "
                "32 or 64 bits; take the model that this one was quantised from"
            )


def _read_json(path: Path) -> dict:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InvalidArgument(
            f"model.path: {path.parent} has no {path.name}, expected a transformers folder"
        ) from None
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"model.path: {path} cannot be read as JSON, {error}") from None
    if not isinstance(content, dict):
        raise InvalidArgument(f"model.path: {path} is not a JSON object, expected a model's config")
    return content


def _weight_files(path: Path) -> list[Path]:
    if (path / INDEX_FILE).exists():
        names = _read_json(path / INDEX_FILE).get("weight_map", {}).values()
        return [path / name for name in sorted(set(names))]
    if not (path / WEIGHTS_FILE).exists():
        others = sorted(p.name for p in path.glob("*.bin")) + sorted(
            p.name for p in path.glob("*.pt*")
        )
        hint = f" (it has {', '.join(others[:3])}, which is not read)" if others else ""
        raise InvalidArgument(
            f"model.path: {path} has no weights, expected {WEIGHTS_FILE} or {INDEX_FILE}{hint}"
        )
    return [path / WEIGHTS_FILE]


def quiet_transformers() -> None:
    """Keep transformers' progress bars and advice off the terminal, but not its exceptions."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def load_tokenizer(folder: str | os.PathLike) -> Any:
    """Load the tokenizer of a model folder."""
    from transformers import AutoTokenizer

    quiet_transformers()
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:  # transformers raises half a dozen types here.
        raise InvalidArgument(
            f"model.path: {folder} has no tokenizer that transformers can load, {first_line(error)}"
        ) from None
    if len(tokenizer) <= len(tokenizer.all_special_ids):  # transformers makes one of no files.
        raise InvalidArgument(
            f"model.path: the tokenizer of {folder} knows special tokens alone, so its files are "
            "missing; put the model's tokenizer.json and tokenizer_config.json there"
        )
    return tokenizer


def load_model(
    folder: str | os.PathLike, dtype: torch.dtype | str, mapped: bool = False
) -> torch.nn.Module:
    """Load a causal language model into host memory.

    Parameters
    ----------
    dtype : torch.dtype or str
        "auto" is the type of the files.
    mapped : bool
        Leave parameters whose type needs no conversion in the mapped file. They take no memory
        until they are read, and must be copied before the file may change.
    """
    from transformers import AutoModelForCausalLM

    check_model_folder(folder)
    quiet_transformers()
    try:
        model, loaded = AutoModelForCausalLM.from_pretrained(
            str(folder),
            dtype=dtype,
            local_files_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # We name them below; transformers does not.
        )
    except MemoryError:
        raise
    except Exception as error:
        raise InvalidArgument(
            f"model.path: transformers cannot load {folder}, {first_line(error)}"
        ) from None
    _check_loaded(folder, type(model).__name__, loaded)
    _own_memory([*model.buffers()] if mapped else [*model.parameters(), *model.buffers()])
    return model


def _check_loaded(folder: str | os.PathLike, model: str, loaded: dict[str, Any]) -> None:
    """Refuse tensors that lack or do not fit, and warn of those that the model has no place for."""
    if mismatched := sorted(loaded.get("mismatched_keys", ())):
        name, found, expected = mismatched[0]
        raise InvalidArgument(
            f"model.path: {name} in {folder} is {tuple(found)}, expected {tuple(expected)}; its "
            f"{CONFIG_FILE} is of another model"
        )
    if missing := sorted(loaded.get("missing_keys", ())):
        raise InvalidArgument(
            f"model.path: the weights in {folder} lack {len(missing)} tensors of {model}, first "
            f"{missing[0]}; the folder is incomplete, or was saved from a model without its head"
        )
    unexpected = loaded.get("unexpected_keys", ())
    if unused := sorted(k for k in unexpected if not k.endswith(".attn.masked_bias")):  # GPT-2's.
        warnings.warn(
            f"model.path: {len(unused)} tensors in {folder} are not used, first {unused[0]}: "
            f"{model} with its {CONFIG_FILE} has no place for them",
            stacklevel=2,
        )


def _own_memory(tensors: list[torch.Tensor]) -> None:
    """Copy weights out of the mapped file, one after the other.

    A run must not fail or change because somebody replaces the file. Also, torch aligns its own
    memory to cache lines, while a mapped weight starts wherever the file's header ends.
    """
    for tensor in tensors:
        tensor.data = tensor.data.clone()


def check_context(config: dict, folder: str, sequence_length: int) -> None:
    """Raise InvalidArgument if sequences are longer than the model's context."""
    context = context_of(config)
    if context is not None and sequence_length > context:
        raise InvalidArgument(
            f"data.sequence_length is {sequence_length}, expected at most {context}, the context "
            f"of {folder} ({CONFIG_FILE})"
        )


def prepare_model(model: torch.nn.Module, embeddings: str, checkpointing: bool) -> torch.nn.Module:
    """Freeze embeddings and head if `embeddings` is "frozen", and begin training mode."""
    if embeddings == "frozen":
        from sluiceway.model.targets import embedding_parameters

        for _, parameter in embedding_parameters(model):
            parameter.requires_grad_(False)
    if checkpointing:
        # The first is what transformers has called the second from 5.24 on.
        renamed = getattr(model, "activation_checkpointing_enable", None)
        (renamed or model.gradient_checkpointing_enable)({"use_reentrant": False})
    return model.train()
