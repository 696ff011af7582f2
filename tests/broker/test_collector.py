"""Full collections of a node's process. Each test has an interpreter of its own, whose collector it
changes."""

import subprocess
import sys

PROGRAM = """
import gc
import sys

from raftmq.broker.collector import DOUBLED_TIMES, Collector


class Ring:
    "An object in a cycle, which counts those that live."

    living = 0

    def __init__(self):
        self.ring = self
        Ring.living += 1

    def __del__(self):
        Ring.living -= 1


def full_collections():
    return gc.get_stats()[2]["collections"]


def grow_old(count):
    "That many cycles that live through two collections of the young, as others come."
    rings = [Ring() for _ in range(count)]
    gc.collect(1)
    return rings


collector = Collector(spare_blocks=0)
first = full_collections()
at_start = sys.getallocatedblocks()
"""


def run_program(text: str) -> None:
    subprocess.run([sys.executable, "-c", PROGRAM + text], check=True, timeout=60)


def test_garbage_in_old_cycles_is_bounded_on_a_node_that_is_never_quiet() -> None:
    run_program("""
most = 0
for _ in range(200):
    grow_old(10_000)
    collector.look(is_quiet=False)
    most = max(most, sys.getallocatedblocks())
# Two million cycles were made. A look comes after at most 10,000 of them, with 3 blocks each.
assert most < DOUBLED_TIMES * at_start + 30_000 + 10_000, (most, at_start)
assert Ring.living < at_start, Ring.living
assert 3 < full_collections() - first < 100, full_collections() - first
""")


def test_a_quiet_second_frees_garbage_sooner() -> None:
    run_program("""
grow_old(at_start // 3)
assert not collector.look(is_quiet=False) and Ring.living
assert collector.look(is_quiet=True) and not Ring.living
assert not collector.look(is_quiet=True)
""")


def test_objects_that_come_and_go_without_cycles_bring_no_full_collection() -> None:
    run_program("""
kept = []
for number in range(600_000):
    # A window of objects, each of which grows old and is freed.
    kept.append([number])
    if len(kept) == 50_000:
        del kept[:25_000]
        collector.look(is_quiet=False)
assert gc.get_stats()[1]["collections"] > 20
assert full_collections() == first
""")


def test_growth_brings_a_full_collection_for_each_doubling() -> None:
    run_program("""
kept = []
while sys.getallocatedblocks() < 17 * at_start:
    kept += [[each] for each in range(1_000)]
    collector.look(is_quiet=False)
assert full_collections() - first == 4, full_collections() - first
""")


def test_spare_blocks_keep_a_busy_node_from_a_full_collection() -> None:
    run_program("""
collector = Collector(spare_blocks=8 * at_start)
first = full_collections()
kept = []
while sys.getallocatedblocks() < 8 * at_start:
    kept += [[each] for each in range(1_000)]
    assert not collector.look(is_quiet=False)
while not collector.look(is_quiet=False):
    kept += [[each] for each in range(1_000)]
    assert sys.getallocatedblocks() < 10 * at_start
""")


def test_a_second_is_quiet_if_nothing_is_written_or_computed_and_the_loop_is_on_time() -> None:
    run_program("""
import time

import trio.testing

passes = 0
looks = []

class Watched(Collector):
    def look(self, *, is_quiet):
        looks.append(is_quiet)
        return False

async def work(clock):
    global passes
    for second, what in enumerate(("write", "write", "", "write", "compute", "", "stall")):
        await trio.sleep_until(second + 0.5)
        passes += what == "write"
        until = time.process_time() + (what == "compute") * 0.3
        while time.process_time() < until:
            pass
        clock.jump(0.6 if what == "stall" else 0)

async def main():
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Watched().run, lambda: passes)
        nursery.start_soon(work, clock)
        await trio.sleep_until(8.2)
        nursery.cancel_scope.cancel()

clock = trio.testing.MockClock(autojump_threshold=0)
trio.run(main, clock=clock)
assert looks == [False, False, True, False, False, True, False, True], looks
""")


def test_objects_of_the_start_are_not_visited() -> None:
    run_program("""
assert gc.get_freeze_count() > 10_000
assert len(gc.get_objects()) < 2_000
""")
