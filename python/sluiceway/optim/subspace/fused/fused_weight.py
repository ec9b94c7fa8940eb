"""One weight whose layer computes cores, and the optimizer that receives them."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import torch

from sluiceway.errors import InvalidArgument, Unavailable
from sluiceway.machine.device_ops import Made
from sluiceway.optim.common import torch_private
from sluiceway.optim.subspace.arguments import has_orthonormal_columns
from sluiceway.optim.subspace.fused.layer_core import LayerCore
from sluiceway.optim.subspace.fused.sampled_bias import SampledBias, relative_bias, sampled
from sluiceway.optim.subspace.fused.shared_input import SharedInput

if TYPE_CHECKING:
    from sluiceway.optim.subspace.optimizer import SubspaceAdamW

_NO_STEP = -1
_UNITS = 256  # Unit vectors projected at once.


class _SumOfUses:
    """Core of one weight in one backward; autograd holds it until the backward ends or raises."""

    core: Made | None = None

    def __call__(self) -> None:
        """Do nothing: the backward has ended."""


class FusedWeight(LayerCore):
    """Answers the forward of one weight's layer, and takes the core from its backward.

    It holds the optimizer weakly, so that a model does not keep a dropped optimizer alive.

    Parameters
    ----------
    optimizer : SubspaceAdamW
    number : int
        Number of the compressed weight.
    inputs_are_rows : bool
        The weight is [in, out], like the weight of a Conv1D.
    shared : SharedInput, optional
        The input shared by all layers that share Q with this one.
    bias : SampledBias
        The bias measured on all fused layers of the optimizer.
    """

    def __init__(
        self,
        optimizer: SubspaceAdamW,
        number: int,
        inputs_are_rows: bool,
        shared: SharedInput | None,
        bias: SampledBias,
    ) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._number = number
        (self._of_engine,) = optimizer.of_engine.numbers(number)
        described = optimizer.engine.describe(self._of_engine)
        widths = described["core_rows"], described["core_cols"]
        scratch_elems = described["project_scratch_elems"]
        super().__init__(inputs_are_rows, widths, scratch_elems, shared, bias)
        self._orthonormal = has_orthonormal_columns(described["codec"], optimizer.options.nnz)
        self.name = described["name"]
        self.parameter = optimizer.weights[number].parameter
        # Decided once a step, so that a forward repeated by checkpointing does as the first did.
        self._decided_in = _NO_STEP
        self._forms_gradient = False
        # Keyed by backward, as one backward may run inside another.
        self._sums: weakref.WeakValueDictionary[int, _SumOfUses] = weakref.WeakValueDictionary()
        self._hooks = weakref.ref(optimizer._hooks)
        self._let_go = False
        held = weakref.ref(self)  # The node holds what it calls, and we hold the node.

        def before_accumulation(gradients: tuple[torch.Tensor | None]) -> None:
            fused = held()
            if fused is not None:
                fused._hand_over(gradients[0])

        self._node, self._handle = optimizer._hooks.before_accumulation(number, before_accumulation)

    def belongs_to(self, optimizer: object) -> bool:
        """Return whether its cores go to this optimizer."""
        return self._optimizer() is optimizer

    def let_go(self) -> None:
        """Stop taking cores from backward; idempotent."""
        self._handle.remove()
        self._let_go = True

    # ---- Forward ----

    def takes(self, weight: torch.Tensor, x: torch.Tensor) -> bool:
        """Return whether no code reads the weight's gradient, so that the core is enough."""
        if weight is not self.parameter or not torch.is_grad_enabled() or not weight.requires_grad:
            return False
        # Other hooks need the gradient itself; one hook after the accumulation is our own.
        hooks = torch_private.accumulation_hooks(weight)
        if torch_private.has_gradient_hooks(weight) or len(hooks) > 1:
            return False
        if weight.device != x.device or torch_private.is_transformed() or torch.jit.is_tracing():
            return False
        optimizer = self._optimizer()
        if optimizer is None or self._let_go:
            return False
        return not self._wants_gradient(optimizer)

    def _wants_gradient(self, optimizer: SubspaceAdamW) -> bool:
        if optimizer.calibrating:
            return True
        step = optimizer.engine.committed_steps
        if self._decided_in != step:
            self._forms_gradient = optimizer.engine.wants_gradient(self._of_engine)
            self._decided_in = step
        return self._forms_gradient

    def step(self) -> int:
        """Return the number of committed steps."""
        return self._optimizer().engine.committed_steps

    def generation(self) -> int:
        """Return the generation of the weight's current projectors."""
        return self._optimizer().engine.generation(self._of_engine)

    def fill(self, side: str, rows: torch.Tensor, out: torch.Tensor, scratch: torch.Tensor) -> None:
        """Compute out = rows P, or out = rows Q for side "q", with the engine's projectors."""
        optimizer = self._optimizer()
        compute = optimizer.device.compute()
        optimizer.engine.project(self._of_engine, side, rows, out, scratch, compute)

    # ---- Backward ----

    def accumulates(self) -> bool:
        """Return whether the running backward adds to the gradient of the weight.

        Raises
        ------
        Unavailable
            The backward is a `torch.autograd.grad()` that returns this gradient.
        """
        try:
            return torch_private.backward_reaches(self._node)
        except RuntimeError as error:
            if "leaf node" not in str(error):
                raise
            raise Unavailable(
                f"fuse_linears: torch.autograd.grad() asks for the gradient of {self.name}, "
                "which its fused layer does not form; use backward(), or call unfuse() before the "
                "forward"
            ) from None

    def add(
        self, dy: torch.Tensor, kept: torch.Tensor, generation: int, sample: torch.Tensor | None
    ) -> None:
        """Add the core of one use of the weight; the forward returned `kept` and `sample`.

        Raises
        ------
        InvalidArgument
            The engine replaced projectors since the forward, or another thread runs a backward.
        """
        self._check(generation)
        x, y = self.sides(dy, kept)
        core = self.core(x, y)
        if sample is not None:
            self._measure(dy, sample, x, y)
        uses = self._uses_in_this_backward()
        if uses.core is not None:
            core = uses.core.take().float().add_(core)
        uses.core = Made(core)

    def _uses_in_this_backward(self) -> _SumOfUses:
        task = torch_private.running_backward()
        uses = self._sums.get(task)
        if uses is None:
            self._sums[task] = uses = _SumOfUses()
            torch_private.when_backward_ends(uses)
        return uses

    def _measure(
        self, dy: torch.Tensor, sample: torch.Tensor, x: torch.Tensor, y: torch.Tensor
    ) -> None:
        """Note the bias of this use of the weight."""
        whole, core, back = (sampled(dy), sample), (sampled(y), sampled(x)), None
        with torch.autocast(dy.device.type, enabled=False):
            if not self._orthonormal:
                back = self._back(self._of_output, core[0]), self._back(self._of_input, core[1])
            self._bias.note(self.name, relative_bias(whole, core, back, len(dy)))

    def _back(self, side: str, rows: torch.Tensor) -> torch.Tensor:
        """Return rows P^T or rows Q^T; the engine reveals P and Q by projecting unit vectors."""
        count, parts = self.parameter.shape[0 if side == "p" else 1], []
        for first in range(0, count, _UNITS):
            units = rows.new_zeros((min(_UNITS, count - first), count), dtype=torch.float32)
            units.diagonal(first).fill_(1)
            parts.append(rows.float() @ self._project(side, units, units.dtype).t())
        return torch.cat(parts, 1)

    def _check(self, generation: int) -> None:
        optimizer = self._optimizer()
        if optimizer is None or self._let_go:
            raise InvalidArgument(
                f"fuse_linears: the layer of {self.name} was unfused, or its optimizer closed, "
                "between forward and backward; repeat the forward"
            )
        if optimizer.engine.generation(self._of_engine) != generation:
            raise InvalidArgument(
                f"fuse_linears: the projectors of {self.name} were replaced between forward and "
                "backward; repeat the forward"
            )
        optimizer._hooks.backward.refuse_elsewhere("backward()")

    def _hand_over(self, gradient: torch.Tensor | None) -> None:
        """Hand the core over after the weight's last use in this backward.

        This runs on a stream of its own. Autograd orders streams only by gradients, and here is
        none, so this call orders them itself.
        """
        uses = self._sums.pop(torch_private.running_backward(), None)
        hooks = self._hooks()
        if uses is not None and hooks is not None:
            core, uses.core = uses.core.take(), None
            hooks.take_core(self._number, core, whole=gradient is None)
