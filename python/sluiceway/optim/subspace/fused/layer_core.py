"""The two sides of a core, S = P^T G Q, from two sides of G, which is not formed.

Of a linear layer G = Y^T X, Y the gradient of its output, so S = (Y P)^T (X Q). Of a Conv1D, whose
weight is [in, out], G = X^T Y and S = (X P)^T (Y Q).
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from sluiceway.optim.subspace.fused.sampled_bias import SampledBias, sampled
from sluiceway.optim.subspace.fused.shared_input import SharedInput


class LayerCore(ABC):
    """What is kept of a layer's input, and the product of that with the gradient of its output.

    Parameters
    ----------
    inputs_are_rows : bool
        The weight is [in, out], as that of a Conv1D.
    widths : tuple of int
        Columns of P and of Q.
    scratch_elems : int
        What `fill` asks for, f32.
    shared : SharedInput, optional
        Of all layers that share Q with this one.
    bias : SampledBias
        Of all fused layers.
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
        """Number of the step; a subclass knows it."""

    @abstractmethod
    def fill(self, side: str, rows: torch.Tensor, out: torch.Tensor, scratch: torch.Tensor) -> None:
        """out = rows P, or rows Q of side "q"; a subclass says how."""

    def enter(self, x: torch.Tensor, cast: torch.Tensor) -> torch.Tensor:
        """The input's side of the core: backward gets it in the input's place.

        Parameters
        ----------
        x : torch.Tensor
            As the layer got it, by which others that got it are known.
        cast : torch.Tensor
            The same as the layer computes with it.
        """

        def project() -> torch.Tensor:
            return self._project(self._of_input, cast, cast.dtype)

        return project() if self._shared is None else self._shared.projected(x, cast.dtype, project)

    def sample(self, x: torch.Tensor) -> torch.Tensor | None:
        """Some tokens of the input, where this step measures the bias; None: it does not."""
        measures = x.numel() > 0 and self._bias.due(self._place, self.step())
        return sampled(x.detach()).clone() if measures else None

    def sides(self, dy: torch.Tensor, kept: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Of the input and of the output's gradient, of one dtype; `kept` is what `enter` gave."""
        # bf16 has the range of f32, and where a model computes in it, its products are the fast
        # ones; what the product sums is f32 all the same.
        x = kept if kept.dtype == torch.bfloat16 else kept.float()
        return x, self._project(self._of_output, dy, x.dtype)

    def core(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Of one use of the weight, from its sides.

        It is summed in f32, and stays f32 but for bf16 sides on the host device, where torch has no
        such product: there it is rounded to bf16 once.
        """
        left, right = (x, y) if self.inputs_are_rows else (y, x)
        shape = left.shape[1], right.shape[1]
        # Autocast leaves alone what has an `out`.
        if left.dtype == torch.bfloat16 and left.device.type == "cuda":
            core = left.new_empty(shape, dtype=torch.float32)
            return torch.mm(left.t(), right, torch.float32, out=core)
        return torch.mm(left.t(), right, out=left.new_empty(shape))

    def _project(self, side: str, rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        rows = rows.detach().reshape(-1, rows.shape[-1]).contiguous()
        out = rows.new_empty((len(rows), self._widths[side]), dtype=dtype)
        if len(rows):  # An expert without tokens has none.
            scratch = rows.new_empty(self._scratch_elems, dtype=torch.float32)
            self.fill(side, rows, out, scratch)
        return out
