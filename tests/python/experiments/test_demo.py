"""`make demo`: its ways, its link's rate, what its table says, and what it does on a card."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

import pytest
import yaml
from conftest import REPOSITORY
from rich.console import Console

CONFIGS = REPOSITORY / "configs"

MEASURED = {"device": "host", "flop_per_token": 2e7, "tokens_per_step": 512, "precision": "fp32",
            "seconds": 0.5, "flop_per_s": 2e10, "link_gbps": 0.0328}  # fmt: skip


@pytest.mark.parametrize(
    ("fixed", "gbps", "rate"), [(None, 0.0328, "derived"), (0.5, 0.5, "fixed")]
)
def test_demo_takes_the_derived_link_rate_unless_one_is_fixed(monkeypatch, fixed, gbps, rate):
    from experiments.quickstart import demo

    monkeypatch.setattr(demo, "measured", lambda config, device: dict(MEASURED))
    link = demo.choose_link(Path("any.yaml"), fixed)
    assert (link["gbps"], link["rate"], link["derived_gbps"]) == (gbps, rate, 0.0328)
    assert link["bytes_per_flop"] == pytest.approx(gbps * 1e9 / 2e10)
    line = demo.rates_line(link)
    assert "20 GFLOP/s" in line
    assert "0.0328 GB/s" in line
    assert f"taken: {gbps:.3g} GB/s ({rate})" in line
    assert f"512 tokens a step; link {gbps:.3g} GB/s, {gbps / 0.02:.3g} bytes per kFLOP" in (
        demo.stands_for(link)
    )


def test_demo_runs_at_the_fixed_rate_and_its_table_says_what_it_stands_for(
    write_config, small_model, tmp_path, monkeypatch, capsys
):
    from experiments.quickstart import demo
    from experiments.quickstart.demo_ways import WAYS

    config = write_config(small_model, engine={"kind": "subspace"})
    arguments = ["--config", config, "--out", tmp_path / "out", "--steps", 2, "--link-gbps", 0.25]
    monkeypatch.setattr(sys, "argv", ["demo.py", *map(str, arguments)])
    monkeypatch.setattr(demo, "measured", lambda config, device: dict(MEASURED))
    demo.main()
    written = json.loads((tmp_path / "out" / "demo.json").read_text())
    assert (written["link"]["gbps"], written["link"]["rate"]) == (0.25, "fixed")
    assert written["link"]["derived_gbps"] == 0.0328
    assert list(written["of_native"]) == list(written["runs"]) == list(WAYS)
    assert written["of_native"]["native AdamW"] == {"median": 1.0, "low": 1.0, "high": 1.0}
    assert len(written["turns"]["others_cores"]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "512 tokens a step; link 0.25 GB/s" in said
    assert "of native: median over 1 rounds; their middle half: " in said
    assert re.search(r"others kept \d\.\d\d of \d+ cores busy", said)
    assert "a step of AdamW on disk and disk, codec writes " in said
    lessons = said[said.index("What to take from this:") :]
    assert re.search(r"waits for them: \d\.\d\d times native's step", lessons)
    assert lessons.rstrip().endswith("your data: sluiceway init")
    for folder in ("native", "barrier", "sluiceway", "disk", "codec"):
        resolved = yaml.safe_load((tmp_path / "out" / folder / "config.yaml").read_text())
        assert resolved["device"]["link"]["d2h_gbps"] == 0.25
        assert resolved["device"]["link"]["h2d_gbps"] == 0.25


@pytest.mark.parametrize(
    ("way", "name"), [("AdamW on disk", "disk"), ("disk, codec", "compressed")]
)
def test_rows_of_the_demo_with_states_on_disk_are_the_configs(way, name):
    from sluiceway.config.file import load_config

    from experiments.quickstart.demo_ways import ON_DISK
    from experiments.quickstart.run_folder import as_override

    settings = [f"{key}={as_override(value)}" for key, value in ON_DISK[way][1].items()]
    found = load_config(CONFIGS / "quickstart.yaml", settings)
    frozen = ["engine.embeddings=frozen"]  # As in the other ways.
    assert found == load_config(CONFIGS / f"quickstart_offload_{name}.yaml", frozen)


class Ended:
    """A run of which only the losses count."""

    def __init__(self, before: float, after: float) -> None:
        self.loss_before, self.loss_after = before, after


def test_demo_calls_level_what_rounding_alone_could_have_done():
    from experiments.quickstart.demo import kept_gain

    runs = {"native": Ended(1.5, 1.3), "near": Ended(1.5, 1.289), "far": Ended(1.5, 1.32)}
    text = kept_gain(runs, 0.015)
    assert "native gained 0.200 nats" in text
    assert "end up to 0.015 apart" in text
    assert text.endswith("beside it: near level, far 90 % of that kept")


def test_spread_of_the_demo_is_that_of_several_runs():
    from experiments.quickstart.demo import SPREAD

    found = json.loads(SPREAD.read_text())
    losses = [run["after"] for run in found["rows"]]
    assert len(losses) >= 5
    assert found["spread"] == max(losses) - min(losses) > 0
    assert len({run["before"] for run in found["rows"]}) > 1


def resolved(ways, name):
    """The config of one way, as `sluiceway train` would have it."""
    from sluiceway.config.file import load_config

    from experiments.quickstart.run_folder import as_override

    settings = [f"{key}={as_override(value)}" for key, value in ways[name][1].items()]
    return load_config(CONFIGS / "quickstart.yaml", settings)


def test_the_host_device_has_each_way_once_over_the_throttled_link():
    from experiments.quickstart.demo_ways import WAYS, ways_on

    ways = ways_on("host", 0.0625)
    assert list(ways) == list(WAYS)
    for name in ways:
        device = resolved(ways, name).device
        assert (device.name, device.link.d2h_gbps, device.link.h2d_gbps) == ("host", 0.0625, 0.0625)


def test_a_card_has_its_own_link_and_each_way_that_uses_it_once_more_paced():
    from experiments.quickstart.demo_ways import WAYS, paced, ways_on

    ways = ways_on("cuda:0", 0.5)
    linked = ["full gradients", "cores", "AdamW on disk", "disk, codec"]
    assert [name for name in ways if name not in WAYS] == [paced(name) for name in linked]
    for name in WAYS:
        config = resolved(ways, name)
        assert (config.device.name, config.device.link) == ("cuda:0", None)
        assert config.engine == resolved(ways_on("host", 0.5), name).engine
    for name in linked:
        config = resolved(ways, paced(name))
        assert (config.device.name, config.device.link.d2h_gbps) == ("cuda:0", 0.5)
        assert config.engine == resolved(ways, name).engine
        assert list(ways).index(paced(name)) == list(ways).index(name) + 1
    assert len({folder for folder, _ in ways.values()}) == len(ways)


class MadeUpRun(Ended):
    """A run of which the table is made."""

    def __init__(self, seconds: float) -> None:
        super().__init__(1.5, 1.25)
        self.step_seconds = seconds
        self.rounds = {number: [seconds] for number in range(8)}
        self.stall_share = 0.25

    def bytes_per_step(self, link: str) -> float:
        return 3 << 20

    def peak_bytes(self, tier: str) -> int:
        return 5 << 20


def test_the_table_of_a_card_has_a_row_for_each_link_and_says_which():
    from experiments.quickstart.demo import choose_link, rates_line, spread_line, table_of
    from experiments.quickstart.demo_ways import ways_on

    link = {**MEASURED, "device": "cuda:0", "own_link_gbps": {"d2h": 24.25, "h2d": 25.5}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("experiments.quickstart.demo.measured", lambda config, device: dict(link))
        link = choose_link(Path("any.yaml"), None, device="auto")
    names = list(ways_on("cuda:0", 0.0328))
    runs = {name: MadeUpRun(0.01 * (2 + place)) for place, name in enumerate(names)}
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(table_of(runs, link))
    text = console.export_text()
    said = " ".join(text.split())
    assert "the same model on cuda:0, over its own link and over a laptop's" in said
    assert "512 tokens a step; paced link 0.0328 GB/s" in said
    rows = [line for line in text.splitlines() if "1.250" in line]
    assert [row.split("0.")[0].strip() for row in rows] == [
        "native AdamW", "full gradients", "paced", "cores", "paced", "Sluiceway",
        "AdamW on disk", "paced", "disk, codec", "paced",
    ]  # fmt: skip
    assert rows[2].split()[1:3] == ["0.040", "2.00x"]
    assert "2.00 to 2.00 (full gradients, paced)" in spread_line(runs)
    assert "20 GFLOP/s on cuda:0 in fp32; its own link: 24.2 GB/s down, 25.5 GB/s up; " in (
        rates_line(link)
    )


@pytest.mark.parametrize(
    ("loads", "verdict"),
    [
        ([0.0, 0.1, 0.02], "the machine was quiet"),
        ([1.0, 1.2, 0.2], "the machine was busy; ways that wait"),
    ],
)
def test_the_demo_says_how_busy_others_kept_the_machine(loads, verdict):
    from experiments.quickstart.demo import load_line

    line = load_line(loads, 2)
    mean = sum(loads) / 3
    assert line.startswith(
        f"others kept {mean:.2f} of 2 cores busy, and {max(loads):.2f} in the busiest of 3 rounds"
    )
    assert verdict in line
