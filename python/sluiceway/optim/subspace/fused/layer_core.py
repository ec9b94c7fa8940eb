"""Computes the two sides of a core, S = P^T G Q, from the two sides of G, without forming G.

A linear layer has G = Y^T X, Y the gradient of its output, so S = (Y P)^T (X Q). A Conv1D, whose
weight is [in, out], has G = X^T Y and S = (X P)^T (Y Q).
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from sluiceway.optim.subspace.fused.sampled_bias import SampledBias, sampled
from sluiceway.optim.subspace.fused.shared_input import SharedInput


class LayerCore(ABC):
    """Projects a layer's input in forward, and multiplies it with the projected dY in backward.

    Parameters
    ----------
    inputs_are_rows : bool
        The weight is [in, out], like the weight of a Conv1D.
    widths : tuple of int
        Columns of P and of Q.
    scratch_elems : int
        Scratch that `fill` needs, in f32 elements.
    shared : SharedInput, optional
        The input shared by all layers that share Q with this one.
    bias : SampledBias
        The bias measured on all fused layers.
    """

    def __init__(
        self,
        inputs_are_rows: bool,
        widths: tuple[int, int],
        scratch_elems: int,
        shared: SharedInput | None,
        bias: SampledBias,
    ) -> None:
        self.inputs_are_rows = inputs_are_rows
        self._shared = shared
        self._of_input, self._of_output = ("p", "q") if inputs_are_rows else ("q", "p")
        self._widths = dict(zip(("p", "q"), widths, strict=True))
        self._scratch_elems = scratch_elems
        self._bias, self._place = bias, bias.join()

    @abstractmethod
    def step(self) -> int:
        """Return the number of the step."""

    @abstractmethod
    def fill(self, side: str, rows: torch.Tensor, out: torch.Tensor, scratch: torch.Tensor) -> None:
        """Compute out = rows P, or out = rows Q for side "q"."""

    def enter(self, x: torch.Tensor, cast: torch.Tensor) -> torch.Tensor:
        """Return the input's side of the core, which backward gets in place of the input.

        Parameters
        ----------
        x : torch.Tensor
            The layer's input, which identifies other layers with the same input.
        cast : torch.Tensor
            The input in the dtype that the layer computes in.
        """

        def project() -> torch.Tensor:
            return self._project(self._of_input, cast, cast.dtype)

        return project() if self._shared is None else self._shared.projected(x, cast.dtype, project)

    def sample(self, x: torch.Tensor) -> torch.Tensor | None:
        """Return some tokens of the input; None if this step does not measure the bias."""
        measures = x.numel() > 0 and self._bias.due(self._place, self.step())
        return sampled(x.detach()).clone() if measures else None

    def sides(self, dy: torch.Tensor, kept: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the projected input and output gradient in one dtype; `enter` returned `kept`."""
        # bf16 has the range of f32, and if a model computes in bf16, its products are fast there.
        # The product sums in f32 anyway.
        x = kept if kept.dtype == torch.bfloat16 else kept.float()
        return x, self._project(self._of_output, dy, x.dtype)

    def core(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the core of one use of the weight from its sides.

        The sum is f32, and so is the core, except for bf16 sides on the host device: torch has no
        such product there, so the core is rounded to bf16 once.
        """
        left, right = (x, y) if self.inputs_are_rows else (y, x)
        shape = left.shape[1], right.shape[1]
        # Autocast does not change a call that has an `out`.
        if left.dtype == torch.bfloat16 and left.device.type == "cuda":
            core = left.new_empty(shape, dtype=torch.float32)
            return torch.mm(left.t(), right, torch.float32, out=core)
        return torch.mm(left.t(), right, out=left.new_empty(shape))

    def _project(self, side: str, rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        rows = rows.detach().reshape(-1, rows.shape[-1]).contiguous()
        out = rows.new_empty((len(rows), self._widths[side]), dtype=dtype)
        if len(rows):  # An expert without tokens has no rows.
            scratch = rows.new_empty(self._scratch_elems, dtype=torch.float32)
            self.fill(side, rows, out, scratch)
        return out
