"""AdamW on one thread: our kernel beside torch.optim.AdamW, fused, in one process.

    python -m experiments.bench.adam_vs_torch BUILD_DIR [--elems N] [--rounds R] [--out FILE]

Both update the same weights from the same gradient, in turn, so that both see the same neighbours
on a shared machine. Prints the median time of each in nanoseconds a parameter, of the thread's
processor time, and the ratio torch / ours (above 1: ours is faster); then the largest difference
after one step from equal state, in units of max(|w|, lr).
"""

import argparse
import ctypes
import json
import statistics
import sys
import time
from pathlib import Path

import torch

HYPER = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}


def load_kernel(build: Path) -> ctypes._CFuncPtr:
    """Load the build's shared library and return its sluiceway_adam_step()."""
    library = ctypes.CDLL(str(build / "experiments" / "bench" / "libsluiceway_adam_shared.so"))
    kernel = library.sluiceway_adam_step
    kernel.restype = None
    kernel.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_size_t] + [ctypes.c_double] * 5
    kernel.argtypes += [ctypes.c_int64]
    return kernel


class Ours:
    """Weights and moments that our kernel advances."""

    def __init__(self, kernel: ctypes._CFuncPtr, w: torch.Tensor) -> None:
        self.kernel = kernel
        self.w = w.clone()
        self.m = torch.zeros_like(w)
        self.v = torch.zeros_like(w)
        self.steps = 0

    def step(self, g: torch.Tensor) -> None:
        """Take one step from gradient `g`."""
        self.steps += 1
        beta1, beta2 = HYPER["betas"]
        arrays = [t.data_ptr() for t in (g, self.m, self.v, self.w)]
        scalars = [HYPER["lr"], beta1, beta2, HYPER["eps"], HYPER["weight_decay"]]
        self.kernel(*arrays, g.numel(), *scalars, self.steps)


def torch_optimizer(w: torch.Tensor, fused: bool) -> tuple[torch.nn.Parameter, torch.optim.AdamW]:
    """A parameter that starts at `w`, and its optimizer."""
    parameter = torch.nn.Parameter(w.clone())
    return parameter, torch.optim.AdamW([parameter], **HYPER, fused=fused, foreach=False)


def largest_difference(kernel: ctypes._CFuncPtr) -> float:
    """Largest difference in any element after each of 20 steps from the single-tensor state."""
    generator = torch.Generator().manual_seed(7)
    w = 0.02 * torch.randn(100_003, generator=generator)
    parameter, optimizer = torch_optimizer(w, fused=False)
    ours = Ours(kernel, w)
    worst = 0.0
    for _ in range(20):
        g = 1e-2 * torch.randn(w.numel(), generator=generator)
        parameter.grad = g
        ours.w.copy_(parameter.detach())
        state = optimizer.state[parameter]
        if state:
            ours.m.copy_(state["exp_avg"])
            ours.v.copy_(state["exp_avg_sq"])
        optimizer.step()
        ours.step(g)
        expected = parameter.detach()
        unit = expected.abs().clamp(min=HYPER["lr"])
        worst = max(worst, ((ours.w - expected).abs() / unit).max().item())
    return worst


def nanoseconds(call, elems: int) -> float:
    """Processor time of the calling thread, per element."""
    start = time.thread_time_ns()
    call()
    return (time.thread_time_ns() - start) / elems


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path, help="build folder, for example build/cpu")
    parser.add_argument("--elems", type=int, default=16 * 2**20 + 1040, help="parameters")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--out", type=Path, help="JSON file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    kernel = load_kernel(args.build)

    generator = torch.Generator().manual_seed(11)
    w = 0.02 * torch.randn(args.elems, generator=generator)
    g = 1e-2 * torch.randn(args.elems, generator=generator)
    ours = Ours(kernel, w)
    parameter, optimizer = torch_optimizer(w, fused=True)
    parameter.grad = g
    ours.step(g)
    optimizer.step()
    torch_ns, ours_ns = [], []
    for _ in range(args.rounds):
        torch_ns.append(nanoseconds(optimizer.step, args.elems))
        ours_ns.append(nanoseconds(lambda: ours.step(g), args.elems))

    result = {
        "torch": torch.__version__,
        "elems": args.elems,
        "rounds": args.rounds,
        "torch_fused_ns": statistics.median(torch_ns),
        "ours_ns": statistics.median(ours_ns),
        "ratio": statistics.median(a / b for a, b in zip(torch_ns, ours_ns, strict=True)),
        "largest_difference": largest_difference(kernel),
    }
    for name, value in result.items():
        print(f"{name:>20}  {value:.3g}" if isinstance(value, float) else f"{name:>20}  {value}")
    if args.out:
        args.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
