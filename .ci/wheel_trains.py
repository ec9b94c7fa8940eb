"""Train three steps with the installed sluiceway, on a machine without a compiler."""

import shutil

import sluiceway as sw
import torch
from torch import nn

compilers = [name for name in ("cc", "c++", "gcc", "g++", "clang", "nvcc") if shutil.which(name)]
assert not compilers, f"{compilers} are on PATH, expected no compiler"

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 512), nn.Tanh(), nn.Linear(512, 256))
inputs, wanted = torch.randn(64, 256), torch.randn(64, 256)
losses = []
with sw.SubspaceAdamW(model, lr=1e-2) as opt:
    for _ in range(3):
        loss = nn.functional.mse_loss(model(inputs), wanted)
        loss.backward()
        opt.step()
        opt.zero_grad()
        losses.append(loss.item())
    compressed = [weight["codec"] for weight in opt.describe()]

assert losses[2] < losses[1] < losses[0], f"losses are {losses}, expected each below the one before"
assert len(compressed) == 2, f"codecs are {compressed}, expected one for each of two weights"
print(f"{sw.__file__}: loss {losses[0]:.4f}, {losses[1]:.4f}, {losses[2]:.4f} with {compressed}")
