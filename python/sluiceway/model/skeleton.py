"""Builds a model from its config.json alone, with random weights or on the meta device."""

from __future__ import annotations

import torch

from sluiceway.errors import InvalidArgument
from sluiceway.model.folder import quiet_transformers


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
            shape.num_hidden_layers = layers
        return AutoModelForCausalLM.from_config(shape, dtype=dtype)
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InvalidArgument(
            f"model.path: transformers cannot build a causal language model from the config.json "
            f"in {folder}, {reason}"
        ) from None
