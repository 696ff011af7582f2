"""Index files are derived: a node whose index files are deleted writes the same bytes again (L6).

Sources: Kafka's and RocketMQ's indexes, which are rebuilt from the log.
"""

from pathlib import PurePosixPath

import google_crc32c
import trio

from raftmq.chaos.outcome import Violation
from raftmq.chaos.sim.run_state import RunState
from raftmq.chaos.world.disk import MemoryFiles
from raftmq.checkers.servers.evidence import Derived
from raftmq.log.segment import INDEX_SUFFIX, SEGMENT_SUFFIX

REBUILD_SECONDS = 30.0
"""Until a node has its index files again; it has to start and to apply its log for that."""


async def rebuild_indexes(state: RunState) -> None:
    """Stop a node, delete its index files, start it, and wait until it has them again.

    A node that was damaged is spared: an index file may be the only proof of a segment's rot.
    """
    candidates = set(state.alive(state.members())) - state.was_damaged
    if not candidates:
        return
    node = state.random.choice(sorted(candidates))
    state.hold_down(node)
    state.kill(node, crash=False)
    disk = state.cluster.machines[node].disk
    before = {path: _digest(disk, path) for path in disk.paths() if path.endswith(INDEX_SUFFIX)}
    for path in before:
        disk.remove(path)
    state.watch.note(node, f"is robbed of {len(before)} index files")
    state.let_up(node)
    with trio.move_on_after(REBUILD_SECONDS):
        # Polling costs little in simulated time.
        while _missing(disk, before):  # noqa: ASYNC110
            await trio.sleep(0.05)
    for path in _missing(disk, before):
        text = f"node {node} has not rebuilt {path} within {REBUILD_SECONDS:g} s"
        state.violations.append(Violation("L6", state.watch.now_ms, text))
    for path in sorted(before.keys() & set(disk.paths())):
        group = int(PurePosixPath(path).parent.name)
        derived = Derived(node, path, before[path], _digest(disk, path))
        state.derived[group].append(derived)


def _digest(disk: MemoryFiles, path: str) -> int:
    return int(google_crc32c.value(disk.bytes_of(path)))


def _missing(disk: MemoryFiles, paths: dict[str, int]) -> list[str]:
    """The index files that do not exist although their segments do."""
    there = set(disk.paths())
    return [
        path
        for path in paths
        if path not in there and path.removesuffix(INDEX_SUFFIX) + SEGMENT_SUFFIX in there
    ]
