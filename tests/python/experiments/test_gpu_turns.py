"""experiments/gpu/peers.py and fidelity.py on the host device, with small models."""

from __future__ import annotations

import json
import sys

import pytest

from experiments.gpu import fidelity, peers

NATIVE, CORES = "torch AdamW, fused", "Sluiceway, cores f = 1/4"
FLASH = "FlashAdamW"
SMALL = ["--hidden", "256", "--layers", "1", "--batch", "2", "--sequence", "32", "--steps", "32"]


def run_peers(monkeypatch, out, *arguments: str) -> int:
    command = ["peers.py", "--device", "host", "--shape", "small", "--tokens", "32",
               "--steps", "2", "--warmup", "1", "--turn-limit", "600", "--out", str(out),
               *arguments]  # fmt: skip
    monkeypatch.setattr(sys, "argv", command)
    return peers.main()


def rows_of(out) -> dict[str, dict]:
    return {row["way"]: row for row in json.loads(out.read_text())["rows"]}


def test_a_way_is_measured_in_a_process_and_one_whose_library_is_missing_says_so(
    monkeypatch, tmp_path, capsys
):
    out = tmp_path / "peers.json"
    monkeypatch.setattr(peers, "is_installed", lambda library: library != "flashoptim")
    assert run_peers(monkeypatch, out, "--ways", FLASH, CORES) == 0
    rows = rows_of(out)
    assert rows[FLASH] == {"way": FLASH, "missing": "flashoptim is not installed"}
    assert rows[CORES]["steps"] == 2
    assert rows[CORES]["seconds"] > 0
    assert len(rows[CORES]["losses"]) == 3
    assert f"| {FLASH} | flashoptim is not installed |" in capsys.readouterr().out


def test_what_failed_is_taken_again_and_what_was_measured_is_not(monkeypatch, tmp_path):
    out, asked = tmp_path / "peers.json", []
    answers = {NATIVE: {"failed": "did not end within 30 s", "log": ["x"]}}
    good = {"seconds": 0.1, "torch_bytes": None, "driver_bytes": 1, "process_bytes": 1,
            "losses": [2.0, 1.0]}  # fmt: skip

    def row_of(command, seconds):
        way = command[command.index("--one") + 1]
        asked.append((way, seconds))
        return answers.get(way, good)

    monkeypatch.setattr(peers, "row_of", row_of)
    ways = ["--ways", NATIVE, CORES, "--turn-limit", "30"]
    assert run_peers(monkeypatch, out, *ways) == 1
    assert asked == [(NATIVE, 30), (CORES, 30)], "one that hangs costs its own limit alone"
    assert "seconds" in rows_of(out)[CORES]
    asked.clear()
    answers.clear()
    assert run_peers(monkeypatch, out, *ways) == 0
    assert asked == [(NATIVE, 30)]
    assert list(rows_of(out)) == [NATIVE, CORES]
    assert run_peers(monkeypatch, out, "--seconds", "0") == 0
    assert json.loads(out.read_text())["left"] == len(peers.WAYS) - 2
    with pytest.raises(SystemExit, match="is of --tokens 32, expected 64; give another file"):
        run_peers(monkeypatch, out, "--tokens", "64")


def run_fidelity(monkeypatch, folder, *arguments: str) -> int:
    command = ["fidelity.py", "--device", "host", "--base", str(folder / "base.pt"), *SMALL,
               "--pretrain-seconds", "0.01", "--out", str(folder / "f.json"),
               *arguments]  # fmt: skip
    monkeypatch.setattr(sys, "argv", command)
    return fidelity.main()


@pytest.fixture
def here(monkeypatch):
    """Processes of fidelity.py are calls in this one; `here.asked` has the way and seed of each."""

    def row_of(command, seconds):
        monkeypatch.setattr(sys, "argv", command[2:])  # Without the interpreter and -m.
        args = fidelity.parsed()
        row_of.asked.append("base" if args.pretrain else (args.one, args.seed))
        if args.pretrain:
            return fidelity.failure(lambda: fidelity.pretrain(args))
        if args.one in row_of.hang:
            return {"failed": f"did not end within {seconds:g} s", "log": []}
        return fidelity.failure(lambda: fidelity.fine_tune(args.one, args.seed, args))

    row_of.asked, row_of.hang = [], set()
    monkeypatch.setattr(fidelity, "row_of", row_of)
    monkeypatch.setattr(fidelity, "_TEXT_BYTES", 1 << 20)
    monkeypatch.setattr(fidelity, "_EVALUATED", 4)
    return row_of


def test_every_way_learns_the_other_text_and_a_second_call_goes_on(
    monkeypatch, tmp_path, here, capsys
):
    first, *_, last = fidelity.WAYS
    here.hang = {last}
    assert run_fidelity(monkeypatch, tmp_path, "--seeds", "1", "--at-once", "1") == 1
    assert here.asked == ["base", *((way, 0) for way in fidelity.WAYS)]
    found = json.loads((tmp_path / "f.json").read_text())
    assert found["base"]["steps"] > 0
    losses = {row["way"]: row.get("after") for row in found["rows"]}
    assert losses.pop(last) is None
    assert len(set(losses.values())) == len(losses), "no way is another under a second name"
    for row in found["rows"][:-1]:
        assert row["base"] == found["base"]["id"]
        assert row["after"] < row["before"]
    here.hang = set()
    here.asked.clear()
    assert run_fidelity(monkeypatch, tmp_path, "--seeds", "1", "--at-once", "1") == 0
    assert here.asked == [(last, 0)], "base and finished runs are there"
    assert f"| {first} | 0 |" in capsys.readouterr().out


def test_another_seed_is_another_run_and_time_that_is_over_leaves_it(monkeypatch, tmp_path, here):
    one_way = dict(list(fidelity.WAYS.items())[:1])
    monkeypatch.setattr(fidelity, "WAYS", one_way)
    assert run_fidelity(monkeypatch, tmp_path, "--seconds", "0") == 0
    found = json.loads((tmp_path / "f.json").read_text())
    assert (found["rows"], found["left"]) == ([], 2)
    assert run_fidelity(monkeypatch, tmp_path, "--at-once", "1") == 0
    found = json.loads((tmp_path / "f.json").read_text())
    one, two = found["rows"]
    assert (one["seed"], two["seed"], found["left"]) == (0, 1, 0)
    assert one["before"] == two["before"]
    assert one["after"] != two["after"]


def test_rows_of_another_base_are_dropped(monkeypatch, tmp_path, here):
    monkeypatch.setattr(fidelity, "WAYS", dict(list(fidelity.WAYS.items())[:1]))
    assert run_fidelity(monkeypatch, tmp_path, "--seeds", "1") == 0
    before = json.loads((tmp_path / "f.json").read_text())
    (tmp_path / "base.pt").unlink()
    here.asked.clear()
    monkeypatch.setattr(fidelity, "_BASE_LR", 1e-3)
    assert run_fidelity(monkeypatch, tmp_path, "--seeds", "1") == 0
    after = json.loads((tmp_path / "f.json").read_text())
    assert here.asked[0] == "base"
    assert after["base"]["id"] != before["base"]["id"]
    assert [row["base"] for row in after["rows"]] == [after["base"]["id"]]


def test_a_base_that_cannot_be_trained_is_the_failure(monkeypatch, tmp_path, here):
    monkeypatch.setattr(fidelity, "_PYTHON", ("transformers", "*.no_such_file"))
    assert run_fidelity(monkeypatch, tmp_path) == 1
    found = json.loads((tmp_path / "f.json").read_text())
    assert "failed" in found["base"]
    assert here.asked == ["base"]
