"""Write the subspace step plainly in torch and in double precision, with one field per factor.

S = P^T G Q          D = AdamW(S)          W <- (1 - lr wd) W - lr_w scale P D Q^T
R = G - P S Q^T      U = R / (sqrt(V_R) + eps), RMS clipped at 1          W <- W - lr_w U
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch


@dataclass(frozen=True)
class Way:
    """Options of a step; the defaults are those of the engine's `svd` at f = 1/2."""

    # Basis from the first gradient: svd, mixed (svd rotated within), random or identity.
    basis: str = "svd"
    ratio: float = 0.5
    thin: bool = True  # Keeps at most min(m, n) directions a side.
    second: str = "factored"  # Alternative: full.
    core_clip: float = 1.0  # Clips the RMS of D; infinity: no clip.
    residual: bool = True
    joint_clip: bool = False  # Core's and residual's update together have an RMS of at most 1.
    scale: float | None = None  # None: 1 / sqrt(dm dn / (m n)).
    rates: bool = True  # Multiplies the rate of each weight by its k_w.
    eps: float = 1e-8
    relative_eps: float = 0.0  # A multiple of the RMS of S.
    skip_first: bool = False  # The first gradient makes the basis and nothing else.
    beta1: float = 0.9
    beta2: float = 0.999
    decay: float = 0.01


@dataclass
class Core:
    p: torch.Tensor
    q: torch.Tensor
    rate: float
    m: torch.Tensor = field(init=False)
    v: torch.Tensor = field(init=False)
    steps: int = 0
    residual_steps: int = 0

    def __post_init__(self) -> None:
        self.m = torch.zeros(self.p.shape[1], self.q.shape[1], dtype=torch.float64)
        self.v = torch.zeros_like(self.m)
        self.v_row = torch.zeros(self.p.shape[1], 1, dtype=torch.float64)
        self.v_col = torch.zeros(1, self.q.shape[1], dtype=torch.float64)
        self.r_row = torch.zeros(self.p.shape[0], 1, dtype=torch.float64)
        self.r_col = torch.zeros(1, self.q.shape[0], dtype=torch.float64)


def advance(row: torch.Tensor, col: torch.Tensor, x: torch.Tensor, beta2: float) -> torch.Tensor:
    """Move the means of rows and columns on, in place; returns V, without bias correction."""
    row.lerp_(x.square().mean(1, keepdim=True), 1 - beta2)
    col.lerp_(x.square().mean(0, keepdim=True), 1 - beta2)
    return row * col / row.mean() if x.numel() and row.mean() > 0 else torch.zeros_like(x)


def rms(x: torch.Tensor) -> float:
    return float(x.square().mean().sqrt()) if x.numel() else 0.0


def basis_of(g: torch.Tensor, way: Way, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    m, n = g.shape
    most = min(m, n) if way.thin else max(m, n)
    dm, dn = (min(round(way.ratio * side), most) for side in (m, n))
    random = torch.Generator().manual_seed(seed)

    def orthonormal(rows: int, cols: int) -> torch.Tensor:
        return torch.linalg.qr(torch.randn(rows, cols, generator=random, dtype=torch.float64))[0]

    if way.basis == "identity":
        return torch.eye(m, dm, dtype=torch.float64), torch.eye(n, dn, dtype=torch.float64)
    if way.basis == "random":
        return orthonormal(m, dm), orthonormal(n, dn)
    u, _, vt = torch.linalg.svd(g, full_matrices=not way.thin)
    p, q = u[:, :dm], vt.T[:, :dn]
    return (p @ orthonormal(dm, dm), q @ orthonormal(dn, dn)) if way.basis == "mixed" else (p, q)


class Prototype:
    """Trains matrices of `minimum` elements or more by `way`, and all else by AdamW."""

    def __init__(self, model, lr: float, way: Way, minimum: int = 2**16, seed: int = 7) -> None:
        trained = [p for p in model.parameters() if p.requires_grad]
        self.matrices = [p for p in trained if p.ndim == 2 and p.numel() >= minimum]
        whole = {id(p) for p in self.matrices}
        self.rest = torch.optim.AdamW([p for p in trained if id(p) not in whole], lr=lr, eps=1e-8)
        self.param_groups = [{"lr": lr}]  # Schedules may set it.
        self.way, self.seed, self.cores, self.seen = way, seed, {}, {}
        sizes = [rms(p.detach().double()) for p in self.matrices]
        elems = sum(p.numel() for p in self.matrices)
        mean = sum(s * p.numel() for s, p in zip(sizes, self.matrices, strict=True)) / elems
        self.rates = [min(max(s / mean, 0.25), 4.0) if way.rates else 1.0 for s in sizes]

    @property
    def lr(self) -> float:
        return self.param_groups[0]["lr"]

    def zero_grad(self) -> None:
        for p in self.matrices:
            p.grad = None
        self.rest.zero_grad()

    @torch.no_grad()
    def step(self) -> None:
        for group in self.rest.param_groups:
            group["lr"] = self.lr
        self.rest.step()
        for index, weight in enumerate(self.matrices):
            g = weight.grad.double()
            if index not in self.cores:
                p, q = basis_of(g, self.way, self.seed + index)
                self.cores[index] = Core(p, q, self.rates[index])
                if self.way.skip_first:
                    continue
            weight.copy_(self.moved(self.cores[index], weight.double(), g, index))

    def moved(self, core: Core, w: torch.Tensor, g: torch.Tensor, index: int) -> torch.Tensor:
        way = self.way
        s = core.p.T @ g @ core.q
        u = self.residual_update(core, g, s) if way.residual else torch.zeros_like(g)
        d = self.direction(core, s)
        d = d / max(1.0, rms(d) / way.core_clip)
        scale = way.scale or (g.numel() / d.numel()) ** 0.5 if d.numel() else 1.0
        update = scale * (core.p @ d @ core.q.T)
        self.seen[index] = {"core": rms(update), "residual": rms(u), "d": rms(d)}
        update = update + u
        if way.joint_clip:
            update = update / max(1.0, rms(update))
        return w * (1 - self.lr * way.decay) - self.lr * core.rate * update

    def direction(self, core: Core, s: torch.Tensor) -> torch.Tensor:
        way = self.way
        core.steps += 1
        core.m.lerp_(s, 1 - way.beta1)
        if way.second == "factored":
            v = advance(core.v_row, core.v_col, s, way.beta2)
        else:
            v = core.v.lerp_(s.square(), 1 - way.beta2)
        eps = max(way.eps, way.relative_eps * rms(s))
        root = (v / (1 - way.beta2**core.steps)).sqrt() + eps
        return core.m / (1 - way.beta1**core.steps) / root

    def residual_update(self, core: Core, g: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        r = g - core.p @ s @ core.q.T
        if r.norm() < 1e-5 * s.norm():
            return torch.zeros_like(g)
        core.residual_steps += 1
        v = advance(core.r_row, core.r_col, r, self.way.beta2)
        u = r / ((v / (1 - self.way.beta2**core.residual_steps)).sqrt() + self.way.eps)
        return u / max(1.0, rms(u))
