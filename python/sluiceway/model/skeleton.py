"""Builds a model from its config.json alone, with random weights or on the meta device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from sluiceway.errors import InvalidArgument
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
        transformers cannot build the model, or cannot build it with so many layers.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    quiet_transformers()
    try:
        shape = AutoConfig.from_pretrained(folder, local_files_only=True)
        if layers is not None:
            _cut(shape, layers)
        return AutoModelForCausalLM.from_config(shape, dtype=dtype)
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        fewer = "" if layers is None else f" with {layers} layers"
        raise InvalidArgument(
            f"model.path: transformers cannot build a causal language model{fewer} from the "
            f"config.json in {folder}, {reason}"
        ) from None


def layers_of(folder: str) -> int:
    """Number of layers that the config.json of a folder says."""
    from transformers import AutoConfig

    shape = AutoConfig.from_pretrained(folder, local_files_only=True)
    return shape.get_text_config().num_hidden_layers


def _cut(shape: PretrainedConfig, layers: int) -> None:
    """Give a model's config fewer layers, and fewer of what it has for each of them."""
    text = shape.get_text_config()
    if vars(text).get("layer_types") is not None:
        text.layer_types = text.layer_types[:layers]
    text.num_hidden_layers = layers
