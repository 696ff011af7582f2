"""The hall of known bugs: its streams, its detectors, its page, and a sample of runs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import cast

import pytest

from bench.known_bugs.bugs import BUGS, commit_falls_over_a_standing_log
from bench.known_bugs.member import Member
from bench.known_bugs.page import Found, page
from bench.known_bugs.run import HANDLERS, schedule_of
from bench.known_bugs.streams import SILENCE_US_MAX, Streams
from raftmq.chaos.core.loop import Loop
from raftmq.chaos.core.network import Network
from raftmq.checkers import INVARIANTS, Evidence, Moment

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "chaos"


class Listener:
    """A member that records the events it receives."""

    def __init__(self, number: int) -> None:
        self.id = number
        self.lives = 1
        self.is_up = True
        self.is_paused = False
        self.heard: list[str] = []

    def connected(self, other: int) -> None:
        self.heard.append(f"connected {other}")

    def disconnected(self, other: int) -> None:
        self.heard.append(f"disconnected {other}")

    def received(self, sender: int, data: bytes) -> None:
        self.heard.append(f"{len(data)} bytes of {sender}")


class Pair:
    """Two members and the connection between them."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.network = Network(self.loop, Random(1), lambda _: None)
        self.streams = Streams(self.loop, self.network, Random(2))
        self.one, self.other = Listener(1), Listener(2)
        members = [cast("Member", self.one), cast("Member", self.other)]
        self.streams.begin(members)
        self.wait(2_000_000)

    def send(self, message: str) -> bool:
        return self.streams.send(cast("Member", self.one), 2, message)

    def wait(self, microseconds: int) -> None:
        self.loop.run_until(self.loop.now_us + microseconds)


def test_bytes_wait_while_the_network_is_cut_and_keep_their_order() -> None:
    pair = Pair()
    pair.network.cut([(1, 2)])
    for length in range(5):
        assert pair.send("x" * length)
    pair.wait(SILENCE_US_MAX // 2)
    assert pair.other.heard == ["connected 1"]
    pair.network.mend([(1, 2)])
    pair.wait(100_000)
    sizes = [int(line.split()[0]) for line in pair.other.heard[1:]]
    assert len(sizes) == 5
    assert sizes == sorted(sizes)
    assert pair.one.heard == ["connected 2"]


def test_connection_breaks_when_bytes_have_waited_too_long_and_they_are_lost() -> None:
    pair = Pair()
    pair.network.cut([(1, 2)])
    assert pair.send("lost")
    pair.wait(2 * SILENCE_US_MAX)
    assert pair.one.heard == ["connected 2", "disconnected 2"]
    assert not pair.send("nobody there")
    pair.network.mend([(1, 2)])
    pair.wait(2_000_000)
    assert pair.other.heard == ["connected 1", "disconnected 1", "connected 1"]


def test_process_that_ends_breaks_its_connections_and_hears_nothing_of_it() -> None:
    pair = Pair()
    assert pair.send("on its way")
    pair.other.lives, pair.other.is_up = 2, False
    pair.streams.ended(cast("Member", pair.other))
    pair.wait(2_000_000)
    assert pair.other.heard == ["connected 1"]
    assert pair.one.heard == ["connected 2", "disconnected 2"]


def moment(commit: int, last: int, life: int = 1) -> Moment:
    return Moment(0, 1, life, "follower", 1, 0, commit, 0, last, 0)


@pytest.mark.parametrize(
    ("after", "is_shown"),
    [(moment(3, 9), True), (moment(3, 3), False), (moment(1, 9, life=2), False)],
    ids=["log stands", "log was cut", "restarted"],
)
def test_commit_index_that_falls_is_told_from_a_log_that_is_cut(
    after: Moment, is_shown: bool
) -> None:
    evidence = Evidence(timeline=(moment(5, 9), after))
    assert bool(commit_falls_over_a_standing_log(evidence)) is is_shown


def test_every_bug_breaks_a_promise_or_has_a_reason_not_to_be_run() -> None:
    assert {bug.invariant for bug in BUGS if not bug.reason} <= set(INVARIANTS)


def test_schedules_use_only_what_can_happen_to_streams_and_processes() -> None:
    names = {event.fault for seed in range(200) for event in schedule_of(seed).events}
    assert names == set(HANDLERS)
    assert "duplicate" not in names


def test_page_is_what_the_figures_beside_it_say() -> None:
    assert (DOCS / "known-bugs.md").read_text() == page((DOCS / "known-bugs.json").read_text())


def test_published_bugs_were_found_in_the_old_version() -> None:
    old, new = json.loads((DOCS / "known-bugs.json").read_text())["versions"]
    assert Found.from_json(old).to_json() == old
    assert old["version"] == "0.3.11"
    assert len(old["bugs"]) > len(new["bugs"])


def played(hash_seed: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench.known_bugs.play", "--seeds", "1..2", "--seconds", "20"]
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, cwd=ROOT
    )


def test_pysyncobj_plays_the_same_in_two_processes() -> None:
    one, other = played("0"), played("0")
    assert one.returncode == 0, one.stderr
    assert one.stdout == other.stdout
    rows = [json.loads(line) for line in one.stdout.splitlines()]
    assert [row["seed"] for row in rows] == [1, 2]
    assert not any(row["is_vacuous"] for row in rows)
    assert played("1").returncode != 0, "sets of pysyncobj have the order of their hashes"
