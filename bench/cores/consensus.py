"""The leader's CPU time for one proposal: `python -m bench.cores.consensus`.

A leader of three with asynchronous storage writes, and nothing else: no disk, no network. The
followers' answers are made before the clock starts. One cycle is

    propose -> ready -> own disk's responses -> two followers' answers -> ready -> applied

and, as the commit index goes out in appends of its own, two more answers to those. Encoding the
records (`raftmq.log.record.encode`) is timed apart: its cost grows with the number of records, and
the cost of consensus itself should not. `--profile` prints where the time goes.
"""

import argparse
import cProfile
import pstats
import time

from raftmq.consensus import (
    APPEND_THREAD,
    APPLY_THREAD,
    Config,
    ConfState,
    MemoryStorage,
    Message,
    MessageKind,
    Proposal,
    Raft,
    Snapshot,
    SnapshotMeta,
)
from raftmq.log.record import Kind, encode

TRIM_CYCLES = 64
"""Cycles between two compactions of the stored log, whose growth is not measured."""


class Leader:
    """A leader whose storage is instant and whose followers always agree."""

    def __init__(self) -> None:
        self.storage = MemoryStorage()
        self.storage.install(Snapshot(SnapshotMeta(1, 1, ConfState((1, 2, 3)))))
        config = Config(id=1, pre_vote=False, async_storage_writes=True)
        self.raft = Raft(config, self.storage)
        self.raft.campaign()
        self.work()
        self.raft.step(Message(MessageKind.VOTE_RESPONSE, 1, sender=2, term=1))
        for _ in range(3):
            self.work()
            self.answer(self.raft.last_index)

    def work(self) -> None:
        """Take the work of `ready` and report it done; storage is a list in memory."""
        ready = self.raft.ready()
        self.storage.append(ready.entries)
        for message in ready.messages:
            if message.to == APPEND_THREAD or message.to == APPLY_THREAD:
                for response in message.responses:
                    if response.to == 1:
                        self.raft.step(response)

    def answer(self, index: int) -> None:
        """Answer for both followers that they hold everything up to `index`."""
        for peer in (2, 3):
            kind = MessageKind.APPEND_RESPONSE
            self.raft.step(Message(kind, 1, sender=peer, term=1, index=index))


def cycle(leader: Leader, items: list[Proposal]) -> None:
    """One proposal, from the client's call until it is applied."""
    raft = leader.raft
    first = raft.propose(items, now=0)
    leader.work()
    leader.answer(first + len(items) - 1)
    leader.work()
    leader.answer(first + len(items) - 1)


def encoding_us(items: list[Proposal], cycles: int) -> float:
    """µs to encode `items` into a list, each with the CRC of the previous record."""
    start = time.process_time()
    for _ in range(cycles):
        records, chain = [], 0
        for index, (kind, payload, _) in enumerate(items):
            record = encode(payload, index=index, term=1, kind=kind, timestamp=0, chain=chain)
            records.append(record)
            chain = record.crc
    return (time.process_time() - start) / cycles * 1e6


def measure(records: int, size_bytes: int, cycles: int) -> tuple[float, float]:
    """(µs a cycle, µs of encoding the same records): the best of five rounds."""
    items: list[Proposal] = [(Kind.BATCH, b"x" * size_bytes, 1)] * records
    best = encoding = float("inf")
    for _ in range(5):
        leader = Leader()
        start = time.process_time()
        for number in range(cycles):
            cycle(leader, items)
            if not number % TRIM_CYCLES:
                leader.storage.compact(leader.raft.applied)
        best = min(best, (time.process_time() - start) / cycles * 1e6)
        encoding = min(encoding, encoding_us(items, cycles))
    return best, encoding


def main() -> None:
    """Print the table, or a profile."""
    parser = argparse.ArgumentParser(prog="python -m bench.cores.consensus")
    parser.add_argument("--cycles", type=int, default=2000)
    parser.add_argument("--size", type=int, default=200, help="payload bytes a record")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--records", type=int, default=8, help="records a proposal, profiled")
    options = parser.parse_args()
    if options.profile:
        leader, profile = Leader(), cProfile.Profile()
        items: list[Proposal] = [(Kind.BATCH, b"x" * options.size, 1)] * options.records
        profile.enable()
        for _ in range(options.cycles):
            cycle(leader, items)
        profile.disable()
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
        return
    print("records  µs/proposal  of that encoding  consensus alone  µs/record")
    for records in (1, 8, 64):
        total, encoding = measure(records, options.size, options.cycles)
        print(
            f"{records:7d}  {total:11.1f}  {encoding:16.1f}  {total - encoding:15.1f}"
            f"  {total / records:9.2f}"
        )


if __name__ == "__main__":
    main()
