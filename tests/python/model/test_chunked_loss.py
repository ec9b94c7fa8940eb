"""The loss without logits: against torch in f64, and of models of transformers."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import pytest
import sluiceway
import torch
import transformers
from sluiceway.model.chunked_loss.cross_entropy import chunked_cross_entropy, sliced_cross_entropy
from small_llama import small_llama, tokens
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

WIDTH = 24
SHAPE = {"vocab_size": 131, "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 2,
         "num_key_value_heads": 2, "intermediate_size": 40, "max_position_embeddings": 64,
         "head_dim": 12, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip


def made(name: str, **changes: object) -> Any:
    """A small model of a family, with logits that are not all near 0."""
    config = getattr(transformers, f"{name}Config")(**{**SHAPE, **changes})
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(40)
    return model


def batch(rows: int = 3, length: int = 11, learned: float = 0.7) -> dict[str, torch.Tensor]:
    ids = torch.randint(3, SHAPE["vocab_size"], (rows, length))
    return {"input_ids": ids, "labels": ids.where(torch.rand(rows, length) < learned, -100)}


def in_double(
    hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor,
    bias: torch.Tensor | None = None, cap: float | None = None,
) -> torch.Tensor:  # fmt: skip
    logits = hidden.double() @ weight.double().T
    if bias is not None:
        logits = logits + bias.double()
    if cap is not None:
        logits = cap * torch.tanh(logits / cap)
    return functional.cross_entropy(logits, labels)


# ---- The function ----


@pytest.mark.parametrize("slice_elems", [1, 61, 997, 1 << 24])
@pytest.mark.parametrize("cap", [None, 5.0])
@pytest.mark.parametrize("with_bias", [False, True])
def test_is_torchs_in_double_within_its_rounding(
    slice_elems: int, cap: float | None, with_bias: bool
) -> None:
    tokens_, width, vocabulary = 53, 19, 101
    hidden, weight = torch.randn(tokens_, width), torch.randn(vocabulary, width)
    labels = torch.randint(vocabulary, (tokens_,)).where(torch.rand(tokens_) < 0.8, -100)
    bias = torch.randn(vocabulary) if with_bias else None
    found = chunked_cross_entropy(hidden, weight, labels, bias, cap=cap, slice_elems=slice_elems)
    expected = in_double(hidden, weight, labels, bias, cap)
    assert found.dtype is torch.float32
    # Each logit of up to 20 is a sum of 20 products in f32; the mean has the error of one at most.
    assert abs(found.double() - expected) < 40 * torch.finfo(torch.float32).eps * 20


@pytest.mark.parametrize("slice_elems", [1, 404, 997, 1 << 24])
@pytest.mark.parametrize("cap", [None, 5.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_slices_with_a_graph_have_the_gradients_of_torch_in_double(
    slice_elems: int, cap: float | None, dtype: torch.dtype
) -> None:
    def leaf(*shape: int) -> torch.Tensor:
        return torch.randn(*shape).to(dtype).requires_grad_()

    tokens_, width, vocabulary = 53, 19, 101
    hidden, weight, bias = leaf(tokens_, width), leaf(vocabulary, width), leaf(vocabulary)
    labels = torch.randint(vocabulary, (tokens_,)).where(torch.rand(tokens_) < 0.8, -100)
    found = sliced_cross_entropy(hidden, weight, labels, bias, cap=cap, slice_elems=slice_elems)
    expected = in_double(hidden, weight, labels, bias, cap)
    assert found.dtype is torch.float32
    eps = torch.finfo(dtype).eps
    assert abs(found.double() - expected) < 20 * eps
    leaves = hidden, weight, bias
    # 1024 is a loss scale, without which gradients would be lost in fp16.
    ours = torch.autograd.grad(found, leaves, torch.tensor(1024.0))
    theirs = torch.autograd.grad(expected, leaves, torch.tensor(1024.0).double())
    for mine, other, parameter in zip(ours, theirs, leaves, strict=True):
        assert (mine.dtype, mine.shape) == (dtype, parameter.shape)
        error = (mine.double() - other.double()).norm() / other.double().norm()
        assert error < 4 * eps


def test_gradients_of_16_bit_words_do_not_lose_by_many_slices() -> None:
    tokens_, width, vocabulary = 4000, 24, 60
    hidden = (torch.randn(width) + torch.randn(tokens_, width)).bfloat16()  # With a common part.
    weight = (torch.randn(vocabulary, width) / 4).bfloat16().requires_grad_()
    labels = torch.randint(vocabulary, (tokens_,))
    (expected,) = torch.autograd.grad(in_double(hidden, weight, labels), weight)
    for slice_elems in (tokens_, 7 * tokens_, tokens_ * vocabulary):
        loss = sliced_cross_entropy(hidden, weight, labels, slice_elems=slice_elems)
        (found,) = torch.autograd.grad(loss, weight)
        error = (found.double() - expected.double()).norm() / expected.double().norm()
        assert error < 0.005


def test_slices_train_what_is_trained_and_nothing_else() -> None:
    hidden, weight = torch.randn(5, 3), torch.randn(7, 3, requires_grad=True)
    labels = torch.arange(5)
    sliced_cross_entropy(hidden, weight, labels, slice_elems=14).backward()
    assert weight.grad.abs().sum() > 0
    hidden.requires_grad_()
    sliced_cross_entropy(hidden, weight.detach(), labels, slice_elems=14).backward()
    assert hidden.grad.abs().sum() > 0
    assert sliced_cross_entropy(hidden, weight, torch.full((5,), -100)).isnan()
    with torch.autocast("cpu", torch.bfloat16):
        loss = sliced_cross_entropy(hidden, weight, labels, slice_elems=14)
        whole = functional.cross_entropy(functional.linear(hidden, weight).float(), labels)
    weight.grad = None
    loss.backward()
    assert weight.grad.dtype is torch.float32
    assert abs(loss - whole) < 1e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_products_of_16_bit_values_are_not_rounded_to_16_bits(dtype: torch.dtype) -> None:
    hidden = (2 * torch.randn(200, 32)).to(dtype)
    weight = torch.randn(301, 32).to(dtype)
    labels = torch.randint(301, (200,))
    found = chunked_cross_entropy(hidden, weight, labels, slice_elems=1000)
    assert abs(found - in_double(hidden, weight, labels)) < 3e-6
    each = [
        functional.cross_entropy(logits, labels, reduction="none")
        for logits in (
            functional.linear(hidden, weight).float(),
            hidden.double() @ weight.double().T,
        )
    ]
    assert (each[0] - each[1]).abs().mean() > 1e-3  # What is avoided.


def test_logits_far_from_0_cost_no_digit_where_slices_are_joined() -> None:
    hidden = torch.randint(-2, 3, (5, 8)).float()
    weight = torch.randint(-4, 5, (331, 8)) / 4
    bias = torch.full((331,), 1e4)  # Every logit is exact in f32, whose ulp there is 1e-3.
    labels = torch.randint(331, (5,))
    found = chunked_cross_entropy(hidden, weight, labels, bias, slice_elems=64)
    assert abs(found - in_double(hidden, weight, labels, bias)) < 2e-6


def test_a_vocabulary_of_one_and_a_batch_without_learned_tokens_are_as_torchs() -> None:
    hidden, one = torch.randn(7, 5), torch.randn(1, 5)
    assert chunked_cross_entropy(hidden, one, torch.zeros(7, dtype=torch.long)) == 0.0
    none = torch.full((7,), -100)
    weight = torch.randn(9, 5)
    assert functional.cross_entropy(hidden @ weight.T, none).isnan()
    assert chunked_cross_entropy(hidden, weight, none, slice_elems=11).isnan()
    other = chunked_cross_entropy(hidden, weight, torch.full((7,), 3), ignored=3)
    assert other.isnan()
    nothing = torch.zeros(0, dtype=torch.long)
    assert functional.cross_entropy(torch.zeros(0, 9), nothing).isnan()
    assert chunked_cross_entropy(torch.zeros(0, 5), weight, nothing).isnan()


def test_impossible_tokens_and_what_is_not_finite_are_as_torchs() -> None:
    hidden, weight = torch.randn(6, 5), torch.randn(8, 5)
    labels = torch.randint(4, 8, (6,))
    bias = torch.zeros(8)
    bias[:4] = -torch.inf  # Whole slices of these, whatever their order.
    found = chunked_cross_entropy(hidden, weight, labels, bias, slice_elems=12)
    torch.testing.assert_close(found.double(), in_double(hidden, weight, labels, bias))
    impossible = chunked_cross_entropy(hidden, weight, labels - 4, bias, slice_elems=12)
    assert impossible == torch.inf == in_double(hidden, weight, labels - 4, bias)
    for bad in (torch.nan, torch.inf):
        broken = hidden.clone()
        broken[2, 3] = bad
        assert in_double(broken, weight, labels).isnan()
        assert chunked_cross_entropy(broken, weight, labels, slice_elems=12).isnan()
    assert chunked_cross_entropy(hidden, weight, labels + 8).isnan()


class Largest(TorchDispatchMode):
    """The most elements of any array that an operation made; a view makes none."""

    def __init__(self) -> None:
        super().__init__()
        self.elems = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        known = {x.untyped_storage().data_ptr() for x in tree_leaves((args, kwargs))
                 if isinstance(x, torch.Tensor)}  # fmt: skip
        for x in tree_leaves(out):
            if isinstance(x, torch.Tensor) and x.untyped_storage().data_ptr() not in known:
                self.elems = max(self.elems, x.numel())
        return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_array_is_larger_than_a_slice(dtype: torch.dtype) -> None:
    hidden, weight = torch.randn(300, 16).to(dtype), torch.randn(2000, 16).to(dtype)
    labels = torch.randint(2000, (300,))
    with Largest() as whole:
        functional.cross_entropy(functional.linear(hidden, weight).float(), labels)
    assert whole.elems == 300 * 2000
    with Largest() as sliced:
        chunked_cross_entropy(hidden, weight, labels, slice_elems=2048)
    assert 300 <= sliced.elems <= 2048


def test_autocast_does_not_round_the_products() -> None:
    hidden, weight = torch.randn(20, 16), torch.randn(50, 16)
    labels = torch.randint(50, (20,))
    with torch.autocast("cpu", torch.bfloat16):
        found = chunked_cross_entropy(hidden, weight, labels)
    assert found == chunked_cross_entropy(hidden, weight, labels)


# ---- Models ----

TAKEN = {
    "Llama": {},
    "Llama, tied": {"tie_word_embeddings": True},
    "GPT2": {"n_embd": WIDTH, "n_layer": 2, "n_head": 2, "n_positions": 64},
    "OPT": {"ffn_dim": 40, "word_embed_proj_dim": 16},
    "Phi": {},  # Its head has a bias.
    "Gemma2": {"final_logit_softcapping": 4.0},
    "Mixtral": {"num_local_experts": 3, "num_experts_per_tok": 2, "intermediate_size": 8},
}


@pytest.mark.parametrize("name", TAKEN)
def test_the_loss_of_a_model_is_its_own_and_no_logits_are_made(name: str) -> None:
    model = made(name.split(",")[0], **TAKEN[name])
    if (bias := model.get_output_embeddings().bias) is not None:
        nn.init.normal_(bias)
    inputs = batch(rows=5, length=60)
    loss = sluiceway.ChunkedLoss(model, slice_elems=5 * 60 * 48)
    with warnings.catch_warnings(), Largest() as largest:
        warnings.simplefilter("error")
        found = loss(**inputs)
    assert loss.refusal is None
    assert largest.elems < 5 * 60 * SHAPE["vocab_size"]
    with torch.no_grad():
        torch.testing.assert_close(found, model(**inputs).loss, rtol=1e-5, atol=1e-6)
    assert not found.requires_grad
    assert not model.get_output_embeddings()._forward_pre_hooks


@pytest.mark.parametrize("name", TAKEN)
def test_a_loss_with_a_graph_trains_a_model_as_its_own_and_makes_no_logits(name: str) -> None:
    model = made(name.split(",")[0], **TAKEN[name])
    inputs = batch(rows=5, length=60)
    loss = sluiceway.ChunkedLoss(model, graph=True, slice_elems=5 * 60 * 48)
    with warnings.catch_warnings(), Largest() as largest:
        warnings.simplefilter("error")
        found = loss(**inputs)
        found.backward()
    assert loss.refusal is None
    assert largest.elems < 5 * 60 * SHAPE["vocab_size"]
    ours = {name: p.grad for name, p in model.named_parameters()}
    model.zero_grad()
    expected = model(**inputs).loss
    expected.backward()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    for key, parameter in model.named_parameters():
        torch.testing.assert_close(ours[key], parameter.grad, rtol=1e-3, atol=1e-5)
    with torch.no_grad():
        assert not loss(**inputs).requires_grad


@pytest.mark.parametrize("weights", ["resident", "streamed"])
def test_optimizers_train_with_slices_as_with_the_models_own_loss(weights: str) -> None:
    ends = []
    for sliced in (False, True):
        torch.manual_seed(0)
        model = small_llama()
        loss = sluiceway.ChunkedLoss(model, graph=True, slice_elems=999)
        with sluiceway.OffloadAdamW(model, lr=1e-3, weights=weights, chunk=16 << 10) as opt:
            for step in range(3):
                ids = {"input_ids": tokens(step), "labels": tokens(step)}
                (loss(**ids) if sliced else model(**ids).loss).backward()
                opt.step()
                opt.zero_grad()
            opt.synchronize()
            ends.append([p.detach().clone() for p in model.parameters()])
    for whole, other in zip(*ends, strict=True):
        torch.testing.assert_close(whole, other, rtol=1e-3, atol=1e-4)


def test_a_model_in_bf16_has_a_loss_of_f32_logits() -> None:
    model = made("Llama").bfloat16()
    inputs, seen = batch(), []
    model.lm_head.register_forward_pre_hook(lambda _, args: seen.append(args[0].clone()))
    found = sluiceway.ChunkedLoss(model)(**inputs)
    labels = functional.pad(inputs["labels"], (0, 1), value=-100)[:, 1:].flatten()
    expected = in_double(seen[0].flatten(0, 1), model.lm_head.weight, labels)
    with torch.no_grad():
        its_own = model(**inputs).loss
    assert abs(found - expected) < 3e-6
    assert abs(its_own - expected) > 1e-5


class Encoded(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * 2


def with_another_head() -> nn.Module:
    model = made("Llama")
    model.lm_head.__class__ = Encoded
    return model


def with_a_patched_head() -> nn.Module:
    model = made("Llama")
    forward = model.lm_head.forward
    model.lm_head.forward = lambda x: forward(x) + 1.0
    return model


def with_another_loss() -> nn.Module:
    model = made("Llama")
    model.loss_function = lambda logits, labels, **_: logits.float().square().mean()
    return model


class OwnLoss(transformers.LlamaForCausalLM):
    def forward(self, labels: torch.Tensor | None = None, **inputs: Any) -> Any:
        output = super().forward(**inputs)
        if labels is not None:
            output.loss = output.logits.float().square().mean()
        return output


def with_a_loss_in_its_forward() -> nn.Module:
    return OwnLoss(transformers.LlamaConfig(**SHAPE))


REFUSED = {
    "changes logits after its head": lambda: made("Granite", logits_scaling=3.0),
    "adds an auxiliary loss": lambda: made(
        "Mixtral", num_local_experts=3, num_experts_per_tok=2, output_router_logits=True
    ),
    "its head is Encoded": with_another_head,
    "with its own forward": with_a_patched_head,
    "it computes a loss by": with_another_loss,
    "without transformers' loss_function": with_a_loss_in_its_forward,
}


@pytest.mark.parametrize("why", REFUSED)
def test_other_models_are_asked_for_their_own_loss_and_it_is_said(why: str) -> None:
    model = REFUSED[why]()
    loss, inputs = sluiceway.ChunkedLoss(model), batch()
    with pytest.warns(UserWarning, match=why):
        found = loss(**inputs)
    with torch.no_grad():
        expected = model(**inputs).loss
    assert found.dtype is torch.float32
    assert torch.equal(found, expected)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(loss(**inputs), expected)


@pytest.mark.parametrize("name", ["num_items_in_batch", "shift_labels"])
def test_another_loss_of_the_model_is_refused(name: str) -> None:
    loss, inputs = sluiceway.ChunkedLoss(made("Llama"), graph=True), batch()
    with pytest.raises(sluiceway.InvalidArgument, match=f"{name} is given"):
        loss(**inputs, **{name: inputs["labels"]})


def test_wrong_arguments_are_named() -> None:
    loss, inputs = sluiceway.ChunkedLoss(made("Llama")), batch(learned=1.0)
    with pytest.raises(sluiceway.InvalidArgument, match="labels are missing"):
        loss(input_ids=inputs["input_ids"])
    with pytest.raises(sluiceway.InvalidArgument, match=r"shape \(3, 4\), labels are \(3, 11\)"):
        loss(**inputs, logits_to_keep=4)
    inputs["labels"][1, 3] = 131
    with pytest.raises(sluiceway.InvalidArgument, match="a label is 131, expected 0 to 130"):
        loss(**inputs)


# ---- Zeroth-order steps ----


def gradients_of_steps(tied: bool, chunked: bool) -> list[float]:
    """g of three steps of the head and of one matrix in a block."""
    model = small_llama(tie_word_embeddings=tied, num_hidden_layers=3)
    model.requires_grad_(False).lm_head.weight.requires_grad_(True)
    model.model.layers[1].mlp.up_proj.weight.requires_grad_(True)
    loss, opt = (
        sluiceway.ChunkedLoss(model, slice_elems=700),
        sluiceway.ZoSgd(model, lr=1e-5, seed=3),
    )
    inputs = {"input_ids": tokens(1), "labels": tokens(1)}
    found = []
    for _ in range(3):
        opt.step((lambda: loss(**inputs)) if chunked else (lambda: model(**inputs).loss))
        found.append(opt.stats()["zo"]["g"][0])
    assert loss.refusal is None
    return found


@pytest.mark.parametrize("tied", [False, True])
def test_a_zeroth_order_step_sees_the_perturbed_head(tied: bool) -> None:
    expected = gradients_of_steps(tied, chunked=False)
    assert all(abs(g) > 1e-2 for g in expected)
    assert gradients_of_steps(tied, chunked=True) == pytest.approx(expected, rel=5e-2, abs=2e-3)


def test_a_refused_model_is_trained_all_the_same() -> None:
    model = made("Granite", logits_scaling=3.0)
    twin = made("Granite", logits_scaling=3.0)
    twin.load_state_dict(model.state_dict())
    loss, inputs = sluiceway.ChunkedLoss(model), batch()
    with pytest.warns(UserWarning, match="changes logits"):
        found = sluiceway.ZoSgd(model, lr=1e-4).step(lambda: loss(**inputs))
    assert found == sluiceway.ZoSgd(twin, lr=1e-4).step(lambda: twin(**inputs).loss)
    assert all(map(torch.equal, model.parameters(), twin.parameters()))


def test_hooks_of_the_head_exchange_its_matrix() -> None:
    model, inputs = made("Llama"), batch()
    plain = sluiceway.ChunkedLoss(model)(**inputs)
    own = model.lm_head.weight.data
    before = lambda head, _: setattr(head.weight, "data", own * 0.5)  # noqa: E731
    after = lambda head, *_: setattr(head.weight, "data", own)  # noqa: E731
    model.lm_head.register_forward_pre_hook(before)
    model.lm_head.register_forward_hook(after)
    found = sluiceway.ChunkedLoss(model)(**inputs)
    assert found != plain
    with torch.no_grad():
        torch.testing.assert_close(found, model(**inputs).loss)


def test_a_call_of_another_thread_is_not_taken_for_ones_own() -> None:
    model, mine, others = made("Llama"), batch(), batch(rows=2)
    expected = sluiceway.ChunkedLoss(model)(**mine), sluiceway.ChunkedLoss(model)(**others)
    loss, found = sluiceway.ChunkedLoss(model), []

    def between(*_: object) -> None:
        handle.remove()
        thread = threading.Thread(target=lambda: found.append(loss(**others)))
        thread.start()
        thread.join()

    handle = model.model.layers[0].register_forward_pre_hook(between)
    found.append(loss(**mine))
    assert (found[1], found[0]) == expected
