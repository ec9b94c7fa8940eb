"""A model as its config.json describes it, its weights drawn at random or on no device at all."""

from __future__ import annotations

import torch

from sluiceway.errors import InvalidArgument
from sluiceway.model.folder import quiet_transformers


def build_skeleton(folder: str, dtype: torch.dtype, layers: int | None = None) -> torch.nn.Module:
    """Build the causal language model of a folder; no weights are read.

    Parameters
    ----------
    layers : int or None
        In place of those of the config.

    Raises
    ------
    sluiceway.errors.InvalidArgument
        transformers knows no such model, or none with so many layers.
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
            f"model.path: transformers knows no causal language model by the config.json of "
            f"{folder}, {reason}"
        ) from None
