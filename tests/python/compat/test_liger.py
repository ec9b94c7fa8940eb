"""Liger-Kernel without a GPU: its chunked losses, and rotary positions in Triton's interpreter.

Its other kernels (RMSNorm, SwiGLU, cross entropy) run on GPUs alone.
"""

from __future__ import annotations

import functools
import importlib

import pytest
import transformers.models.llama.modeling_llama as modeling
import triton
from agreement import batch_of, check_row, disagreement, language_loss, loop
from liger_kernel.chunked_loss import LigerFusedLinearORPOLoss
from liger_kernel.ops import rope
from liger_kernel.transformers import apply_liger_kernel_to_llama
from small_llama import small_llama

ROW = "Liger-Kernel: chunked losses, rotary positions"
WITHOUT_GPU = {
    "rope": True, "rms_norm": False, "swiglu": False, "cross_entropy": False,
    "fused_linear_cross_entropy": False,
}  # fmt: skip


def orpo_loss(model, step):
    """Half of the rows are chosen answers, the other half rejected ones."""
    batch = batch_of(step, rows=4)
    hidden = model.model(input_ids=batch["input_ids"]).last_hidden_state
    loss = LigerFusedLinearORPOLoss(compiled=False)
    return loss(model.lm_head.weight, hidden, batch["labels"])[0]


@pytest.mark.parametrize("embeddings", ["frozen", "identity"])
@pytest.mark.parametrize("tied", [False, True])
def test_chunked_loss_that_reads_the_weight_of_the_head(record_property, embeddings, tied):
    make_model = functools.partial(
        small_llama, vocab_size=512, num_hidden_layers=1, tie_word_embeddings=tied
    )
    error = disagreement(make_model, loop(orpo_loss), embeddings=embeddings)
    check_row(record_property, ROW, error)


@pytest.fixture
def rotary_kernel(monkeypatch):
    """Llama with Liger's patch, for one test."""
    monkeypatch.setattr(triton.knobs.runtime, "interpret", True)
    importlib.reload(rope)  # Triton chooses between compiler and interpreter as it reads a kernel.
    patched = modeling.apply_rotary_pos_emb
    monkeypatch.setattr(modeling, "apply_rotary_pos_emb", patched)  # Put back at the end.
    apply_liger_kernel_to_llama(**WITHOUT_GPU)
    assert modeling.apply_rotary_pos_emb is not patched


@pytest.mark.usefixtures("rotary_kernel")
def test_rotary_positions_in_the_interpreter_of_triton(record_property):
    error = disagreement(functools.partial(small_llama, num_hidden_layers=1), loop(language_loss))
    check_row(record_property, ROW, error)
