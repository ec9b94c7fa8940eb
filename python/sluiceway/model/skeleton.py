"""Builds a model from its config.json alone, with random weights or on the meta device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from sluiceway.errors import InvalidArgument, first_line
from sluiceway.model.folder import quiet_transformers

if TYPE_CHECKING:
    from transformers import PretrainedConfig


def build_skeleton(folder: str, dtype: torch.dtype, layers: int | None = None) -> torch.nn.Module:
    """Build the causal language model of a folder without reading its weights.

    Parameters
    ----------
    layers : int or None
        Number of layers; None takes the config's.

    Raises
    ------
    sluiceway.errors.InvalidArgument
        transformers cannot build the model, or cannot build it with so many layers; or its
        attention sees later tokens.
    """
    from transformers import AutoModelForCausalLM

    quiet_transformers()
    try:
        model = AutoModelForCausalLM.from_config(shape_of(folder, layers), dtype=dtype)
        model.tie_weights()  # transformers 5.0 leaves it out on the meta device.
    except Exception as error:
        fewer = "" if layers is None else f" with {layers} layers"
        raise InvalidArgument(
            f"model.path: transformers cannot build a causal language model{fewer} from the "
            f"config.json in {folder}, {first_line(error)}"
        ) from None
    _check_causal(model)
    return model


def _check_causal(model: torch.nn.Module) -> None:
    """Refuse a model whose attention sees later tokens, by what its modules say of themselves.

    Modules of a few models say nothing; training finds those by their losses.
    """
    said = [m.is_causal for m in model.modules() if hasattr(m, "is_causal")]
    if said and not any(said):
        raise InvalidArgument(
            f"model.path: {type(model).__name__} is no model of the next token: its attention sees "
            "later tokens; expected a causal language model"
        )


def shape_of(folder: str, layers: int | None = None) -> PretrainedConfig:
    """Read the config.json of a folder, with the config's number of layers or another one."""
    from transformers import AutoConfig

    shape = AutoConfig.from_pretrained(folder, local_files_only=True)
    if layers is not None:
        text = shape.get_text_config()
        if vars(text).get("layer_types") is not None:
            text.layer_types = text.layer_types[:layers]
        text.num_hidden_layers = layers
    return shape
