"""Tokens of large data: cut into pieces for the tokenizer, kept in files, mapped from there."""

from __future__ import annotations

import json
import os
import pwd

import numpy as np
import pytest
from sluiceway.config.schema import DataSection
from sluiceway.errors import InvalidArgument
from sluiceway.text import tokens as module
from sluiceway.text.documents import Corpus, Document
from sluiceway.text.pydoc_text import pydoc_text
from sluiceway.text.sequences import make_sequences
from sluiceway.text.tokens import tokenise
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

CUT = DataSection(train=["t"], sequence_length=32)


@pytest.fixture(scope="module")
def tokenizer():
    """Byte-level BPE with merges, split by white space as GPT-2's is; it begins each text."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=["<s>", "</s>"], show_progress=False
    )
    bpe.train_from_iterator(pydoc_text("eval"), trainer)
    bpe.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token="<s>", eos_token="</s>")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Folder in which tokens of data of any size are cached."""
    monkeypatch.setattr(module, "_KEPT_FROM", 0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "sluiceway" / "tokens"


def corpus_of(*texts):
    turns = [{"role": "user", "content": "two?"}, {"role": "assistant", "content": "three"}]
    documents = [Document(f"t:{k}", text) for k, text in enumerate(texts, start=1)]
    return Corpus([*documents, Document("t:0", messages=turns)])


def chatting(tokenizer, template="{% for m in messages %}{{ m.content }};{% endfor %}"):
    tokenizer.chat_template = template
    return tokenizer


def kept_files(cache):
    return sorted(str(p.relative_to(cache)) for p in cache.rglob("*") if p.is_file())


# ---- Pieces ----


@pytest.mark.parametrize(
    "text",
    ["", "short", "x" * 1000, "line\n" * 200, "para\n\n" * 200, "a b\n" + "y" * 500 + "\nc\n" * 99],
)
def test_cuts_are_in_order_and_no_piece_is_long(monkeypatch, text):
    monkeypatch.setattr(module, "_PIECE", 16)
    cuts = module._cuts(text)
    sizes = np.diff([0, *cuts, len(text)])
    assert sizes.max() <= 32
    assert len(text) < 32 or sizes.min() > 0
    assert len(cuts) <= len(text) // 16


def test_text_in_pieces_has_the_tokens_of_the_text_as_one(monkeypatch, tokenizer):
    text = max(pydoc_text("train"), key=len)
    whole = tokenizer(text)["input_ids"]
    assert (whole[0], whole[-1]) == (0, 1)
    monkeypatch.setattr(module, "_PIECE", 500)
    monkeypatch.setattr(module, "_OVERLAP", 100)
    assert len(module._cuts(text)) > 20
    stream = tokenise(Corpus([Document("t:1", text)]), tokenizer)
    assert stream.tokens.tolist() == whole
    assert stream.lengths.tolist() == [len(whole)]


def test_pieces_of_a_tokenizer_that_begins_every_text_with_a_blank_have_no_more(monkeypatch):
    letters = sorted(set("".join(pydoc_text("train"))) | {"\u2581"})
    bpe = Tokenizer(models.BPE(vocab={c: k for k, c in enumerate(letters)}, merges=[]))
    bpe.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )  # As Llama 2's.
    made = PreTrainedTokenizerFast(tokenizer_object=bpe)
    text = max(pydoc_text("train"), key=len)
    monkeypatch.setattr(module, "_PIECE", 500)
    stream = tokenise(Corpus([Document("t:1", text)]), made)
    assert stream.tokens.tolist() == made(text)["input_ids"]


@pytest.mark.parametrize("written", [False, True])
def test_text_has_one_begin_token_whether_a_template_wrote_it_or_not(tokenizer, written):
    text = tokenizer.bos_token * written + "a text"
    stream = tokenise(Corpus([Document("t:1", text)]), tokenizer)
    assert stream.tokens.tolist() == tokenizer("a text")["input_ids"]
    assert stream.tokens.tolist().count(tokenizer.bos_token_id) == 1
    answer = tokenise(Corpus([Document("t:1", " and more", prompt=text)]), tokenizer)
    assert answer.tokens.tolist() == tokenizer("a text and more")["input_ids"]
    assert tokenizer.decode(answer.tokens[answer.learned]).startswith("\u0120and ")


@pytest.mark.parametrize("end", [None, "</s>"])
def test_what_a_tokenizer_adds_to_a_text_is_once_at_its_ends(monkeypatch, end):
    letters = {letter: k for k, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    bpe = Tokenizer(models.BPE(vocab=letters, merges=[]))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.add_special_tokens(["[CLS]", "</s>"])
    ids = [(name, bpe.token_to_id(name)) for name in ("[CLS]", "</s>")]
    bpe.post_processor = processors.TemplateProcessing(single="[CLS] $A </s>", special_tokens=ids)
    made = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=end)
    text = "some words. " * 300
    whole = made(text)["input_ids"]
    assert whole[-1] == ids[1][1]
    monkeypatch.setattr(module, "_PIECE", 500)
    monkeypatch.setattr(module, "_OVERLAP", 100)
    for written in (text, text + "</s>" if end else text):
        stream = tokenise(Corpus([Document("t:1", written)]), made)
        assert stream.tokens.tolist() == whole


# ---- What is kept ----


def test_tokens_are_kept_and_mapped_and_the_tokenizer_is_not_asked_again(
    cache, tokenizer, monkeypatch
):
    corpus = corpus_of("one text\n", "  ", "another, äé")
    chatting(tokenizer)
    first = tokenise(corpus, tokenizer)
    assert len(kept_files(cache)) == 4
    monkeypatch.setattr(module, "_tokens_of", None)
    again = tokenise(corpus, tokenizer)
    monkeypatch.undo()
    plain = tokenise(corpus, tokenizer)
    assert isinstance(again.tokens, np.memmap)
    assert not isinstance(plain.tokens, np.memmap)
    for name in ("tokens", "learned", "lengths"):
        expected = getattr(plain, name)
        for stream in (first, again):
            assert getattr(stream, name).dtype == expected.dtype
            assert np.array_equal(getattr(stream, name), expected)
    assert again.lengths[1] == 0
    assert 0 < again.learned.sum() < len(again.tokens)


def test_sequences_of_mapped_tokens_have_the_fingerprint_of_those_in_memory(
    cache, tokenizer, monkeypatch
):
    corpus = corpus_of(*pydoc_text("eval")[:4])
    chatting(tokenizer)
    mapped = make_sequences(corpus, tokenizer, CUT, "train", 600)
    monkeypatch.undo()
    assert make_sequences(corpus, tokenizer, CUT, "train", 600).fingerprint == (mapped.fingerprint)


def test_other_text_template_or_merges_are_other_tokens(cache, tokenizer):
    tokenise(corpus_of("a"), chatting(tokenizer))
    tokenise(corpus_of("b"), tokenizer)
    tokenise(
        corpus_of("a"), chatting(tokenizer, "{% for m in messages %}{{ m.content }}{% endfor %}")
    )
    tokenizer.add_tokens(["text"])
    tokenise(corpus_of("a"), tokenizer)
    tokenizer.bos_token = "x"  # Which a template may print.
    tokenise(corpus_of("a"), tokenizer)
    assert len(kept_files(cache)) == 5 * 4


@pytest.mark.parametrize("name", ["tokens", "learned", "lengths", "checksum"])
@pytest.mark.parametrize("size", [None, 0, 4, 7])
def test_file_that_is_cut_or_missing_is_made_again(cache, tokenizer, name, size):
    corpus = corpus_of("one text")
    expected = tokenise(corpus, chatting(tokenizer)).tokens.tolist()
    path = next(cache.glob(f"*/{name}"))
    content = path.read_bytes()
    path.unlink() if size is None else os.truncate(path, size)
    assert tokenise(corpus, tokenizer).tokens.tolist() == expected
    assert path.read_bytes() == content
    assert len(kept_files(cache)) == 4


def test_another_marked_template_has_other_tokens(cache, tokenizer, monkeypatch):
    tokenizer.chat_template = "x"
    for marked in ("{{ messages }}", "{{ messages }} "):
        monkeypatch.setattr(module, "marked_template", lambda *_, marked=marked: marked)
        monkeypatch.setattr(
            module, "conversation_tokens", lambda *_: (np.ones(3, np.int32), np.ones(3, bool))
        )
        tokenise(corpus_of("one"), tokenizer)
    assert len(kept_files(cache)) == 2 * 4


@pytest.mark.parametrize("name", ["tokens", "learned", "lengths", "checksum"])
def test_file_with_a_changed_bit_is_made_again(cache, tokenizer, name):
    corpus = corpus_of("one text", "another")
    expected = tokenise(corpus, chatting(tokenizer)).tokens.tolist()
    path = next(cache.glob(f"*/{name}"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert tokenise(corpus, tokenizer).tokens.tolist() == expected
    assert path.read_bytes() != content


# ---- What is not ----


def test_cache_that_cannot_be_written_is_done_without(cache, tokenizer):
    cache.parent.mkdir()
    cache.write_text("a file where the folder should be")
    stream = tokenise(corpus_of("one text"), chatting(tokenizer))
    assert not isinstance(stream.tokens, np.memmap)
    assert len(stream.tokens) == stream.lengths.sum() > 0


def test_conversation_that_is_refused_leaves_nothing_behind(cache, tokenizer):
    with pytest.raises(InvalidArgument, match="t:0: has messages, but the model's tokenizer has"):
        tokenise(corpus_of("one text"), chatting(tokenizer, None))
    assert kept_files(cache) == []
    assert list(cache.iterdir()) == []


def test_user_without_a_home_has_no_cache(tmp_path, monkeypatch, tokenizer, cache):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    stream = tokenise(corpus_of("one text"), chatting(tokenizer))
    assert not isinstance(stream.tokens, np.memmap)
    assert not (tmp_path / "~").exists()


def test_small_data_writes_nothing(tmp_path, monkeypatch, tokenizer):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tokenise(corpus_of("one text"), chatting(tokenizer))
    assert list(tmp_path.iterdir()) == []


def test_command_keeps_the_tokens_of_large_data_and_says_once_that_it_makes_them(
    python_m_sluiceway, tiny_model, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with (tmp_path / "x.jsonl").open("w") as file:
        for number in range(43):  # A little over what is kept.
            file.write(json.dumps({"text": f"{number} {'word ' * 20_000}"}) + "\n")
    options = ["--data", "x.jsonl", "--format", "jsonl", "--sequences", 1]
    for said in ("sluiceway: tokenising 4,300,119 characters, which is done once\n", ""):
        outcome = python_m_sluiceway("eval", tiny_model, *options, cwd=tmp_path)
        assert outcome.code == 0, outcome.err
        assert outcome.err == said
    (folder,) = (tmp_path / "cache" / "sluiceway" / "tokens").iterdir()
    count = (folder / "learned").stat().st_size
    assert count > module._KEPT_FROM
    assert (folder / "tokens").stat().st_size == 4 * count


@pytest.mark.parametrize("packing", [False, True])
def test_documents_without_a_token_are_an_error(tokenizer, packing):
    with pytest.raises(InvalidArgument, match="0 tokens in all"):
        make_sequences(
            Corpus([Document("t:1", "  ")]),
            tokenizer,
            CUT.model_copy(update={"packing": packing}),
            "train",
            600,
        )
