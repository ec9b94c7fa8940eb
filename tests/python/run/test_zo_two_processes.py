"""A store of `kind: zo` has one process: others are refused in a line, and it goes on unharmed."""

from __future__ import annotations

import signal

from conftest import assert_short_error, wait_for_step

from experiments.kill_resume.kills import loss_lines, weights_hash


def test_a_second_process_on_a_store_is_refused_and_the_first_ends_in_its_bits(
    sluiceway, tiny_model, write_config, tmp_path
):
    alone, first, second = (tmp_path / name for name in ("alone", "first", "second"))
    config = write_config(
        tiny_model, engine={"kind": "zo", "tier": "disk", "consolidate": 3}, data={"eval": []},
        train={"steps": 30, "lr": 1e-3, "save_every": 2, "weight_decay": 0.1},
        model={"dtype": "bf16"},
    )  # fmt: skip
    shared = ("--set", f"store.path={tmp_path / 'shared'}")
    done = sluiceway("train", config, "--out", alone)
    assert done.code == 0, done.err
    command = sluiceway.start("train", config, "--out", first, *shared)
    wait_for_step(first, 5)
    command.signal(signal.SIGSTOP)  # However fast it is, it has the store now.
    try:
        assert command.is_running()
        store = sorted(tmp_path.joinpath("shared").iterdir())
        assert [path.name for path in store] == ["drive0.sws"]
        before = store[0].read_bytes()
        refused = [
            sluiceway("train", config, "--out", second, *shared),
            sluiceway("export", first, "--to", second, "--step", 0),  # No save is of it.
            sluiceway("store", "verify", tmp_path / "shared"),
        ]
        assert store[0].read_bytes() == before
    finally:
        command.signal(signal.SIGCONT)
    for done in refused:
        assert_short_error(done, 3, "drive0.sws", "is open in another process")
        assert len(done.err.splitlines()) == 1
    assert not second.exists()
    done = command.wait()
    assert done.code == 0, done.err
    assert (weights_hash(first), loss_lines(first)) == (weights_hash(alone), loss_lines(alone))
