"""Families of models, built from tiny configs, beside torch's AdamW."""

from __future__ import annotations

import pytest
import sluiceway as sw
import torch
import transformers as tf
from agreement import batch_of, check_row, disagreement, language_loss, loop
from small_models import loss_of
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

SHAPE = {"vocab_size": 64, "hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4}
DECODER = {**SHAPE, "num_key_value_heads": 2, "num_hidden_layers": 1, "max_position_embeddings": 64}
ENCODER = {**SHAPE, "num_hidden_layers": 2}


def gpt2():
    return tf.GPT2LMHeadModel(
        tf.GPT2Config(
            vocab_size=64, n_positions=64, n_embd=256, n_layer=2, n_head=4,
            bos_token_id=1, eos_token_id=1,
        )
    )  # fmt: skip


def bert():
    return tf.BertForMaskedLM(tf.BertConfig(**ENCODER, max_position_embeddings=64))


def vit():
    return tf.ViTForImageClassification(
        tf.ViTConfig(**ENCODER, image_size=32, patch_size=8, num_labels=4)
    )


def t5():
    return tf.T5ForConditionalGeneration(
        tf.T5Config(
            vocab_size=64, d_model=256, d_kv=64, d_ff=256, num_layers=1, num_heads=4,
            decoder_start_token_id=0,
        )
    )  # fmt: skip


def mixtral():
    return tf.MixtralForCausalLM(tf.MixtralConfig(**DECODER, num_local_experts=4))


def qwen3_moe():
    return tf.Qwen3MoeForCausalLM(
        tf.Qwen3MoeConfig(
            **DECODER, moe_intermediate_size=256, head_dim=64, num_experts=4, num_experts_per_tok=2
        )
    )


def llama():
    return tf.LlamaForCausalLM(tf.LlamaConfig(**DECODER, tie_word_embeddings=True))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(16, 256)
        self.attention = nn.MultiheadAttention(256, 4, batch_first=True)
        self.leave = nn.Linear(256, 8)

    def forward(self, x):
        x = self.enter(x)[None]
        return self.leave(self.attention(x, x, x)[0][0])


class EncoderLayer(Attention):
    """torch's own layer, which has a path that reads weights without calling their modules."""

    def __init__(self):
        super().__init__()
        self.attention = nn.TransformerEncoderLayer(256, 4, 256, batch_first=True)

    def forward(self, x):
        return self.leave(self.attention(self.enter(x)[None])[0])


def picture_loss(model, step):
    pixels = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(step))
    return model(pixel_values=pixels, labels=torch.tensor([step % 4, 1])).loss


def seeded(build):
    def make_model():
        torch.manual_seed(0)
        return build()

    return make_model


FAMILIES = {
    "GPT-2": (gpt2, language_loss),
    "BERT": (bert, language_loss),
    "ViT": (vit, picture_loss),
    "T5": (t5, language_loss),
    "Mixtral": (mixtral, language_loss),
    "Qwen3-MoE": (qwen3_moe, language_loss),
}


@pytest.mark.parametrize("embeddings", ["frozen", "identity"])
@pytest.mark.parametrize("family", FAMILIES)
def test_family_of_models(record_property, family, embeddings):
    build, loss = FAMILIES[family]
    error = disagreement(seeded(build), loop(loss), embeddings=embeddings)
    check_row(record_property, family, error)


@pytest.mark.parametrize("build", [mixtral, qwen3_moe])
def test_experts_in_one_parameter_are_compressed(build):
    model = build()
    with sw.SubspaceAdamW(model, codec="block_random") as opt:
        elements = {name: p.numel() for name, p in model.named_parameters() if p.dim() == 3}
        assert elements
        assert elements.keys() <= {weight.name for weight in opt.weights}


@pytest.mark.parametrize("build", [Attention, EncoderLayer])
def test_multihead_attention_whose_projection_module_is_never_called(record_property, build):
    error = disagreement(seeded(build), loop(loss_of))
    check_row(record_property, "`nn.MultiheadAttention`, `nn.TransformerEncoderLayer`", error)


def test_evaluation_between_steps_reads_applied_weights(record_property):
    """The fast path of torch's encoder layer, out of training."""

    def drive(model, optimizer):
        for step in range(8):
            loss_of(model, step).backward()
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                seen.append(loss_of(model.eval(), 90))
            model.train()

    seen = []
    error = disagreement(seeded(EncoderLayer), drive)
    ours, theirs = torch.stack(seen).chunk(2)
    assert torch.allclose(ours, theirs, rtol=1e-5, atol=0)
    check_row(record_property, "`nn.MultiheadAttention`, `nn.TransformerEncoderLayer`", error)


@pytest.mark.parametrize("kernel", [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION])
def test_scaled_dot_product_attention(record_property, kernel):
    def loss(model, step):
        with sdpa_kernel(kernel):
            return model(**batch_of(step)).loss

    error = disagreement(seeded(llama), loop(loss))
    check_row(record_property, "SDPA, both of its kernels for CPUs", error)
