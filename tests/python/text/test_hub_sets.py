"""Data sets of the Hugging Face hub, from a server that stands in for it."""

from __future__ import annotations

import fnmatch
import hashlib
import http.server
import json
import threading

import pytest
from huggingface_hub import constants
from sluiceway.config.file import check_config
from sluiceway.config.schema import with_absolute_paths
from sluiceway.errors import InvalidArgument, IoError
from sluiceway.text.documents import read_documents
from sluiceway.text.files import missing_files

REVISION = "0123456789abcdef0123456789abcdef01234567"
FILES = {
    "README.md": b"# A card",
    "picture.png": b"\x89PNG",
    "data/train-0.jsonl": b'{"text": "first"}\n{"text": "second"}\n',
    "data/test-0.jsonl": b'{"text": "held out"}\n',
    "other/more.txt": b"a text",
}


class _Hub(http.server.BaseHTTPRequestHandler):
    """Answers as the hub does for the data set `someone/tales`, and counts what it sends."""

    sent: list[str] = []  # noqa: RUF012

    def log_message(self, *_: object) -> None:
        """Keep the output of tests clean."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if fnmatch.fnmatch(path, "/api/datasets/someone/tales*"):
            siblings = [{"rfilename": name} for name in FILES]
            about = {"id": "someone/tales", "sha": REVISION, "siblings": siblings}
            if "/tree/" in path:
                about = [
                    {"type": "file", "path": name, "size": len(raw), "oid": name}
                    for name, raw in FILES.items()
                ]
            self._answer(json.dumps(about).encode(), {"Content-Type": "application/json"})
            return
        begin = f"/datasets/someone/tales/resolve/{REVISION}/"
        if not path.startswith(begin):
            self._answer(b"", {"X-Error-Code": "RepoNotFound"}, code=404)
            return
        name = path.removeprefix(begin)
        if self.command == "GET":
            self.sent.append(name)
        etag = hashlib.sha1(FILES[name]).hexdigest()
        self._answer(FILES[name], {"ETag": f'"{etag}"', "X-Repo-Commit": REVISION})

    def _answer(self, body: bytes, headers: dict[str, str], code: int = 200) -> None:
        self.send_response(code)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


@pytest.fixture
def hub(monkeypatch, tmp_path):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    _Hub.sent.clear()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    yield _Hub
    server.shutdown()
    server.server_close()
    thread.join()


def texts(name, part="train"):
    return [document.text for document in read_documents([name], "auto", part).documents]


def test_files_of_the_part_are_downloaded_and_no_others_but_data(hub):
    assert texts("hf://datasets/someone/tales") == ["first", "second"]
    assert sorted(hub.sent) == ["data/test-0.jsonl", "data/train-0.jsonl", "other/more.txt"]
    assert texts("hf://datasets/someone/tales", "eval") == ["held out"]
    assert len(hub.sent) == 3  # They were there.


def test_a_revision_a_folder_a_file_and_a_glob_can_be_named(hub):
    assert texts(f"hf://datasets/someone/tales@{REVISION}/other") == ["a text"]
    assert hub.sent == ["other/more.txt"]
    assert texts("hf://datasets/someone/tales/data/test-0.jsonl") == ["held out"]
    assert texts("hf://datasets/someone/tales/data/t*.jsonl") == ["held out", "first", "second"]


def test_without_a_network_the_files_downloaded_before_are_read(hub, monkeypatch):
    assert texts("hf://datasets/someone/tales") == ["first", "second"]
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert texts("hf://datasets/someone/tales") == ["first", "second"]


@pytest.mark.parametrize("name", ["nobody/tales", "someone/tales/none.jsonl"])
def test_what_is_not_on_the_hub_is_one_line(hub, name):
    with pytest.raises(IoError) as refused:
        texts(f"hf://datasets/{name}")
    assert str(refused.value).startswith("data.train: ")
    assert f"hf://datasets/{name}" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_name_without_an_owner_is_refused():
    with pytest.raises(InvalidArgument, match="expected hf://datasets/OWNER/NAME"):
        texts("hf://datasets/tales")


def test_a_config_keeps_the_name_and_a_plan_asks_no_network(tmp_path):
    name = "hf://datasets/someone/tales"
    config = check_config(
        {"model": {"path": str(tmp_path)}, "data": {"train": [name], "weights": {name: 2}}}
    )
    data = with_absolute_paths(config).data
    assert data.train == [name]
    assert data.weights == {name: 2}
    assert missing_files(data) is None
