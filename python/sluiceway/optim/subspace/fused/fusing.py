"""Chooses the layers of a model that compute cores, and gives reasons against other layers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from torch import nn

from sluiceway import _core
from sluiceway.errors import InvalidArgument
from sluiceway.model.one_input import first_of_input
from sluiceway.model.targets import CompressedWeight
from sluiceway.optim.common import torch_private
from sluiceway.optim.common.ownership import refuse_taken
from sluiceway.optim.subspace.fused.fused_layer import (
    FusedLayer,
    fuse,
    has_inputs_as_rows,
    unfuse,
    why_not_fused,
)
from sluiceway.optim.subspace.fused.fused_weight import FusedWeight
from sluiceway.optim.subspace.fused.sampled_bias import SampledBias
from sluiceway.optim.subspace.fused.shared_input import SharedInput

if TYPE_CHECKING:
    from sluiceway.optim.subspace.optimizer import SubspaceAdamW


class FusedLinears:
    """The fused layers of one optimizer.

    Attributes
    ----------
    names : list of str
        Weights whose layers compute cores.
    left : dict of str to str
        The reason by name for each compressed weight whose gradient is still formed.
    bias : SampledBias
        Bias of the projectors on the gradients that are not formed.
    """

    def __init__(self, weights: list[CompressedWeight], measures_bias: bool = True) -> None:
        self._first_of = first_of_input(weights)
        self._inputs = {first: SharedInput() for first in self._first_of.values()}
        self.bias = SampledBias(measures_bias)
        self.names: list[str] = []
        self.left: dict[str, str] = {}
        self._layers: list[nn.Module] = []

    def fuse(self, layer: nn.Module, name: str, weight: Any) -> None:
        """Let a layer compute cores for `weight`, a `FusedWeight` or a stand-in for one."""
        fuse(layer, weight)
        self._layers.append(layer)
        self.names.append(name)
        self.left.pop(name, None)

    def unfuse(self) -> None:
        """Let every layer form its gradient again; idempotent, and called by `close()`."""
        for layer in self._layers:
            unfuse(layer)
        self.left.update(dict.fromkeys(self.names, "unfused"))
        self._layers, self.names = [], []
        self._inputs = {first: SharedInput() for first in self._inputs}
        self.bias.leave()

    def add(self, optimizer: SubspaceAdamW, number: int, layer: nn.Module) -> None:
        """Fuse one layer, unless it is fused already."""
        if isinstance(layer, FusedLayer):
            return
        name = optimizer.weights[number].name
        shared = self.shared(name, _described(optimizer, number)["learns"])
        rows = has_inputs_as_rows(layer)
        self.fuse(layer, name, FusedWeight(optimizer, number, rows, shared, self.bias))

    def shared(self, name: str, learns: bool) -> SharedInput | None:
        """Return the `SharedInput` of all layers that read one input with one Q; None if unshared.

        A codec that learns has a Q of its own for each layer.
        """
        shared = self._inputs.get(self._first_of.get(name, ""))
        if shared is None or learns:
            return None
        shared.join()
        return shared


def fuse_linears(model: nn.Module, opt: SubspaceAdamW) -> FusedLinears:
    """Let linear layers compute the core of their weight's gradient without forming the gradient.

    S = P^T (Y^T X) Q = (Y P)^T (X Q), Y the gradient of the output and X the input. A product of
    the core's size replaces one of the weight's size, memory holds no gradient, and backward needs
    X Q in place of X. `nn.Linear` and transformers' `Conv1D` keep class name, parameters and the
    keys of `state_dict()`; copies and pickles of the model have ordinary layers. `opt.close()`
    leaves the model as it was.

    Residuals need gradients, so set `residual="none"`, or `residual_every=k`: then each weight
    forms its gradient in every k-th step, in turns. A weight also forms its gradient in a step
    that measures or fits its projectors; if it has a hook (`p.register_hook()`); if a compiled
    graph, a transform of `torch.func` or `torch.jit.trace` reads it; and for each use of it
    outside of its layer.

    Parameters
    ----------
    model : torch.nn.Module
        The optimizer's model, or a part of it.
    opt : SubspaceAdamW

    Returns
    -------
    FusedLinears
        The fused weights, the others with the reason for each, and `unfuse()`. A second call fuses
        the layers that are not fused yet.

    Raises
    ------
    InvalidArgument
        `opt` is no SubspaceAdamW, every step needs every gradient, or a linear weight belongs to
        another open optimizer. The call changed nothing.
    """
    if not isinstance(getattr(opt, "engine", None), _core.SubspaceEngine):
        raise InvalidArgument(
            f"fuse_linears: opt is {type(opt).__name__}, expected SubspaceAdamW; pass the "
            "optimizer itself, not a wrapper of it"
        )
    opt._check_open()
    _check_owner(model, opt)
    return fuse_own(model, opt)


def fuse_own(model: nn.Module, opt: SubspaceAdamW) -> FusedLinears:
    """Fuse layers like `fuse_linears`, also if other optimizers train other layers of the model."""
    inside = {id(p) for p in model.parameters()}
    chosen = [
        (n, _why_left(opt, n)) for n, w in enumerate(opt.weights) if id(w.parameter) in inside
    ]
    _check_turns(opt, [number for number, why in chosen if why is None])
    result = opt.fused_linears
    if result is None:
        options = opt.options
        refreshed = options.refresh is not None and options.refresh.every > 0
        sharing = opt.weights if options.share_inputs else []
        result = opt.fused_linears = FusedLinears(sharing, measures_bias=not refreshed)
        opt._hooks.on_removal(result.unfuse)
    for number, why in chosen:
        if why is None:
            result.add(opt, number, opt.weights[number].modules[0])
        else:
            result.left[opt.weights[number].name] = why
    return result


def _check_owner(model: nn.Module, opt: SubspaceAdamW) -> None:
    ours = {id(p) for group in opt.param_groups for p in group["params"]}
    refuse_taken("fuse_linears", [(n, p) for n, p in _linear_weights(model) if id(p) not in ours])
    inside = {id(p) for p in model.parameters()}
    if not any(id(weight.parameter) in inside for weight in opt.weights):
        raise InvalidArgument(
            f"fuse_linears: this model has no compressed weight of the optimizer, for example not "
            f"{opt.weights[0].name}; pass the model that the optimizer was made with"
        )


def _check_turns(opt: SubspaceAdamW, numbers: list[int]) -> None:
    residuals = {_described(opt, number)["residual"] for number in numbers} - {"none"}
    if opt.options.residual_every == 1 and residuals:
        raise InvalidArgument(
            f"fuse_linears: residual is {residuals.pop()!r} with residual_every=1, which needs "
            "every gradient in every step; set residual='none', or residual_every to 2 or more"
        )


def _described(opt: SubspaceAdamW, number: int) -> dict[str, Any]:
    return opt.engine.describe(opt.of_engine.numbers(number)[0])


def _linear_weights(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the trained weights of linear layers with their names."""
    for prefix, module in model.named_modules():
        linear = isinstance(module, nn.Linear) or has_inputs_as_rows(module)
        weight = torch_private.held_parameters(module).get("weight")
        if linear and weight is not None and weight.requires_grad:
            yield f"{prefix}.weight", weight


def _why_left(opt: SubspaceAdamW, number: int) -> str | None:
    described = _described(opt, number)
    return why_left(opt.weights[number], described["codec"], described["projects"])


def why_left(weight: CompressedWeight, codec: str, projects: bool) -> str | None:
    """Return why every step forms the gradient of a weight; None if steps need not."""
    if weight.is_embedding:
        return "an embedding or the head"
    if weight.is_batch:
        return "a batch of matrices"
    if not projects:
        return f"codec {codec} projects nothing"
    if len(weight.modules) > 1:
        return f"used by {len(weight.modules)} layers"
    (layer,) = weight.modules
    if torch_private.held_parameters(layer).get("weight") is not weight.parameter:
        return f"not the weight of a linear layer but of a {type(layer).__name__}"
    return why_not_fused(layer)


def describe_fused(
    weights: int, left: dict[str, str], every: int, residuals: Iterable[str]
) -> dict[str, Any]:
    """Describe fused weights, unfused ones with reasons, and what fusing leaves untrained.

    Parameters
    ----------
    weights : int
        Number of fused weights.
    left : dict of str to str
        Reasons by name, in the form of `FusedLinears.left`.
    every : int
        Steps between two residuals of a weight.
    residuals : iterable of str
        The option `residual` of each weight.
    """
    lost = "what a core leaves of a gradient trains nothing"
    if any(one != "none" for one in residuals):
        lost = f"what a core leaves of a gradient trains its weight in one of {every} steps"
    return {"weights": weights, "left": dict(left), "lost": lost}


def fused_summary(opt: SubspaceAdamW) -> dict[str, Any] | None:
    """Return `describe_fused` of an optimizer; None if nobody called `fuse_linears`."""
    fused = opt.fused_linears
    if fused is None:
        return None
    weights = opt.of_engine.spread(opt.weights)
    described = zip(weights, opt.describe(), strict=True)
    residuals = (one["residual"] for weight, one in described if not weight.is_embedding)
    return describe_fused(len(fused.names), fused.left, opt.options.residual_every, residuals)


def fused_lines(described: dict[str, Any] | None) -> list[str]:
    """Describe the fused weights as text, with one line per reason."""
    if described is None:
        return []
    weights, left = described["weights"], described["left"]
    count = weights + len(left)
    lines = [f"{weights} of {count} weights fused: no gradient is formed, {described['lost']}"]
    for why in dict.fromkeys(left.values()):
        names = [name for name, reason in left.items() if reason == why]
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        lines.append(f"not fused, {why}: {names[0]}{more}")
    return lines
