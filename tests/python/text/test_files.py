"""Files of every format give the same documents, and what cannot be read is refused with a line."""

from __future__ import annotations

import csv
import datetime
import json
import os
import re
import stat
import sys
from collections import Counter

import datasets
import pyarrow
import pyarrow.parquet
import pytest
from conftest import assert_short_error
from sluiceway.config.schema import DataSection
from sluiceway.errors import InvalidArgument, IoError, Unavailable
from sluiceway.text.documents import read_corpora, read_documents, read_held_out

TEXTS = [
    "plain",
    'quote " and \\',
    "two\nlines",
    "comma, semicolon; tab\t",
    "äé 漢字 😀",
    "{}",
    "12",
]
RECORDS = [{"text": text} for text in TEXTS]


def lines_of(records):
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def written(folder, kind):
    """Write RECORDS in a format, and return the name for data.train."""
    path = folder / f"data.{kind}"
    if kind in ("jsonl", "ndjson", "txt", "log", "JSONL"):
        path.write_text(lines_of(RECORDS))
    elif kind == "json":
        path.write_text(json.dumps(RECORDS, indent=2))
    elif kind == "array.txt":
        path.write_text("\n " + json.dumps(RECORDS))
    elif kind in ("csv", "tsv", "semicolon.csv"):
        delimiter = {"csv": ",", "tsv": "\t", "semicolon.csv": ";"}[kind]
        with path.open("w", newline="") as file:
            rows = csv.writer(file, delimiter=delimiter)
            rows.writerows([["id", "text"], *([str(k), t] for k, t in enumerate(TEXTS))])
    elif kind == "quoted.csv":
        path.write_text('"a,b";"text"\n' + "".join(f"1;{_cell(t)}\n" for t in TEXTS))
    elif kind == "mark.csv":
        path.write_text("\ufeff" + "text\r\n" + "".join(f"{_cell(t)}\r\n" for t in TEXTS))
    elif kind == "utf16.jsonl":
        path.write_bytes(lines_of(RECORDS).encode("utf-16"))
    elif kind == "parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(RECORDS), path, row_group_size=2)
    elif kind == "saved":
        datasets.Dataset.from_list(RECORDS).save_to_disk(path)
    elif kind == "saved_dict":
        other = datasets.Dataset.from_list([{"text": "held out"}])
        whole = datasets.Dataset.from_list(RECORDS)
        datasets.DatasetDict({"train": whole, "test": other}).save_to_disk(path)
    return str(path)


def _cell(text):
    return '"' + text.replace('"', '""') + '"'


KINDS = ["jsonl", "ndjson", "JSONL", "json", "txt", "log", "array.txt", "csv", "tsv",
         "semicolon.csv", "quoted.csv", "mark.csv", "utf16.jsonl", "parquet", "saved",
         "saved_dict"]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_every_format_gives_the_same_texts(tmp_path, kind):
    corpus = read_documents([written(tmp_path, kind)], "auto", "train")
    assert [d.text for d in corpus.documents] == TEXTS
    assert corpus.kinds() == {"texts": len(TEXTS)}
    assert corpus.files == 1


@pytest.mark.parametrize("kind", ["utf-16", "utf-16-le", "utf-16-be", "utf-8", "utf-8-sig"])
def test_text_of_any_mark_is_read_as_what_it_is_or_refused(tmp_path, kind):
    (tmp_path / "x.txt").write_bytes("plain text, äé\n".encode(kind))
    if kind in ("utf-16-le", "utf-16-be"):  # Without a mark.
        with pytest.raises(InvalidArgument, match=r"x\.txt: is binary, or text in UTF-16"):
            read_documents([str(tmp_path / "x.txt")], "auto", "train")
        return
    corpus = read_documents([str(tmp_path / "x.txt")], "auto", "train")
    assert [d.text for d in corpus.documents] == ["plain text, äé\n"]


def test_lines_of_a_json_array_and_of_csv_are_those_of_the_file(tmp_path):
    (tmp_path / "a.json").write_text('[\n {"text": "a"},\n\n {"text":\n "b"}, {"text": "c"}\n]\n')
    (tmp_path / "b.csv").write_text('text\na\n\n"b\nb"\nc\n')
    for name, lines in (("a.json", [2, 4, 5]), ("b.csv", [2, 4, 6])):
        corpus = read_documents([str(tmp_path / name)], "auto", "train")
        assert [int(d.place.rsplit(":", 1)[1]) for d in corpus.documents] == lines


def test_folder_is_all_its_files_of_data_and_no_others(tmp_path):
    (tmp_path / "deep" / ".cache").mkdir(parents=True)
    (tmp_path / "b.txt").write_text("second")
    (tmp_path / "a.jsonl").write_text('{"text": "first"}\n')
    (tmp_path / "deep" / "c.csv").write_text("text\nthird\n")
    (tmp_path / "CARD").with_suffix(".md").write_text("of the set")
    (tmp_path / "deep" / ".cache" / "d.txt").write_text("hidden")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\0\0")
    corpus = read_documents([str(tmp_path)], "auto", "train")
    assert [d.text for d in corpus.documents] == ["first", "second", "third"]
    assert corpus.files == 3


def test_folder_with_parts_is_the_part_that_is_read(tmp_path):
    for part in ("train", "test", "validation"):
        (tmp_path / f"{part}-00000-of-1.jsonl").write_text(lines_of([{"text": part}]))
    (tmp_path / "notes").with_suffix(".md").write_text("a card")
    for part, expected in (("train", ["train"]), ("eval", ["test", "validation"])):
        corpus = read_documents([str(tmp_path)], "auto", part)
        assert [d.text for d in corpus.documents] == expected


def test_parts_that_nobody_reads_are_named(tmp_path, capsys):
    texts = datasets.Dataset.from_list([{"text": "a"}])
    names = ["train", "b", "c", "d", "e"]
    datasets.DatasetDict(dict.fromkeys(names, texts)).save_to_disk(tmp_path / "set")
    read_corpora(DataSection(train=[str(tmp_path / "set")]))
    said = f"data.train: not read: {tmp_path}/set/b, {tmp_path}/set/c, {tmp_path}/set/d and 1 more;"
    assert said in capsys.readouterr().err
    read_corpora(DataSection(train=[str(tmp_path / "set")], eval=[str(tmp_path / "set" / "b")]))
    assert capsys.readouterr().err == ""


def test_tables_with_values_that_are_no_json_are_read(tmp_path):
    day = datetime.datetime(2024, 1, 1, 12)
    turns = [{"role": "user", "content": "q", "at": day}, {"role": "assistant", "content": "a"}]
    row = {"messages": turns, "picture": b"\xff\xd8", "year": 2**40}
    table = pyarrow.Table.from_pylist([row])
    years = pyarrow.array([2**52], pyarrow.timestamp("s"))  # Beyond Python's dates; not read.
    table = table.set_column(table.column_names.index("year"), "year", years)
    pyarrow.parquet.write_table(table, tmp_path / "x.parquet")
    (document,) = read_documents([str(tmp_path / "x.parquet")], "auto", "train").documents
    assert document.messages[0] == {"role": "user", "content": "q", "at": str(day)}
    pyarrow.parquet.write_table(pyarrow.table({"txt": ["a"]}), tmp_path / "y.parquet")
    with pytest.raises(InvalidArgument, match="has txt, expected a string text"):
        read_documents([str(tmp_path / "y.parquet")], "auto", "train")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x.txt", b"PAR1\x15\x04", "x.txt: is Parquet, expected text"),
        ("x.jsonl", b"\x1f\x8b\x08", "x.jsonl: is compressed by gzip"),
        ("x", b"MZ\0\0\0", "x: is binary"),
        ("x.jsonl", b"\xff\xfe{", "x.jsonl: begins as UTF-16, and byte"),
        ("x.parquet", b"PAR1 but no more", "x.parquet: cannot be read, Parquet magic"),
        ("x.csv", b"text,n\na\n", "x.csv:2: has 1 cells, expected 2"),
        ("x.csv", b'text\n"a" b\n', "x.csv:2: is not CSV"),
        ("x.csv", b'text\n"a\n', "x.csv:2: is not CSV"),
        ("x.csv", b"text,text\na,b\n", "x.csv:1: has two columns text"),
        ("x.csv", b"txt\na\n", "x.csv:2: has txt, expected a string text"),
        ("x.json", b'[{"text": "a"},\n {"text": }]', "x.json:2: is not JSON"),
        ("x.json", b'[{"text": "a"}\n {"text": "b"}]', "x.json:1: is not JSON"),
        ("x.json", b'[{"text": "a"}, 3]', "x.json:1: is a int"),
        ("x.json", b'[{"text": "a"}', "x.json:1: is not JSON"),
        ("x.json", b'[{"text": "a"}] [', "x.json:1: is not JSON"),
        ("x.json", b"[" * 100_000, "x.json:1: is not JSON"),
        ("x.txt", b'{"text": "a"}\n{"text"', "x.txt:2, column 8: is not JSON"),
        ("x.txt", b'{"text": "a\n{"text": "b"}\n', "x.txt:1, column 10: is not JSON"),
        ("x.txt", b"{'text': 'a'}\n{'text': 'b'}\n", "x.txt:1, column 2: is not JSON"),
        ("x.json", b'[{"text": "a"},]', "x.json:1: is not JSON"),
        ("x.txt", "a".encode("utf-32"), "x.txt: is binary"),
        ("x.txt", b"a" * 100_000 + b"\0", "x.txt: is binary"),
        ("x.txt", bytes(range(1, 256)) * 9, "x.txt: 1152 of 2295 bytes are not UTF-8"),
        ("x.csv", b"a,b,,\n1,2,3,4\n", "x.csv:2: has , a, b, expected a string text"),
        ("x.jsonl", b'{"text": null}', "x.jsonl:1: has text (null), expected a string text"),
    ],
)  # fmt: skip
def test_file_that_cannot_be_read_is_refused_with_its_line(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidArgument) as refused:
        read_documents([str(tmp_path / name)], "auto", "train")
    assert words in str(refused.value)
    assert str(refused.value).count("\n") == 0


def test_json_that_shall_be_read_as_text_is(tmp_path):
    (tmp_path / "x.txt").write_text(lines_of(RECORDS))
    corpus = read_documents([str(tmp_path / "x.txt")], "text", "train")
    assert [d.text for d in corpus.documents] == [lines_of(RECORDS)]


def test_text_that_begins_with_a_bracket_is_text(tmp_path):
    texts = ["[1] A. Author, title.\n", "{curly} and more\n", "[{not json\n", "[\n", "{"]
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.txt").write_text(text)
    corpus = read_documents([str(tmp_path)], "auto", "train")
    assert [d.text for d in corpus.documents] == texts


def test_folders_that_hold_no_data_are_refused(tmp_path):
    (tmp_path / "x.png").write_bytes(b"\x89PNG")
    with pytest.raises(InvalidArgument, match="is a folder without files of data, expected names"):
        read_documents([str(tmp_path)], "auto", "train")
    os.mkfifo(tmp_path / "pipe")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    with pytest.raises(InvalidArgument, match="is not a regular file"):
        read_documents([str(tmp_path / "pipe")], "auto", "train")


def test_part_of_a_saved_set_is_chosen_by_its_name(tmp_path):
    folder = written(tmp_path, "saved_dict")
    held_out = read_documents([folder], "auto", "eval")
    assert [d.text for d in held_out.documents] == ["held out"]
    one = datasets.Dataset.from_list(RECORDS)
    datasets.DatasetDict({"a": one, "b": one}).save_to_disk(tmp_path / "named")
    with pytest.raises(InvalidArgument, match="has a, b, expected train; name the folder of one"):
        read_documents([str(tmp_path / "named")], "auto", "train")
    assert len(read_documents([str(tmp_path / "named" / "b")], "auto", "train").documents) == 7
    (tmp_path / "named" / "a" / "data-00000-of-00001.arrow").unlink()
    with pytest.raises((InvalidArgument, IoError), match="cannot be read"):
        read_documents([str(tmp_path / "named" / "a")], "auto", "train")


def test_missing_library_is_named_with_the_command_that_installs_it(tmp_path, monkeypatch):
    path = written(tmp_path, "parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(Unavailable, match=r"pip install 'sluiceway\[train\]'"):
        read_documents([path], "auto", "train")


# ---- Parts ----


def test_share_that_is_held_out_is_the_same_every_time_and_no_document_is_in_both(tmp_path):
    (tmp_path / "x.jsonl").write_text(lines_of({"text": f"text {k}"} for k in range(200)))
    data = DataSection(train=[str(tmp_path / "x.jsonl")], split=0.02)
    train, held_out = read_corpora(data)
    texts = [[d.text for d in part.documents] for part in (train, held_out)]
    assert [len(part) for part in texts] == [196, 4]
    assert not set(texts[0]) & set(texts[1])
    assert [d.text for d in read_held_out(data).documents] == texts[1]
    for share, count in ((1e-9, 1), (0.999999, 199)):
        part = read_held_out(data.model_copy(update={"split": share}))
        assert len(part.documents) == count


def test_one_text_is_cut_at_a_blank_and_one_conversation_cannot_be_split(tmp_path):
    (tmp_path / "x.txt").write_text("one " * 100)
    for share, held in ((0.1, 40), (1e-9, 4), (0.999, 396)):
        data = DataSection(train=[str(tmp_path / "x.txt")], split=share)
        train, held_out = read_corpora(data)
        texts = [d.text for d in (*train.documents, *held_out.documents)]
        assert "".join(texts) == "one " * 100
        assert abs(len(texts[1]) - held) <= 4
        assert [d.text for d in read_held_out(data).documents] == texts[1:]
    (tmp_path / "x.txt").write_text("one")
    with pytest.raises(InvalidArgument, match="is one text without a blank"):
        read_corpora(DataSection(train=[str(tmp_path / "x.txt")], split=0.5))
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    (tmp_path / "x.jsonl").write_text(lines_of([{"messages": talk}]))
    with pytest.raises(InvalidArgument, match=r"data\.split: there is one document"):
        read_corpora(DataSection(train=[str(tmp_path / "x.jsonl")], split=0.5))


def test_weights_repeat_the_documents_of_a_name_and_take_a_part_of_another(tmp_path):
    names = [str(tmp_path / name) for name in ("a.jsonl", "b.jsonl", "c.jsonl")]
    for name in names:
        records = ({"text": f"{name[-7]} {k}"} for k in range(10))
        (tmp_path / name).write_text(lines_of(records))
    data = DataSection(train=names, weights={names[0]: 2.5, names[2]: 0.3})
    texts = [d.text for d in read_corpora(data)[0].documents]
    counts = {kind: Counter(t for t in texts if t[0] == kind) for kind in "abc"}
    assert {kind: sum(each.values()) for kind, each in counts.items()} == {"a": 25, "b": 10, "c": 3}
    assert sorted(counts["a"].values()) == [2] * 5 + [3] * 5
    assert set(counts["b"].values()) == set(counts["c"].values()) == {1}
    assert texts == [d.text for d in read_corpora(data)[0].documents]
    # What is held out is so whatever the weights, and none of it is trained on.
    data = data.model_copy(update={"split": 0.2})
    train, held_out = read_corpora(data)
    assert [d.text for d in held_out.documents] == [d.text for d in read_held_out(data).documents]
    assert len({d.text for d in held_out.documents}) == 6
    assert not {d.text for d in held_out.documents} & {d.text for d in train.documents}


def test_weights_that_suit_no_data_are_refused(tmp_path):
    (tmp_path / "x.txt").write_text("one text")
    name = str(tmp_path / "x.txt")
    with pytest.raises(ValueError, match=r"weights has y\.txt, expected a name that is in train"):
        DataSection(train=[name], weights={"y.txt": 2})
    with pytest.raises(ValueError, match="greater than 0"):
        DataSection(train=[name], weights={name: 0})
    with pytest.raises(InvalidArgument, match=r"leave no document of data\.train"):
        read_corpora(DataSection(train=[name], weights={name: 0.2}))


def test_run_with_weights_says_so_and_has_the_documents_as_often(
    sluiceway, tiny_model, write_config, tmp_path
):
    (tmp_path / "x.jsonl").write_text(lines_of({"text": f"text of {k}"} for k in range(40)))
    data = {"train": ["x.jsonl", "pydoc"], "eval": [], "packing": False, "overlong": "truncate"}
    data |= {"weights": {"x.jsonl": 3}}
    config = write_config(tiny_model, data=data, train={"steps": 1})
    outcome = sluiceway("train", config, "--out", tmp_path / "out", cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    found = re.search(r"data: ([\d,]+) texts in 1 file as data.weights says; ", outcome.out)
    without = len(read_corpora(DataSection(train=["pydoc"]))[0].documents)
    assert int(found[1].replace(",", "")) == 120 + without
    outcome = sluiceway("resume", tmp_path / "out", "--set", "train.steps=2")
    assert outcome.code == 0, outcome.err


def test_run_on_json_lines_learns_the_texts_and_says_what_it_found(
    sluiceway, tiny_model, write_config, tmp_path
):
    (tmp_path / "x.jsonl").write_text(lines_of({"text": f"text of {k}"} for k in range(40)))
    data = {"train": [str(tmp_path / "x.jsonl")], "eval": [], "split": 0.1, "packing": False}
    config = write_config(tiny_model, data=data, train={"steps": 1})
    outcome = sluiceway("train", config, "--out", tmp_path / "out")
    assert outcome.code == 0, outcome.err
    said = outcome.out.splitlines()
    assert said[0].endswith("data: 36 texts in 1 file; 36 sequences of at most 32 tokens")
    assert "held out: 4 texts in 1 file; 4 sequences" in said[1]
    assert said[2] == "native: 1 step of 2 sequences: 0.0556 epochs"
    assert re.fullmatch(r"native: trains 2\d\.\d k of 2\d\.\d k parameters", said[3])
    counts = json.loads((tmp_path / "out" / "summary.json").read_text())["data"]
    assert (
        counts["train_tokens"]
        == sum(len(f"text of {k}") + 1 for k in range(40)) - (counts["eval_tokens"])
    )
    outcome = sluiceway("eval", tmp_path / "out")
    assert outcome.code == 0, outcome.err
    assert "4 of 4 sequences" in outcome.out
    assert "10 % of the run's data" in outcome.out
    with (tmp_path / "x.jsonl").open("a") as file:
        file.write(lines_of([{"text": "another one"}]))
    outcome = sluiceway("eval", tmp_path / "out")
    assert_short_error(outcome, 2, "the data has changed since the run began, so what is held out")


def test_held_out_text_is_given_once(sluiceway, tiny_model, write_config):
    config = write_config(tiny_model, data={"split": 0.1})
    assert_short_error(sluiceway("train", config), 2, "has eval and split, expected one of them")


def test_plan_and_dry_run_say_that_a_file_is_missing(sluiceway, tiny_model, write_config, tmp_path):
    config = write_config(tiny_model, data={"train": ["pydoc", "none.jsonl"]})
    for command in (["plan", config, "--json"], ["train", config, "--dry-run", "--json"]):
        outcome = sluiceway(*command, cwd=tmp_path)
        assert outcome.code == 0, outcome.err
        assert outcome.err.startswith("sluiceway: train would be refused here: data.train: there")
        assert json.loads(outcome.out)["engine"] == "native"
