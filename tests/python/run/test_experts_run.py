"""A run and its plan where experts are 3-D parameters; and what is said of what is uncompressed."""

from __future__ import annotations

import copy
import json

import pytest
import sluiceway as sw
import torch
from conftest import read_lines
from mixtures import EXPERTS, KINDS, SHAPE, language_model, tokens_of
from sluiceway.model.grouped_products import grouped_flops, grouped_product
from sluiceway.model.rehearsal import rehearse
from sluiceway.model.uncompressed import group_lines
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory):
    from experiments.quickstart.byte_tokenizer import VOCABULARY_SIZE, write_tokenizer

    folder = tmp_path_factory.mktemp("models") / "mixtral"
    torch.manual_seed(11)
    shape = copy.deepcopy(KINDS["mixtral"])
    shape.update({"vocab_size": VOCABULARY_SIZE, "tie_word_embeddings": True})
    # Every expert gets tokens in every step. An expert without tokens sends no cores, and whether
    # it gets some would depend on the last bits that a processor computes.
    shape.update({"num_experts_per_tok": EXPERTS})
    shape.update(dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), 256))
    AutoModelForCausalLM.from_config(shape).save_pretrained(folder)
    write_tokenizer(folder, SHAPE["max_position_embeddings"])
    return folder


def test_plan_counts_each_slice_and_a_run_takes_what_it_says(
    sluiceway, mixtral, write_config, tmp_path
):
    config = write_config(
        mixtral,
        data={"sequence_length": 64},
        train={"steps": 5, "micro_batch": 4, "eval_sequences": 1},
        engine={"kind": "subspace", "codec": "block_random"},
    )
    done = sluiceway("plan", config, "--json")
    assert done.code == 0, done.err
    plan = json.loads(done.out)
    # k and v are too small; and the embedding, which is also the head.
    assert plan["compressed_weights"] == 2 * (4 - 2 + 2 * EXPERTS) + 1
    outcome = sluiceway("train", config, "--out", tmp_path / "out", "--json")
    assert outcome.code == 0, outcome.err
    lines = read_lines(tmp_path / "out")[1:]
    for link in ("d2h", "h2d"):
        # A step's update crosses while the next one runs, so the last one is in no line.
        crossed = sum(line["bytes"][link] for line in lines)
        assert 4 * plan["bytes_per_step"][link] <= crossed <= 5 * plan["bytes_per_step"][link]
    summary = json.loads(outcome.out)
    peak = summary["peak_bytes"]
    assert peak["device"] == pytest.approx(plan["peak_bytes"]["device"], rel=0.05)
    assert peak["pinned"] == plan["peak_bytes"]["pinned"]
    experts = [c for c in summary["codecs"] if c["shape"] == [512, 256]]
    assert [choice["weights"] for choice in experts] == [2 * EXPERTS]


@pytest.mark.parametrize("kind", KINDS)
def test_a_rehearsal_counts_the_operations_of_every_expert_that_runs(kind):
    rehearsal = rehearse(lambda: language_model(kind), set(), 4, 12, None)
    with FlopCounterMode(display=False) as counter:
        loss = language_model(kind, "eager")(input_ids=tokens_of(0), labels=tokens_of(0)).loss
        forward = counter.get_total_flops()
        loss.backward()
    assert rehearsal.forward_flops == forward
    assert rehearsal.backward_flops == counter.get_total_flops() - forward


@pytest.mark.parametrize(
    ("a", "b"),
    [((8, 16), (2, 16, 24)), ((8, 16), (16, 24)), ((2, 8, 16), (2, 16, 24)), ((2, 8, 16), (16, 8))],
    ids=["rows", "terms", "each", "columns"],
)
def test_a_product_of_groups_has_the_shape_that_torch_gives_it(a, b):
    left, right = torch.ones(a), torch.ones(b)
    both = len(a) == len(b) == 3
    offs = None if both else torch.tensor([4, 8], dtype=torch.int32)
    true = torch._grouped_mm(left, right, offs)
    assert grouped_product(left, right, offs).shape == true.shape
    assert grouped_flops(left, right, offs) == 2 * a[-2] * a[-1] * b[-1] * (2 if both else 1)


class Waves(nn.Module):
    """A linear weight beside a convolution that is larger, and what is too small to be said."""

    def __init__(self) -> None:
        super().__init__()
        self.wave = nn.Conv1d(256, 256, 5)
        self.norm = nn.LayerNorm(256)
        self.leave = nn.Linear(256, 256)


def test_what_is_uncompressed_and_large_is_a_line_with_its_reason():
    total = 256 * 256 * 6 + 4 * 256
    with sw.SubspaceAdamW(Waves(), codec="block_random") as opt:
        (group,) = opt.uncompressed  # Vectors are 0.3 %.
    assert group == {
        "why": "convolutions",
        "weights": 1,
        "elements": 256 * 256 * 5,
        "share": 256 * 256 * 5 / total,
    }
    (line,) = group_lines([group])
    assert line == ("1 uncompressed, on the device: 83.1 % of trained elements (convolutions)")


def test_reasons_are_those_of_the_target():
    def reasons(model, **arguments):
        with sw.SubspaceAdamW(model, **arguments) as opt:
            return {group["why"] for group in opt.uncompressed}

    model = language_model("mixtral")
    assert reasons(model) == {"matrices of fewer than 65536 elements"}
    assert reasons(model, target="q_proj") == {"not in target"}
    model.table = nn.Parameter(torch.zeros(512, 512))
    model.blocks = nn.Parameter(torch.zeros(2, 4, 128, 128))
    assert {"not in linear layers", "4-D weights"} <= reasons(model)


def test_a_run_says_what_is_uncompressed(sluiceway, mixtral, write_config, tmp_path):
    config = write_config(mixtral, engine={"kind": "subspace"}, train={"steps": 1})
    outcome = sluiceway("train", config, "--out", tmp_path / "out")
    assert outcome.code == 0, outcome.err
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    (small,) = summary["parameters"]["uncompressed"]
    assert small["why"] == "matrices of fewer than 65536 elements"
    assert small["weights"] == 2 * 2  # k and v; the router is a trifle.
    assert group_lines([small])[0] in outcome.out
