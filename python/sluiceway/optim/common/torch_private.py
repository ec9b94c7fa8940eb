"""Every private name of torch that our optimizers lean on, and nothing else.

Each entry says what it is for and what happens without it. All were tried with torch 2.11;
`make newest` runs the tests with the newest torch. Code outside of this file uses public names.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel


# 1. torch._C.DisableTorchFunctionSubclass, torch._C.DisableTorchFunction,
#    torch._C._is_torch_function_enabled()
# For:     reading attributes of a parameter or `.grad` whose class answers torch's functions.
# Without: each of our own reads would wait for an update that is in flight.
def asking_no_class() -> AbstractContextManager[Any]:
    """Let torch's functions take tensors inside the block without calling `__torch_function__`."""
    return torch._C.DisableTorchFunctionSubclass()


def asking_nobody() -> AbstractContextManager[Any]:
    """Let torch's functions call `__torch_function__` of neither tensors nor modes in the block."""
    return torch._C.DisableTorchFunction()


def classes_are_asked() -> bool:
    """Return whether torch's functions call `__torch_function__` of tensors at present."""
    return torch._C._is_torch_function_enabled()


# 2. torch._C._current_graph_task_id()
# For:     a forward that checkpointing repeats inside of a backward, and the sum of one backward.
# Without: such a forward would count as a second use of its weights.
NO_BACKWARD = -1


def running_backward() -> int:
    """Return the number of the backward that this thread runs, or `NO_BACKWARD`."""
    return torch._C._current_graph_task_id()


# 3. torch._C._will_engine_execute_node()
# For:     fused layers, to tell `backward()` from `torch.autograd.grad()`.
# Without: they would give a core to a call that trains nothing.
def backward_reaches(node: Any) -> bool:
    """Return whether the running backward reaches this node of autograd."""
    return torch._C._will_engine_execute_node(node)


# 4. Variable._execution_engine.queue_callback(), which FSDP and DDP use too
# For:     the end of a backward, when the norm of its gradients is put into `.grad`.
# Without: `.grad` would be empty before `step()`, so torch could clip nothing.
def when_backward_ends(call: Callable[[], None]) -> None:
    """Call `call` when the running backward has ended; autograd drops it if the backward raised."""
    torch.autograd.Variable._execution_engine.queue_callback(call)


# 5. torch._C._functorch.peek_interpreter_stack(), forward_ad._current_level
# For:     fused layers under `torch.func` and forward derivatives: they form a gradient there.
# Without: a transform would get no gradient of a fused weight.
def is_transformed() -> bool:
    """Return whether a transform of `torch.func` or a forward derivative is running."""
    transformed = torch._C._functorch.peek_interpreter_stack() is not None
    return transformed or torch.autograd.forward_ad._current_level >= 0


# 6. The functions with which torch._functorch wraps tensors
# For:     transforms of `torch.func` wrap a tensor without asking its class.
# Without: a transform that follows `step()` would read weights before their update. A name that has
#          moved is an AttributeError when an optimizer is made.
_WRAPPERS = (
    ("eager_transforms", "_wrap_for_grad"),
    ("eager_transforms", "_wrap_functional_tensor"),
    ("vmap", "_add_batch_dim"),
)


@functools.cache
def tell_before_wrapping(tell: Callable[[Any], None]) -> None:
    """Let `tell` see each tensor that a transform is about to wrap; torch.compile traces it too."""
    import torch._functorch.eager_transforms
    import torch._functorch.vmap

    def telling(wrap: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(wrap)
        def wrapped(tensor: torch.Tensor, *more: int) -> torch.Tensor:
            tell(tensor)
            return wrap(tensor, *more)

        return wrapped

    for module_name, name in _WRAPPERS:
        module = getattr(torch._functorch, module_name)
        setattr(module, name, telling(getattr(module, name)))


# 7. torch.Tensor._make_subclass(), on which nn.Parameter is built
# For:     tensors of a class of ours, and parameters made of one that is in flight.
# Without: `as_subclass()` does the same, but puts a node into the graph of autograd.
def of_class(kind: type[torch.Tensor], tensor: torch.Tensor) -> Any:
    """Return a tensor of class `kind` with the storage of `tensor`, and no graph."""
    return torch.Tensor._make_subclass(kind, tensor)


# 8. torch._dynamo: FRAME_COUNTER, on_compile_start(), callback_handler
# For:     the first compilation of a process; compiled graphs read weights without asking.
# Without: a compiled model would read weights before their update.
def has_compiled() -> bool:
    """Return whether this process has compiled anything; imports Dynamo like torch's optimizers."""
    import torch._dynamo

    return torch._dynamo.convert_frame.FRAME_COUNTER > 0


def before_compiling(call: Callable[..., None]) -> None:
    """Call `call` when a compilation begins."""
    torch._dynamo.on_compile_start(call)


def called_before_compiling() -> list[Callable[..., None]]:
    """Return the list of those calls; torch._dynamo.reset() empties it."""
    return torch._dynamo.callback_handler.start_callbacks


def dynamo_is_loaded() -> bool:
    """Return whether anything can have been compiled."""
    return "torch._dynamo" in sys.modules


# 9. Tensor._backward_hooks, Tensor._post_accumulate_grad_hooks
# For:     other hooks, which see a gradient before ours takes it, or find `.grad` empty.
# Without: a fused layer would skip hooks of its weight, and an optimizer that runs in backward
#          would see None without a word.
def has_gradient_hooks(parameter: torch.Tensor) -> bool:
    """Return whether a hook gets the gradient of a parameter before it is accumulated."""
    return bool(parameter._backward_hooks)


def accumulation_hooks(parameter: torch.Tensor) -> list[int]:
    """Return the numbers of the hooks after the accumulation, in the order of registration."""
    return list(parameter._post_accumulate_grad_hooks or ())


# 10. Tensor._version
# For:     whether a tensor was written to since it was seen.
# Without: offload and zo would miss weights that other code changes; projected inputs could be
#          stale.
def version(tensor: torch.Tensor) -> int:
    """Return how often autograd has noticed a write to a tensor."""
    return tensor._version


# 11. Tensor._cdata
# For:     torch.utils.swap_tensors(), which gives a parameter the C++ tensor of another one.
# Without: our hooks would stay with the old C++ tensor, and the weight would not be trained.
def inside(tensor: torch.Tensor) -> int:
    """Return the address of the C++ tensor in a Python tensor."""
    return tensor._cdata


# 12. Module._parameters
# For:     the parameters that a module holds itself, read past any special dict: some libraries
#          put dicts of their own there.
# Without: `named_parameters(recurse=False)` reads the same, through such a dict.
def held_parameters(module: nn.Module) -> dict[str, nn.Parameter | None]:
    """Return the parameters of a module without those of its children."""
    return dict(dict.items(module._parameters))


# 13. DistributedDataParallel._active_ddp_module, Module._is_fsdp_managed_module
# For:     a wrapper put around the model after the optimizer was made.
# Without: such a model would not be trained, silently under FSDP1.
def is_wrapped(modules: Iterable[nn.Module]) -> bool:
    """Return whether a DDP, whose forward runs, or FSDP1 reduces gradients of the modules."""
    reduced, modules = reduced_now(), list(modules)
    held = (p for m in modules if reduced for p in held_parameters(m).values() if p is not None)
    if any(id(p) in reduced for p in held if p.dim() > 1):
        return True
    return any(getattr(m, "_is_fsdp_managed_module", False) for m in modules)


_reduced: weakref.WeakKeyDictionary[nn.Module, frozenset[int]] = weakref.WeakKeyDictionary()


def reduced_now() -> frozenset[int]:
    """Return the id of each parameter that the DDP averages whose forward runs, if one does."""
    ddp = DistributedDataParallel._active_ddp_module
    if ddp is None:
        return frozenset()
    if ddp not in _reduced:
        _reduced[ddp] = frozenset(
            id(p)
            for name, p in ddp.module.named_parameters(remove_duplicate=False)
            if p.requires_grad and name not in ddp.parameters_to_ignore
        )
    return _reduced[ddp]


# 14. torch._foreach_norm()
# For:     norms of many gradients in a few kernels, as torch's own clipping takes them.
# Without: one kernel each, which takes longer to launch than to run.
def norms_of(tensors: list[torch.Tensor], order: float, dtype: torch.dtype) -> list[torch.Tensor]:
    """Return the norm of each tensor, summed in `dtype`, on its device."""
    return list(torch._foreach_norm(tensors, order, dtype=dtype))


# 15. torch.ops.aten._unsafe_view()
# For:     the output of a fused layer, which others may change in place.
# Without: autograd refuses that, as the output would be a view made inside of a function.
def reshaped(tensor: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Return a new tensor in another shape, with the storage of one that is no longer used."""
    return torch.ops.aten._unsafe_view(tensor, shape)


# 16. Variable._execution_engine.is_checkpoint_valid(), which reentrant checkpointing uses too
# For:     a backward that runs inside of a node, with other leaves than the outer one.
# Without: torch.autograd.grad() would train weights that it was not asked for.
def may_run_backward_inside() -> bool:
    """Return whether the running backward reaches all leaves, as another inside of it would."""
    return torch.autograd.Variable._execution_engine.is_checkpoint_valid()


# 17. torch.distributed.distributed_c10d._get_default_store()
# For:     the numbers of the ranks that do not answer, if a collective of a process group fails.
# Without: an error would only say that some rank died.
def group_store() -> Any:
    """Return the store in which the ranks of the default process group met."""
    return torch.distributed.distributed_c10d._get_default_store()


# 18. DistributedDataParallel._set_params_and_buffers_to_ignore_for_model()
# For:     a DDP that is made later, as Trainer does: it leaves gradients to the optimizer.
# Without: it would average them a second time, and hold a copy of all of them.
def leave_to_optimizer(model: nn.Module, names: Iterable[str]) -> Callable[[], None]:
    """Let a DDP that wraps the model later not touch parameters; return what undoes it."""
    key = "_ddp_params_and_buffers_to_ignore"
    before = vars(model).get(key)
    ignored = [*(before or ()), *names]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ignored)

    def undo() -> None:
        vars(model).pop(key, None)
        if before is not None:
            vars(model)[key] = before

    return undo


# Names of attributes and functions that read the gradient, the shape or the like of a tensor, but
# no value, so that they need wait for nothing.
_ATTRIBUTES_THAT_LOOK = (
    *("shape", "dtype", "device", "layout", "ndim", "itemsize", "nbytes", "names"),
    *("is_leaf", "grad_fn", "requires_grad", "retains_grad", "output_nr", "_version", "_base"),
    *("is_cuda", "is_cpu", "is_meta", "is_sparse", "is_quantized", "is_nested", "is_mkldnn"),
    *("is_xpu", "is_mps", "is_xla", "is_ipu", "is_vulkan", "is_maia", "is_mtia", "is_sparse_csr"),
    *("grad", "_grad", "grad_dtype", "_backward_hooks", "_post_accumulate_grad_hooks"),
)
_FUNCTIONS_THAT_LOOK = (
    *("size", "dim", "numel", "nelement", "stride", "storage_offset", "element_size", "__len__"),
    *("is_contiguous", "is_floating_point", "is_complex", "is_signed", "is_inference"),
    *("get_device", "requires_grad_", "retain_grad"),
    *("register_hook", "register_post_accumulate_grad_hook"),
    *("zeros_like", "empty_like", "ones_like", "new_zeros", "new_empty", "new_ones", "new_full"),
)
_looking = [getattr(torch.Tensor, name, None) for name in _ATTRIBUTES_THAT_LOOK]
LOOKS = frozenset(
    [getattr(attribute, way, None) for attribute in _looking for way in ("__get__", "__set__")]
    + [
        getattr(owner, name, None)
        for owner in (torch.Tensor, torch)
        for name in _FUNCTIONS_THAT_LOOK
    ]
    + [torch.Tensor.grad.__delete__]
) - {None}  # Not every torch has all of them.
