"""Failpoints, orders and wrong clocks: the inside of a node's process under test."""

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

from raftmq.broker.cluster import peers
from raftmq.broker.system_world import RealWorld
from raftmq.chaos.real import fault_injection
from raftmq.chaos.real.failpoints import FAILPOINTS, RARE, FailpointFiles, kind_of
from raftmq.chaos.real.fault_injection import (
    FaultyWorld,
    Injector,
    Orders,
    parse_failpoint,
    with_faults,
    write_orders,
)
from raftmq.chaos.real.faults.clocks import ClockEffect, offset_ms
from raftmq.log.files import RealFiles, prepare, publish


def test_there_are_thirty_failpoints_and_rare_ones_are_among_them() -> None:
    assert len(FAILPOINTS) >= 30
    assert len(set(FAILPOINTS)) == len(FAILPOINTS)
    assert set(FAILPOINTS) > RARE


def test_each_call_is_between_its_failpoints(tmp_path: Path) -> None:
    reached: list[str] = []
    files = FailpointFiles(RealFiles(), reached.append)
    folder = str(tmp_path)
    prepare(files, folder, "00000000000000000002.log", [b"abc", b"def"]).close()
    publish(files, folder, "00000000000000000002.log")
    files.unlink(f"{folder}/00000000000000000002.log")
    expected = [
        f"{when}-{call}"
        for call in (
            *("create-segment", "append-segment", "datasync-segment", "rename-segment"),
            *("sync-folder", "unlink-segment"),
        )
        for when in ("before", "after")
    ]
    assert reached == expected
    assert set(reached) <= set(FAILPOINTS)


def test_write_with_a_failpoint_inside_is_whole_when_nothing_happens(tmp_path: Path) -> None:
    class Wanting(list[str]):
        def __call__(self, name: str) -> None:
            self.append(name)

        def wants(self, name: str) -> bool:
            return name == "inside-append-segment"

    reached = Wanting()
    files = FailpointFiles(RealFiles(), reached)
    path = f"{tmp_path}/00000000000000000002.log"
    file = files.create(path)
    file.append([b"abc", b"defgh"])
    assert file.pread(100, 0) == b"abcdefgh"
    assert "inside-append-segment" in reached


def test_files_are_known_by_their_names() -> None:
    names = {
        "g/00000000000000000002.log": "segment",
        "g/00000000000000000002.index.new": "index",
        "g/00000000000000000002.snapshot": "snapshot",
        "g/00000000000000000002.partial": "partial",
        "d/node.json.new": "identity",
        "d/peers.json": "peers",
        "d/LOCK": "other",
    }
    assert {name: kind_of(name) for name in names} == names


@pytest.mark.parametrize("text", ["nowhere", "after-send:0", "after-send:x", "after-send:-1"])
def test_failpoint_that_cannot_be_obeyed_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"failpoint|how many"):
        parse_failpoint(text)


DYING = """
import sys
from raftmq.chaos.real.fault_injection import with_faults
from raftmq.broker.cluster import peers
from raftmq.broker.system_world import RealWorld
import os
world = with_faults(RealWorld(), os.environ)
file = world.files.create(sys.argv[1] + "/00000000000000000002.log")
for number in range(5):
    file.append([b"0123456789"])
    print(number, flush=True)
"""


@pytest.mark.parametrize(
    ("failpoint", "survived", "size"),
    [
        ("before-append-segment:3", 2, 20),
        ("inside-append-segment:3", 2, 25),
        ("after-append-segment:3", 2, 30),
        ("after-append-segment:6", 5, 50),
    ],
)
def test_process_ends_at_its_failpoint_and_not_before(
    tmp_path: Path, failpoint: str, survived: int, size: int
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", DYING, str(tmp_path)],
        env={**os.environ, "RAFTMQ_FAILPOINT": failpoint},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert len(done.stdout.splitlines()) == survived, done.stderr
    assert done.returncode == (0 if survived == 5 else -9)
    assert (tmp_path / "00000000000000000002.log").stat().st_size == size


def test_orders_are_read_again_when_the_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "orders"
    injector = Injector(orders=path)
    world = FaultyWorld(RealWorld(), injector)
    true = RealWorld()
    assert abs(world.now_ms() - true.now_ms()) < 1_000
    write_orders(path, Orders(clocks=[ClockEffect("skew", -60_000, 0)]))
    injector._looked = -1.0
    assert abs(world.now_ms() - true.now_ms() + 60_000) < 1_000
    write_orders(path, Orders())
    injector._looked = -1.0
    assert abs(world.now_ms() - true.now_ms()) < 1_000


def test_world_is_the_same_without_orders() -> None:
    world = with_faults(RealWorld(), {"RAFTMQ_CHAOS": "/nowhere/orders"})
    assert abs(world.now_ms() - RealWorld().now_ms()) < 1_000
    assert isinstance(world.random, Random)


@pytest.mark.parametrize(
    ("kind", "level", "offsets"),
    [
        ("skew", -500, [-500, -500, -500]),
        ("step", 3000, [3000, 3000, 3000]),
        ("drift", 0.1, [0, 5, 1000]),
        ("strobe", 200, [200, -200, 200]),
        ("periodic", 1000, [0, 31, 0]),
    ],
)
def test_clock_effects_follow_the_table(kind: str, level: float, offsets: list[int]) -> None:
    effect = ClockEffect(kind, level, 1_000_000)
    times = [1_000_000, 1_000_050, 1_010_000]
    assert [offset_ms([effect], time) for time in times] == offsets


def test_mutant_of_the_environment_is_planted_in_this_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sound = vars(peers)["give_up_after"]
    with ExitStack() as bugs:
        monkeypatch.setattr(fault_injection, "_bugs", bugs)
        with_faults(RealWorld(), {"RAFTMQ_MUTANT": "kernel-patience"})
        assert vars(peers)["give_up_after"] is not sound
    assert vars(peers)["give_up_after"] is sound
