"""One rank of a job that trains a model in ways that are refused; see test_ranks.py."""

from __future__ import annotations

import sluiceway as sw
import torch
import torch.distributed as dist
from rank_jobs import ThisRank
from small_models import loss_of, make
from torch.nn.parallel import DataParallel, DistributedDataParallel
from twins import identity

here = ThisRank()
meet, ranks, rank = here.meet, here.ranks, here.rank


def train(model, opt, first=0):
    for step in range(first, first + 2):
        loss_of(model, 2 * step + rank).backward()
        opt.step()
        opt.zero_grad()


def wrapped_before(**arguments):
    meet()
    ddp = DistributedDataParallel(make(), **arguments)
    with identity(ddp) as opt:
        train(ddp, opt)


def inner_of_wrapped():
    meet()
    ddp = DistributedDataParallel(make(), static_graph=True)
    with identity(ddp.module) as opt:
        train(ddp, opt)


def wrapped_after(**arguments):
    model = make()
    with identity(model) as opt:
        meet()
        train(DistributedDataParallel(model, **arguments), opt)


def wrapped_in_the_middle():
    model = make()
    with identity(model) as opt:
        train(model, opt)
        meet()
        train(DistributedDataParallel(model), opt)


def group_before_backward():
    model = make()
    with identity(model):
        loss = loss_of(model, rank)
        meet()
        loss.backward()


def group_before_step():
    model = make()
    with identity(model) as opt:
        loss_of(model, rank).backward()
        meet()
        opt.step()


def offload():
    meet()
    sw.OffloadAdamW(make())


def sharded_before():
    from torch.distributed.fsdp import fully_shard

    meet()
    mesh = dist.device_mesh.init_device_mesh("cpu", (ranks,))
    model = make()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    identity(model)


def sharded_after():
    from torch.distributed.fsdp import fully_shard

    model = make()
    with identity(model) as opt:
        meet()
        mesh = dist.device_mesh.init_device_mesh("cpu", (ranks,))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        train(model, opt)


def dtensor():
    from torch.distributed.tensor import Replicate, distribute_tensor

    meet()
    mesh = dist.device_mesh.init_device_mesh("cpu", (ranks,))
    model = make()
    up = model.blocks[1].up
    up.weight = torch.nn.Parameter(distribute_tensor(up.weight.detach(), mesh, [Replicate()]))
    identity(model)


def fsdp1_before():
    from torch.distributed.fsdp import FullyShardedDataParallel

    meet()
    identity(FullyShardedDataParallel(make(), device_id=torch.device("cpu")))


def fsdp1_after(**arguments):
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = make()
    with identity(model) as opt:
        meet()
        fsdp = FullyShardedDataParallel(model, device_id=torch.device("cpu"), **arguments)
        train(fsdp, opt)


def data_parallel():
    identity(DataParallel(make()))


def alone_in_a_group():
    meet()
    model = make()
    with identity(model) as opt:
        train(model, opt)


def wrapped_before_static():
    wrapped_before(static_graph=True)


def wrapped_after_static():
    wrapped_after(static_graph=True)


def wrapped_before_views():
    wrapped_before(gradient_as_bucket_view=True)


def wrapped_after_views():
    wrapped_after(gradient_as_bucket_view=True)


def fsdp1_after_original():
    fsdp1_after(use_orig_params=True)


here.run_cases(globals())
