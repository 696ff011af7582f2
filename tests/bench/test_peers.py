"""The peers: named where they are absent, measured in a short cell where they are installed."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.peers import install
from bench.scenarios import GROWING, SCENARIOS, SYSTEMS, cells, why_unavailable

ROOT = Path(__file__).parents[2]
PEERS = [name for name in SYSTEMS if name not in ("floor", "raftmq")]
GROWN = [
    (cell.scenario, cell.system)
    for cell in cells(
        [n for n, each in SCENARIOS.items() if each.operation in GROWING], list(SYSTEMS), 1
    )
]


@pytest.mark.parametrize("name", PEERS)
def test_absent_peer_is_a_line_with_what_installs_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No program, no jar, no client: an entry of None makes an import fail.
    monkeypatch.setattr(install, "FOLDER", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    for module in ("confluent_kafka", "nats", "pika", "pysyncobj"):
        monkeypatch.setitem(sys.modules, module, None)
    reason = why_unavailable(name)
    assert reason is not None
    assert "\n" not in reason
    assert any(how in reason for how in ("bench.peers.install", "uv sync", "apt-get install"))


@pytest.mark.campaign
@pytest.mark.process
@pytest.mark.parametrize("name", PEERS)
def test_installed_peer_is_measured_and_leaves_nothing_behind(name: str, tmp_path: Path) -> None:
    scenario = "consume-100B" if "consume-100B" in SYSTEMS[name].scenarios else "produce-100B"
    rows = rows_of_cell(name, scenario, tmp_path)
    # pysyncobj has no consumers: a produce alone.
    assert len(rows) == len(SCENARIOS[scenario].rows) - (name == "pysyncobj")
    for row in rows:
        assert row["system"] == name
        assert row["messages_per_s"] > 0
        assert row["server_cpu_s_per_million"] > 0
        assert row["server_mib"] > 1


@pytest.mark.campaign
@pytest.mark.process
@pytest.mark.parametrize(("scenario", "name"), GROWN)
def test_scenario_that_grows_reaches_a_small_amount(
    scenario: str, name: str, tmp_path: Path
) -> None:
    (row,) = rows_of_cell(name, scenario, tmp_path, "--scale", "0.005", "--seconds", "2")
    figures = row["figures"]
    assert row["note"] == ""
    amount = max(figures.get(unit, 0) for unit in ("consumers", "queues", "messages"))
    assert amount >= int(SCENARIOS[scenario].amount * 0.005)
    assert all(value >= 0 for value in figures.values())
    assert 0 < row["p50_ms"] <= row["p99_ms"]


def rows_of_cell(name: str, scenario: str, folder: Path, *options: str) -> list[dict[str, Any]]:
    """The rows of a short cell, which leaves nothing behind."""
    if (reason := why_unavailable(name)) is not None:
        pytest.skip(reason)
    command = [sys.executable, "-m", "bench.cell", name, scenario, "--seconds", "0.5", *options]
    environment = os.environ | {"TMPDIR": str(folder)}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    assert list(folder.iterdir()) == []
    said = [json.loads(line) for line in done.stdout.splitlines()]
    return [line for line in said if "phase" not in line and "unsupported" not in line]
