"""Measures kernels that Python can call, and compares them with a copy on the same device."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from sluiceway import _core
from sluiceway.base.columns import columns
from sluiceway.machine.device_ops import ops_on
from sluiceway.machine.placement import auto_device
from sluiceway.machine.roofs import best_seconds_on

_ROWS = 2048  # Rows of a weight.
# Larger than any cache, with its moments: of a processor, of a GPU.
_ELEMENTS = {"cpu": 8 << 20, "cuda": 64 << 20}
_CODEC, _RATIO = "block_random", 0.25
_ADAM = {"factor": 1.0, "step": 1, "lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8,
         "weight_decay": 0.01, "seed": 0}  # fmt: skip


@dataclass(frozen=True)
class KernelBench:
    """Measurements of kernels on one device.

    Parameters
    ----------
    device : torch.device
        The host device, or one that the compiled module can use.
    elements : int
        Elements of a weight, a multiple of its 2048 rows.
    seconds : float
        Time for each row.
    """

    device: torch.device
    elements: int
    seconds: float = 1.0

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield a row for each kernel: the bytes that it has to read and write, and their GB/s."""
        source, target = self._random(), self._random()
        yield self._row("copy", 2 * source.nbytes, lambda: target.copy_(source))
        for dtype, name in ((torch.float32, "fp32"), (torch.bfloat16, "bf16, stochastic")):
            weight, gradient = self._random(dtype), self._random(dtype)
            # Read: gradient, weight, moments; written: weight, moments.
            count = 3 * weight.nbytes + 4 * source.nbytes
            yield self._row(f"adam_step {name}", count, self._adam_step(weight, gradient))
        yield self._torch_adam()
        yield from self._codec()

    def _random(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.zeros(self.elements, device=self.device).uniform_().to(dtype)

    def _row(self, name: str, count: int, work: Callable[[], object]) -> dict[str, Any]:
        seconds = best_seconds_on(self.device, work, self.seconds)
        return {"name": name, "bytes": count, "seconds": seconds, "gbps": count / seconds / 1e9}

    def _adam_step(self, weight: torch.Tensor, gradient: torch.Tensor) -> Callable[[], object]:
        first, second = (torch.zeros(self.elements, device=self.device) for _ in range(2))
        compute = ops_on(self.device).compute()
        return lambda: _core.adam_step(
            "bench", weight, gradient, first, second, compute=compute, **_ADAM
        )

    def _torch_adam(self) -> dict[str, Any]:
        weight = torch.nn.Parameter(self._random())
        weight.grad = self._random()
        optimizer = torch.optim.AdamW([weight], fused=True, foreach=False)
        return self._row("torch AdamW, fused fp32", 7 * weight.nbytes, optimizer.step)

    def _codec(self) -> Iterator[dict[str, Any]]:
        shape = (_ROWS, self.elements // _ROWS)
        compute = ops_on(self.device).compute()
        codec = _core.Codec(_CODEC, _RATIO, *shape, compute)
        core = torch.zeros(codec.core_rows, codec.core_cols, device=self.device)
        for dtype, name in ((torch.float32, "fp32"), (torch.bfloat16, "bf16")):
            matrix = self._random(dtype).view(shape)
            # The core is written by the one and read by the other.
            yield self._row(
                f"compress {name}",
                matrix.nbytes + core.nbytes,
                lambda g=matrix: codec.compress(g, core, compute),
            )
            yield self._row(
                f"decompress {name}",
                2 * matrix.nbytes + core.nbytes,
                lambda w=matrix: codec.apply(w, core, 1e-6, compute),
            )


def bench_device() -> torch.device:
    """Return the first GPU that torch and the compiled module can use, else the host device."""
    name = auto_device()
    return torch.device("cpu" if name == "host" else name)


def bench_kernels() -> dict[str, Any]:
    """Measure AdamW and the codec of the compiled module; on the host device with one thread.

    Every row has the kernel's rate as a fraction of the copy's rate.
    """
    device = bench_device()
    bench = KernelBench(device, _ELEMENTS[device.type])
    with _one_thread():
        rows = list(bench.rows())
    roof = rows[0]["gbps"]
    return {
        "device": ops_on(device).name,
        "elements": bench.elements,
        "codec": f"{_CODEC}, ratio {_RATIO}",
        "rows": [{**r, "of_roof": r["gbps"] / roof} for r in rows],
    }


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def describe_kernels(found: dict[str, Any]) -> str:
    """Return the table for people."""
    rows = [["kernel", "GB/s", "of copy"]]
    rows += [[r["name"], f"{r['gbps']:.2f}", f"{r['of_roof']:.2f}"] for r in found["rows"]]
    where = "one thread" if found["device"] == "host" else found["device"]
    head = (
        f"kernels: {found['elements']:,} elements, {where}; compress and decompress are "
        f"{found['codec']}; those that Python can reach"
    )
    return f"{head}\n{columns(rows, '12')}\nmake bench, in a checkout, measures every kernel"
