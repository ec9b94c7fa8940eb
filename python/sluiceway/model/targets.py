"""Sorts a model's parameters: compressed, trained without compression, or frozen."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from sluiceway.errors import InvalidArgument

MIN_ELEMENTS = 1 << 16  # Compressing a smaller weight costs more than it saves.
"""Linear weights and experts with fewer elements are trained on the device, uncompressed."""
EMBEDDINGS = "embeddings and head"
"""Reason given for embeddings and head, which are not compressed."""


@dataclass
class CompressedWeight:
    """One parameter that an engine's lanes train, and the modules whose forward reads it.

    A 3-D parameter, such as experts, is a batch of matrices, which are trained separately.
    """

    name: str
    parameter: nn.Parameter
    modules: list[nn.Module]
    identity: bool = False  # Its whole gradient crosses.
    is_embedding: bool = False  # It is an embedding or the head, which no chosen codec compresses.
    streamed: bool = False  # The engine stores its values, for forwards to read;
    resident: bool = False  # they are in the parameter nevertheless.
    frozen: bool = False  # It is streamed and not trained;
    fp8: bool = False  # it is stored in 8 bits an element.

    @property
    def away(self) -> bool:
        """True if its values are in the parameter only for a forward or a backward."""
        return self.streamed and not self.resident

    @property
    def is_batch(self) -> bool:
        """True for a 3-D parameter, which has several matrices."""
        return self.parameter.dim() == 3

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of each matrix."""
        rows, columns = self.parameter.shape[-2:]
        return rows, columns

    @property
    def names(self) -> list[str]:
        """Names of the matrices, in order."""
        if not self.is_batch:
            return [self.name]
        return [f"{self.name}[{number}]" for number in range(len(self.parameter))]

    def matrices(self, whole: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Split the parameter, or a tensor of its shape, into views of its matrices."""
        return whole.unbind(0) if whole.dim() == 3 else (whole,)

    def check_layout(self, whole: torch.Tensor) -> None:
        """Check that lanes can read the parameter in place.

        Raises
        ------
        InvalidArgument
            The rows of the parameter's matrices are not contiguous any more.
        """
        if whole.stride(-1) != 1 and whole.shape[-1] > 1:
            raise InvalidArgument(
                f"step: {self.name} has strides {tuple(whole.stride())}, expected contiguous rows; "
                "make it contiguous() and continue"
            )


@dataclass
class Selection:
    """Every trainable parameter of a model, in exactly one of three lists."""

    compressed: list[CompressedWeight] = field(default_factory=list)
    ordinary: list[tuple[str, nn.Parameter]] = field(default_factory=list)
    frozen: list[tuple[str, nn.Parameter]] = field(default_factory=list)
    # Given to an optimizer, but frozen: listed in `frozen`, or frozen by the user before.
    left_out: list[tuple[str, nn.Parameter]] = field(default_factory=list)
    # Reasons by name; also for weights in `compressed` whose whole gradient crosses beside a codec.
    why_ordinary: dict[str, str] = field(default_factory=dict)

    @property
    def trained(self) -> list[tuple[str, nn.Parameter]]:
        """Names and parameters in `compressed` and `ordinary`."""
        return [(w.name, w.parameter) for w in self.compressed] + self.ordinary


def _is_linear_weight(module: nn.Module, name: str, parameter: nn.Parameter) -> bool:
    if parameter.dim() == 3:  # One slice is a table, such as a vision model's position embeddings.
        return len(parameter) > 1
    if isinstance(module, nn.MultiheadAttention):
        return name in ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")
    linear = isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"
    return linear and name == "weight"


def owners_of(model: nn.Module) -> dict[int, tuple[str, nn.Parameter, list[tuple[nn.Module, str]]]]:
    """Map id(parameter) to its first name, the parameter, and its holders (module, local name)."""
    found: dict[int, tuple[str, nn.Parameter, list[tuple[nn.Module, str]]]] = {}
    for prefix, module in model.named_modules():
        for local, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            name = f"{prefix}.{local}" if prefix else local
            entry = found.setdefault(id(parameter), (name, parameter, []))
            entry[2].append((module, local))
    for module in model.modules():
        if isinstance(module, nn.MultiheadAttention):  # Reads the weight without calling out_proj.
            found[id(module.out_proj.weight)][2].append((module, "out_proj.weight"))
    return found


def check_storage(caller: str, parameters: Iterable[tuple[str, nn.Parameter]]) -> None:
    """Raise InvalidArgument if two parameters share bytes, which would be updated twice.

    One tied parameter, used in several places, is fine.
    """
    with torch._C.DisableTorchFunctionSubclass():  # Addresses alone: no weight is read.
        spans = sorted(
            (p.untyped_storage().data_ptr() + p.storage_offset() * p.element_size(), p.nbytes, name)
            for name, p in parameters
            if p.numel() and p.device.type != "meta"
        )
    for (start, size, first), (other, _, second) in pairwise(spans):
        if other < start + size:
            raise InvalidArgument(
                f"{caller}: {first} and {second} are two parameters over the same storage; use one "
                "parameter in both places, tied by assignment"
            )


def _embedding_ids(model: nn.Module, owners: dict) -> set[int]:
    """Collect ids of embeddings and of the head: the model's output embeddings, or `lm_head`."""
    ids = {
        key
        for key, (_, _, holders) in owners.items()
        if any(isinstance(module, nn.Embedding) for module, _ in holders)
    }
    head = getattr(model, "get_output_embeddings", lambda: None)()
    if head is not None and getattr(head, "weight", None) is not None:
        ids.add(id(head.weight))
    ids |= {key for key, (name, _, _) in owners.items() if name.endswith("lm_head.weight")}
    return ids


def embedding_parameters(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Names and weights of the embeddings and the head, tied or not, each once."""
    owners = owners_of(model)
    return [owners[key][:2] for key in _embedding_ids(model, owners)]


def _why_ordinary(
    target: str | Sequence[str],
    name: str,
    parameter: nn.Parameter,
    holders: list[tuple[nn.Module, str]],
) -> str | None:
    """Reason why a parameter has to be trained uncompressed; None if it can be compressed."""
    if parameter.dim() < 2:
        return "vectors"
    if any(isinstance(module, _ConvNd) for module, _ in holders):
        return "convolutions"
    if parameter.dim() > 3:
        return f"{parameter.dim()}-D weights"
    linear = any(_is_linear_weight(module, local, parameter) for module, local in holders)
    if not _wanted(target, name, linear):
        return "not in linear layers" if target == "all-linear" else "not in target"
    if target == "all-linear" and parameter.shape[-2:].numel() < MIN_ELEMENTS:
        return f"matrices of fewer than {MIN_ELEMENTS} elements"
    return None


def _wanted(target: str | Sequence[str], name: str, linear: bool) -> bool:
    if target == "all-linear":
        return linear
    if isinstance(target, str):
        return re.search(target, name) is not None
    return name in target


def _check_target(target: str | Sequence[str], names: set[str]) -> None:
    if isinstance(target, str):
        try:
            re.compile(target)
        except re.error as error:
            raise InvalidArgument(
                f"target: {target!r} is not a regular expression ({error}), expected all-linear, "
                "a regular expression or a list of parameter names"
            ) from None
        return
    unknown = sorted(set(target) - names)
    if unknown:
        raise InvalidArgument(
            f"target: the model has no parameter {unknown[0]!r}, expected names from "
            "model.named_parameters()"
        )


def reasons_against(
    model: nn.Module, target: str | Sequence[str], owners: dict
) -> dict[int, str | None]:
    """Map id(parameter) to the reason why it is not compressed, or None if it can be.

    Parameters
    ----------
    model : torch.nn.Module
    target : str or sequence of str
        See `select_weights`.
    owners : dict
        Result of `owners_of(model)`.
    """
    _check_target(target, {name for name, _, _ in owners.values()})
    special = _embedding_ids(model, owners)
    return {
        key: EMBEDDINGS if key in special else _why_ordinary(target, *entry)
        for key, entry in owners.items()
    }


def select_weights(
    model: nn.Module,
    target: str | Sequence[str] = "all-linear",
    embeddings: str = "trained",
    only: Collection[int] | None = None,
) -> Selection:
    """Sort the trainable parameters of `model`.

    Parameters
    ----------
    model : torch.nn.Module
        Parameters with `requires_grad=False` are left out altogether.
    target : str or sequence of str
        "all-linear" picks 2-D weights of linear layers, and 3-D weights (experts, slice by slice),
        whose matrices have at least 2**16 elements. A regular expression or a list of names picks
        2-D and 3-D weights of any size, but no weights of convolutions.
    embeddings : str
        "frozen" leaves embeddings and head out; "identity" sends their whole gradients across the
        link; "trained" leaves the way to the engine.
    only : collection of int, optional
        id() of the parameters to sort; all others are left out altogether.

    Returns
    -------
    Selection
        Each trainable parameter once; tied weights count as one.
    """
    owners = owners_of(model)
    against = reasons_against(model, target, owners)
    selection = Selection()
    for key, (name, parameter, holders) in owners.items():
        if not parameter.requires_grad or (only is not None and key not in only):
            continue
        modules = [module for module, _ in holders]
        why = against[key]
        if parameter.numel() == 0:  # Nothing to compress, and nothing to leave out.
            why = "no elements"
        if why == EMBEDDINGS:
            if embeddings == "frozen":
                selection.frozen.append((name, parameter))
            else:
                whole = embeddings == "identity"
                weight = CompressedWeight(name, parameter, modules, whole, is_embedding=True)
                selection.compressed.append(weight)
            continue
        if why is None:
            selection.compressed.append(CompressedWeight(name, parameter, modules))
        else:
            selection.ordinary.append((name, parameter))
            selection.why_ordinary[name] = why
    check_dense("target", selection, owners)
    _check_compressed(model, selection)
    return selection


def check_dense(caller: str, selection: Selection, owners: dict) -> None:
    """Raise InvalidArgument if a module would give its parameter a sparse gradient."""
    for name, parameter in selection.trained:
        if any(getattr(module, "sparse", False) is True for module, _ in owners[id(parameter)][2]):
            raise InvalidArgument(
                f"{caller}: the module of {name} has sparse=True, but AdamW needs dense gradients; "
                "set sparse=False, or freeze the parameter"
            )


def _check_compressed(model: nn.Module, selection: Selection) -> None:
    if all(w.is_embedding and not w.identity for w in selection.compressed):
        count = sum(p.dim() == 2 for p in model.parameters())
        raise InvalidArgument(
            f"target: {type(model).__name__} has no trainable linear weight with at least "
            f"{MIN_ELEMENTS} elements ({count} matrices in all), expected at least one; use "
            "torch.optim.AdamW, or name the weights with target="
        )
    check_storage("target", ((w.name, w.parameter) for w in selection.compressed))
    for weight in selection.compressed:
        p = weight.parameter
        if p.dtype not in (torch.float32, torch.bfloat16):
            raise InvalidArgument(
                f"target: {weight.name} is {p.dtype}, expected float32 or "
                "bfloat16; keep float32 weights and autocast to float16"
            )
        rows, columns = weight.shape
        matrix = (rows - 1) * p.stride(-2) + columns
        apart = not weight.is_batch or p.stride(0) >= matrix
        if p.stride(-1) != 1 or p.stride(-2) < columns or not apart:
            raise InvalidArgument(
                f"target: {weight.name} has strides {tuple(p.stride())}, expected rows to "
                "be contiguous; make it contiguous first"
            )
