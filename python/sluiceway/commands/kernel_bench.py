"""Measures kernels that Python can call, and compares them with a copy on the same device."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from sluiceway import _core
from sluiceway.base.columns import columns
from sluiceway.machine.device_ops import ops_on
from sluiceway.machine.placement import auto_device
from sluiceway.machine.roofs import best_seconds_on

_SECONDS = 1.0  # Time for each row.
_ROWS = 2048  # Rows of a weight.
# Larger than any cache, with its moments: of a processor, of a GPU.
_ELEMENTS = {"cpu": 8 << 20, "cuda": 64 << 20}
_CODEC, _RATIO = "block_random", 0.25
_ADAM = {"factor": 1.0, "step": 1, "lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8,
         "weight_decay": 0.01, "seed": 0}  # fmt: skip


def _rows(device: torch.device, elements: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each kernel: the bytes that it has to read and write, and their GB/s.

    A weight has `elements`, a multiple of its 2048 rows.
    """

    def random(dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.zeros(elements, device=device).uniform_().to(dtype)

    def row(name: str, count: int, work: Callable[[], object]) -> dict[str, Any]:
        seconds = best_seconds_on(device, work, _SECONDS)
        return {"name": name, "bytes": count, "seconds": seconds, "gbps": count / seconds / 1e9}

    compute = ops_on(device).compute()
    source, target = random(), random()
    yield row("copy", 2 * source.nbytes, lambda: target.copy_(source))
    for dtype, name in ((torch.float32, "fp32"), (torch.bfloat16, "bf16, stochastic")):
        moments = (torch.zeros(elements, device=device) for _ in range(2))
        tensors = (random(dtype), random(dtype), *moments)
        # Read: gradient, weight, moments; written: weight, moments.
        yield row(
            f"adam_step {name}",
            3 * tensors[0].nbytes + 4 * source.nbytes,
            lambda t=tensors: _core.adam_step("bench", *t, compute=compute, **_ADAM),
        )
    weight = torch.nn.Parameter(random())
    weight.grad = random()
    optimizer = torch.optim.AdamW([weight], fused=True, foreach=False)
    yield row("torch AdamW, fused fp32", 7 * weight.nbytes, optimizer.step)
    shape = (_ROWS, elements // _ROWS)
    codec = _core.Codec(_CODEC, _RATIO, *shape, compute)
    core = torch.zeros(codec.core_rows, codec.core_cols, device=device)
    for dtype, name in ((torch.float32, "fp32"), (torch.bfloat16, "bf16")):
        matrix = random(dtype).view(shape)
        # The core is written by the one and read by the other.
        count = matrix.nbytes + core.nbytes
        yield row(f"compress {name}", count, lambda g=matrix: codec.compress(g, core, compute))
        count += matrix.nbytes
        yield row(f"decompress {name}", count, lambda w=matrix: codec.apply(w, core, 1e-6, compute))


def bench_device() -> torch.device:
    """Return the first GPU that torch and the compiled module can use, else the host device."""
    name = auto_device()
    return torch.device("cpu" if name == "host" else name)


def bench_kernels() -> dict[str, Any]:
    """Measure AdamW and the codec of the compiled module; on the host device with one thread.

    Every row has the kernel's rate as a fraction of the copy's rate.
    """
    device = bench_device()
    elements = _ELEMENTS[device.type]
    with _one_thread():
        rows = list(_rows(device, elements))
    roof = rows[0]["gbps"]
    return {
        "device": ops_on(device).name,
        "elements": elements,
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
