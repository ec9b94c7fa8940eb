"""Opens a model whose blocks' weights stay in their files until an optimizer streams them."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn

from sluiceway import _core
from sluiceway.errors import InvalidArgument, Unavailable
from sluiceway.machine.placement import DTYPES
from sluiceway.model.blocks import find_blocks, weights_by_block
from sluiceway.model.folder import load_model
from sluiceway.optim.common import torch_private
from sluiceway.optim.common.elsewhere import WeightsElsewhere, absent, keeper_of

_OWNER = "open_streamed"
_HOLDER = "_sluiceway_folder"  # Attribute of a model; parameters hold their keeper weakly.


class FolderWeights:
    """Values of parameters in mapped files, which take no memory until they are read.

    Parameters
    ----------
    parameters : list of (str, torch.nn.Parameter)
        Their data are the mapped tensors; afterwards they are absent.
    dtype : torch.dtype
        The type that the parameters get.
    device : torch.device
        The device that they get.
    """

    fills_state_dict = False
    owner = _OWNER

    def __init__(
        self, parameters: list[tuple[str, nn.Parameter]], dtype: torch.dtype, device: torch.device
    ) -> None:
        self._dtype = dtype
        self._mapped = {id(p): (name, p.data) for name, p in parameters}
        for _, p in parameters:
            p.data = absent(p.data.new_empty((), dtype=dtype).expand(p.shape), device)
        self._guard = WeightsElsewhere(self, [p for _, p in parameters])

    def __reduce__(self) -> tuple[Any, ...]:  # A copy of the model has the values.
        return type(None), ()

    def name_of(self, p: nn.Parameter) -> str:
        """The parameter's name in the model."""
        return self._mapped[id(p)][0]

    def theta_on_host(self, p: nn.Parameter) -> torch.Tensor:
        """Read a parameter's value."""
        _, mapped = self._mapped[id(p)]
        return mapped.to(self._dtype, copy=True)

    def refresh(self, p: nn.Parameter) -> bool:
        """Load a parameter's value into memory of its own, where it stays."""
        value = self.theta_on_host(p)
        with torch_private.asking_no_class():
            p.data = value.to(p.device)
        self._guard.bring([p])
        self.let_go(p)
        return True

    def let_go(self, p: nn.Parameter) -> None:
        """Forget a parameter that another keeper has now."""
        del self._mapped[id(p)]


def folder_of(p: torch.Tensor) -> FolderWeights | None:
    """Return the keeper of a parameter whose value is still in its file."""
    keeper = keeper_of(p)
    return keeper if isinstance(keeper, FolderWeights) else None


def ids_in_files(model: nn.Module) -> set[int]:
    """Return id() of the parameters whose values are still in their files."""
    return {id(p) for p in model.parameters() if folder_of(p) is not None}


def open_streamed(
    folder: str | os.PathLike, dtype: torch.dtype | str | None = None, device: str = "cpu"
) -> nn.Module:
    """Open a causal language model for `OffloadAdamW(weights="streamed")`, never loading it whole.

    The matrices of its blocks stay in the files of the folder until the optimizer copies them into
    its store, one after the other. All other parameters are loaded. A parameter that is read before
    that is loaded and stays in memory. The files must not change meanwhile. After the optimizer is
    closed the model has no weights: write them with `opt.save_pretrained(folder)` first.

    Parameters
    ----------
    folder : str or path
        A folder of transformers with safetensors.
    dtype : torch.dtype or str, optional
        float32, bfloat16 or float16, or fp32, bf16 or fp16; default is the type of the files.
        Another type than that of the files is converted tensor by tensor.
    device : str
        Where the model computes: cpu or cuda:N.

    Returns
    -------
    torch.nn.Module

    Raises
    ------
    sluiceway.errors.IoError, sluiceway.errors.InvalidArgument, sluiceway.errors.Corrupt
        There is no such model, it is broken, or it has no list of blocks.
    sluiceway.errors.Unavailable
        There is no such device.
    """
    kinds = {None: None, **DTYPES, **{kind: kind for kind in DTYPES.values()}}
    if dtype not in kinds:
        known = ", ".join(DTYPES)
        raise InvalidArgument(f"{_OWNER}: dtype is {dtype!r}, expected {known}, or None")
    count = _core.cuda_device_count()
    if device not in ("cpu", *(f"cuda:{i}" for i in range(count))):
        raise Unavailable(
            f"{_OWNER}: device is {device!r}, but this build and machine have cpu and {count} CUDA "
            "devices; leave device= out"
        )
    model = load_model(folder, "auto", mapped=True)
    wanted = kinds[dtype] or next(model.parameters()).dtype
    where = torch.device(device)
    blocks = find_blocks(_OWNER, model)
    left = [
        (name, p)
        for name, p, block in weights_by_block(model, blocks)
        if block is not None and p.dim() > 1
    ]
    kept = {id(p) for _, p in left}
    for p in model.parameters():
        if id(p) not in kept:
            p.data = p.data.to(where, wanted, copy=True)
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = buffer.to(where)
    setattr(model, _HOLDER, FolderWeights(left, wanted, where))
    return model
