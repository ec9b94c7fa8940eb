"""Documents become batches: reading, cutting, order of draws, and errors for bad lines."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sluiceway.config.schema import DataSection
from sluiceway.errors import InvalidArgument, IoError
from sluiceway.text.batches import (
    Batches,
    Prefetch,
    collate,
    describe_sequences,
    in_order,
    joined,
)
from sluiceway.text.documents import Corpus, Document, read_documents
from sluiceway.text.pydoc_text import pydoc_text
from sluiceway.text.sequences import IGNORED, make_sequences


class ByteTokens:
    """A tokenizer of bytes, 256 at the end; its template wraps turns as <role>content|."""

    eos_token_id = 256
    chat_template = "template"
    is_fast = True

    def __call__(self, text, verbose=True, add_special_tokens=True, return_offsets_mapping=False):
        spans = [(k, k + 1) for k, c in enumerate(text) for _ in c.encode()]
        return {"input_ids": list(text.encode()), "offset_mapping": spans}

    def get_chat_template(self, template, tools):
        return template or self.chat_template

    def apply_chat_template(self, messages, add_generation_prompt=False, **_):
        text = "".join(f"<{m['role']}>{m['content']}|" for m in messages)
        return text + "<assistant>" * add_generation_prompt


def cut(length, packing, **more):
    return DataSection(train=["t"], sequence_length=length, packing=packing, **more)


def sequences_of(*texts, length=8, packing=True, vocabulary=257, **more):
    corpus = Corpus([Document(f"t:{i + 1}", text) for i, text in enumerate(texts)])
    return make_sequences(corpus, ByteTokens(), cut(length, packing, **more), "train", vocabulary)


def text_of(ids):
    return bytes(i for i in ids if i < 256).decode()


# ---- Reading ----


def test_held_out_part_of_pydoc_is_fixed_and_shares_no_paragraph_with_training():
    train, held_out = pydoc_text("train"), pydoc_text("eval")
    assert held_out == pydoc_text("eval")
    sizes = sum(map(len, train)), sum(map(len, held_out))
    assert sizes[0] > 4 * sizes[1] > 100_000

    def paragraphs(texts):
        words = {" ".join(p.split()) for text in texts for p in text.split("\n\n")}
        return {p for p in words if len(p) >= 40}

    assert paragraphs(train).isdisjoint(paragraphs(held_out))


def test_files_globs_and_pydoc_are_read_in_the_order_given(tmp_path):
    for name in ("b.txt", "a.txt"):
        (tmp_path / name).write_text(f"text of {name}")
    corpus = read_documents([str(tmp_path / "*.txt"), "pydoc"], "text", "train")
    assert [d.text for d in corpus.documents[:2]] == ["text of a.txt", "text of b.txt"]
    assert corpus.files == 2
    assert len(corpus.documents) == 2 + len(pydoc_text("train"))


def test_bytes_that_are_not_utf8_are_replaced_and_counted(tmp_path):
    (tmp_path / "x.txt").write_bytes(b"\xef\xbb\xbfgood \xff bad \xc3( \xef\xbf\xbd end")
    corpus = read_documents([str(tmp_path / "x.txt")], "text", "train")
    assert corpus.replaced == 2
    assert corpus.documents[0].text == "good \ufffd bad \ufffd( \ufffd end"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "has no text (1 files)"),
        (" \n\n", "has no text"),
        ('{"text": "a"}\n{"text": \n', "x.jsonl:2, column 10: is not JSON"),
        ('{"text": "a"}\n\n[1]\n', "x.jsonl:3: is a list"),
        ('{"txt": "a"}\n', "x.jsonl:1: has txt, expected a string text, or messages"),
        ('{"text": 3}\n', "x.jsonl:1: has text, expected a string text"),
        ('{"messages": [{"role": "user"}]}\n', "x.jsonl:1: messages[0] has no content"),
        (
            '{"messages": [{"role": "user", "content": "a"}]}\n',
            "x.jsonl:1: messages has no turn of the assistant",
        ),
    ],
)
def test_bad_line_is_refused_with_file_and_line(tmp_path, content, words):
    (tmp_path / "x.jsonl").write_text(content)
    with pytest.raises(InvalidArgument) as refused:
        read_documents([str(tmp_path / "x.jsonl")], "jsonl", "train")
    assert words in str(refused.value)


@pytest.mark.parametrize("name", ["none.txt", "none*.txt"])
def test_missing_file_is_an_io_error_with_its_name(tmp_path, name):
    with pytest.raises(IoError) as refused:
        read_documents([str(tmp_path / name)], "text", "eval")
    assert refused.value.filename == str(tmp_path / name)
    assert str(refused.value).startswith("data.eval: ")


# ---- Cutting ----


def test_packing_joins_documents_with_an_end_token_and_leaves_only_the_rest_out():
    sequences = sequences_of("abcde", "fghij", "klm", length=8)
    rows = [collate(sequences, [i]).inputs["input_ids"][0].tolist() for i in range(2)]
    end = [256]
    assert rows[0] == [*b"abcde", *end, *b"fg"]
    assert rows[1] == [*b"hij", *end, *b"klm", *end]


def counts_of(*parts):
    """Counts of one text in one sequence."""
    names = ("texts", "files", "tokens", "learned", "sequences", "cut", "left_out")
    ones = {f"{part}_{name}": 1 for part in parts for name in names}
    return ones | {f"{part}_unused_tokens": 0 for part in parts}


def test_tokens_that_fill_no_sequence_are_counted_and_told():
    sequences = sequences_of("abc", "defgh", length=8)
    assert (len(sequences), sequences.unused) == (1, 2)  # Of ten, with two ends.
    assert sequences_of("abc", length=8).unused == 0
    counts = counts_of("train") | {"train_tokens": 800, "train_learned": 800}
    data = DataSection(train=["x"])
    for unused, told in ((8, False), (9, True)):
        (line,) = describe_sequences(data, counts | {"train_unused_tokens": unused})
        assert ("left out: 9" in line) == told


def test_data_that_is_trained_on_and_held_out_is_told():
    data = DataSection(train=["a", "b", "pydoc"], eval=["b", "c", "pydoc"])
    train, held_out = describe_sequences(data, counts_of("train", "eval"))
    assert "not held out" not in train
    assert held_out.endswith("; not held out: b, which data.train has, too")


def test_without_packing_each_document_is_a_sequence_padded_and_masked():
    batch = collate(sequences_of("abc", "defgh", length=8, packing=False), [0, 1])
    ids, labels = batch.inputs["input_ids"], batch.inputs["labels"]
    assert ids.shape == (2, 6)
    assert labels[0].tolist() == [*b"abc", 256, IGNORED, IGNORED]
    assert batch.inputs["attention_mask"].tolist() == [[1, 1, 1, 1, 0, 0], [1] * 6]
    assert (batch.tokens, batch.learned) == (10, 3 + 5)


def test_batches_that_are_joined_are_those_of_all_their_sequences():
    texts = "abc", "defgh", "ij", "klmnopq", "r", "stu"
    sequences = sequences_of(*texts, length=8, packing=False)
    for parts in ([[0, 1], [2, 3], [4, 5]], [[1], [3]], [[0], [5]], [[2, 4]]):
        found = joined([collate(sequences, part) for part in parts])
        expected = collate(sequences, [number for part in parts for number in part])
        assert (found.tokens, found.learned) == (expected.tokens, expected.learned)
        assert found.inputs.keys() == expected.inputs.keys()
        for name, tensor in expected.inputs.items():
            assert tensor.equal(found.inputs[name]), name


def test_document_longer_than_a_sequence_is_refused_with_its_place():
    with pytest.raises(InvalidArgument, match=r"t:2: 9 tokens, expected at most .*, 8"):
        sequences_of("abc", "defghijk", length=8, packing=False)


def test_overlong_documents_are_cut_or_dropped_and_counted():
    texts = ["abc", "d" * 20, "ef", ""]
    cut = sequences_of(*texts, packing=False, overlong="truncate")
    assert [*cut.lengths] == [4, 8, 3]
    assert (cut.cut, cut.left_out) == (1, 0)
    dropped = sequences_of(*texts, packing=False, overlong="drop")
    assert [*dropped.lengths] == [4, 3]
    assert (dropped.cut, dropped.left_out) == (0, 1)
    assert sequences_of(*texts, overlong="drop").left_out == 0  # Packing cuts everything.


def test_answers_behind_the_cut_are_left_out_and_none_at_all_is_refused():
    documents = [Document("t:1", "c", prompt="p" * 100), Document("t:2", "c", prompt="pp")]
    data = cut(32, False, overlong="truncate")
    found = make_sequences(Corpus(documents), ByteTokens(), data, "train", 257)
    assert (len(found), found.cut, found.left_out) == (1, 0, 1)
    with pytest.raises(InvalidArgument, match=r"behind the first 32 tokens .* a larger"):
        make_sequences(Corpus(documents[:1]), ByteTokens(), data, "train", 257)


def test_text_shorter_than_a_sequence_is_one_sequence():
    sequences = sequences_of("abcd", length=8)
    assert sequences.tokens.tolist() == [*b"abcd", 256]
    assert (sequences.starts.tolist(), sequences.lengths.tolist()) == ([0], [5])
    assert len(sequences_of("abcdefg", length=8)) == len(sequences_of("abcdefgh", length=8)) == 1


def test_text_without_anything_to_learn_is_refused():
    messages = [{"role": "assistant", "content": ""}]
    corpus = Corpus([Document("t:1", messages=messages)])
    with pytest.raises(InvalidArgument, match="tokens in all, expected at least 2, with something"):
        make_sequences(corpus, ByteTokens(), cut(8, True), "train", 257)


def test_token_beyond_the_models_embeddings_is_refused():
    with pytest.raises(
        InvalidArgument, match="gives token 256, but the model has only 256 embeddings"
    ):
        sequences_of("abcdefgh", vocabulary=256)


def test_conversation_is_learned_on_the_assistants_turns_only():
    messages = [
        {"role": "user", "content": "ab"},
        {"role": "assistant", "content": "cd"},
        {"role": "user", "content": "ef"},
        {"role": "assistant", "content": "gh"},
        {"role": "user", "content": "never"},
    ]
    corpus = Corpus([Document("t:1", messages=messages)])
    sequences = make_sequences(corpus, ByteTokens(), cut(100, False), "train", 257)
    learned = sequences.tokens[sequences.learned]
    assert text_of(sequences.tokens) == "<user>ab|<assistant>cd|<user>ef|<assistant>gh|"
    assert text_of(learned) == "cd|gh|"


@pytest.mark.parametrize(
    ("template", "words"),
    [(None, "has no chat template"), ("rewrites", "rewrites earlier turns")],
)
def test_template_that_cannot_mark_turns_is_refused_with_the_place(template, words):
    tokenizer = ByteTokens()
    tokenizer.chat_template = template
    if template:
        tokenizer.apply_chat_template = lambda m, **_: f"{len(m)}{m[-1]['content']}"
    turns = [{"role": role, "content": "x"} for role in ("user", "assistant")]
    with pytest.raises(InvalidArgument) as refused:
        make_sequences(
            Corpus([Document("t:1", messages=turns)]), tokenizer, cut(9, False), "train", 257
        )
    assert words in str(refused.value)
    assert str(refused.value).startswith("t:1: ")


def test_sequence_without_anything_to_learn_is_left_out():
    turns = [{"role": "user", "content": "x" * 40}, {"role": "assistant", "content": "y"}]
    sequences = make_sequences(
        Corpus([Document("t:1", messages=turns)]), ByteTokens(), cut(12, True), "train", 257
    )
    assert len(sequences) == 1
    assert sequences.starts[0] % 12 == 0


def test_fingerprint_changes_with_a_token_and_with_a_cut():
    prints = {
        sequences_of("abcdefghijklmnop", length=8).fingerprint,
        sequences_of("abcdefghijklmnoq", length=8).fingerprint,
        sequences_of("abcdefghijklmnop", length=4).fingerprint,
    }
    assert len(prints) == 3
    assert sequences_of("abcdefghijklmnop", length=8).fingerprint in prints


# ---- Order ----


def drawn(batches, count):
    return [tuple(row.tolist()) for i in range(count) for row in batches[i].inputs["input_ids"]]


def test_every_sequence_is_drawn_once_an_epoch_though_epochs_end_inside_batches():
    sequences = sequences_of("abcdefghijklmnopqrstuvwxyz0123456789", length=5)
    count = len(sequences)
    assert count % 3
    rows = drawn(Batches(sequences, 3, seed=1), count)  # Three epochs.
    for epoch in range(3):
        assert len(set(rows[epoch * count : (epoch + 1) * count])) == count
    assert rows[:count] != rows[count : 2 * count]


def test_order_depends_on_the_seed_and_any_position_can_be_asked_for_first():
    sequences = sequences_of("abcdefghijklmnopqrstuvwxyz0123456789", length=5)
    rows = drawn(Batches(sequences, 2, seed=1), 20)
    assert rows != drawn(Batches(sequences, 2, seed=2), 20)
    late = Batches(sequences, 2, seed=1)
    for position in (19, 0, 11, 10):
        again = [tuple(r.tolist()) for r in late[position].inputs["input_ids"]]
        assert again == rows[2 * position : 2 * position + 2]


def test_evaluation_takes_sequences_in_order_and_stops_at_the_most():
    sequences = sequences_of("abcdefghijklmnopqrst", length=4)
    batches = list(in_order(sequences, 2, most=3))
    assert [len(b.inputs["input_ids"]) for b in batches] == [2, 1]
    assert text_of(batches[1].inputs["input_ids"][0]) == "ijkl"


def test_prefetch_gives_the_same_batches_from_any_position():
    batches = Batches(sequences_of("abcdefghijklmnopqrstuvwxyz", length=4), 2, seed=3)
    prefetch = Prefetch(batches, 5)
    try:
        for position in range(5, 12):
            got = prefetch.next().inputs["input_ids"]
            assert np.array_equal(got, batches[position].inputs["input_ids"])
    finally:
        prefetch.close()


class BrokenBatches:
    def __getitem__(self, position):
        if position == 2:
            raise InvalidArgument(f"batch {position} is broken")
        return position


def test_error_in_the_data_thread_surfaces_where_the_batch_is_wanted():
    prefetch = Prefetch(BrokenBatches(), 0)
    assert (prefetch.next(), prefetch.next()) == (0, 1)
    with pytest.raises(InvalidArgument, match="batch 2 is broken"):
        prefetch.next()
    prefetch.close()


def test_json_lines_of_any_text_come_back_unchanged(tmp_path):
    texts = ["plain", 'quote " and \\', "line\u2028separator", "tab\tand\nnewline"]
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join(json.dumps({"text": t}, ensure_ascii=False) for t in texts))
    corpus = read_documents([str(path)], "jsonl", "train")
    assert [d.text for d in corpus.documents] == texts
    assert [d.place for d in corpus.documents] == [f"{path}:{i}" for i in (1, 2, 3, 4)]
