"""Costs of the log on this machine: `python -m tests.log.measure [--folder DIR]`.

Prints one table: microseconds a record for appends (without and with fdatasync) and reads by batch
and record size, the speed of the recovery scan, the time to seal a segment, lookups, and the memory
of an index over 20,000 queues. Times are the best of several runs; quote ratios.
"""

import argparse
import gc
import shutil
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np

from raftmq.log.builder import Placement, SegmentBuilder
from raftmq.log.cache import LogCache
from raftmq.log.files import RealFiles
from raftmq.log.index import LogIndex
from raftmq.log.record import Record, encode
from raftmq.log.segment import HardState, Identity, Link, decode_header
from raftmq.log.store import LogSettings, LogStore
from raftmq.log.unsealed import scan

MIB = 1024 * 1024
IDENTITY = Identity("bench", 1, 1)
HEAD = 40


def chain(count: int, size: int, *, first: int = 1, crc: int = 0) -> list[Record]:
    """Records of `size` bytes that follow each other."""
    payload, records = bytes(size - HEAD), []
    for index in range(first, first + count):
        record = encode(payload, index=index, term=1, kind=1, timestamp=index, chain=crc)
        crc = record.crc
        records.append(record)
    return records


def best(runs: int, call: Callable[[], None]) -> float:
    """Seconds of the fastest of some runs."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def fresh(folder: Path, segment_bytes: int = 64 * MIB) -> LogStore:
    """An empty store."""
    shutil.rmtree(folder, ignore_errors=True)
    return LogStore.open(
        RealFiles(), str(folder), LogSettings(segment_bytes=segment_bytes), IDENTITY
    )[0]


def appends(folder: Path) -> None:
    """Appending and reading back, by batch and record size."""
    print(f"{'append / read':24} {'append':>12} {'+fdatasync':>12} {'read':>12}   us a record")
    for size in (140, 10_000):
        for batch in (1, 16, 128):
            count = max(batch * 20, min(200_000_000 // size, 4000))
            count -= count % batch
            records = chain(count, size)
            batches = [records[i : i + batch] for i in range(0, count, batch)]
            times = []
            for is_synced in (False, True):
                few = batches if not is_synced else batches[: max(20, 2000 // batch)]
                store = fresh(folder)
                start = time.perf_counter()
                for part in few:
                    store.append(part, HardState(1, 1, part[0].index - 1))
                    if is_synced:
                        store.sync()
                times.append((time.perf_counter() - start) / len(few) / batch * 1e6)
                if not is_synced:
                    call = lambda: read_all(store, batch * size + 1000)  # noqa: B023, E731
                    reading = best(3, call) / count * 1e6
                store.close()
            print(
                f"{size:7} B x {batch:3}          {times[0]:12.2f} {times[1]:12.2f} {reading:12.2f}"
            )


def read_all(store: LogStore, bytes_max: int) -> None:
    """Read a log from its start in pieces."""
    low, end = 1, store.last_index + 1
    while low < end:
        low += len(store.read(low, end, bytes_max))


def scans(folder: Path) -> None:
    """The recovery scan of a 64 MiB segment, and sealing it."""
    print(
        f"\n{'64 MiB segment':24} {'scan MB/s':>12} {'records/s':>12} {'seal ms':>12}"
        f" {'index KiB':>12}"
    )
    for size, count_a_batch in ((10_000, 100), (140, 1)):
        store = fresh(folder)
        crc, index = 0, 1
        while len(store.layout) < 2:
            records = chain(64, size, first=index, crc=crc)
            crc, index = records[-1].crc, index + 64
            store.append(records, HardState(1, 1, 0))
        info = store.layout[0]
        assert info.last is not None
        path = str(folder / f"{1:020d}.log")
        file = RealFiles().open(path)
        header = decode_header(file.pread(72, 0))
        assert header is not None
        seconds = best(3, lambda: scan(file, path, header) and None)  # noqa: B023
        builder = SegmentBuilder(1)
        random = Random(1)
        ends = [0] * 1000
        for i in range(1, info.last + 1):
            queue = random.randrange(1000)
            builder.place(Placement(queue, ends[queue], count_a_batch, i), i)
            ends[queue] += count_a_batch
            builder.add_keys(i, np.random.default_rng(i).bytes(4 * count_a_batch))
        start = time.perf_counter()
        sealed = store.seal(builder)
        seal_ms = (time.perf_counter() - start) * 1e3
        index_bytes = (folder / f"{1:020d}.index").stat().st_size
        print(
            f"{size:7} B x {sealed.count:7}      {file.size() / seconds / 1e6:12.0f}"
            f" {sealed.count / seconds:12.0f} {seal_ms:12.1f} {index_bytes / 1024:12.0f}"
        )
        store.close()


def restart(folder: Path) -> None:
    """Opening a log of 2 GiB: sealed segments but the last."""
    store = fresh(folder)
    crc, index, low = 0, 1, 0
    records: list[Record] = []
    while index * 10_000 < 2048 * MIB:
        records = chain(640, 10_000, first=index, crc=crc)
        crc, index = records[-1].crc, index + 640
        store.append(records, HardState(1, 1, 0))
        store.sync()
        while len(store.layout) > 1:
            builder = SegmentBuilder(store.layout[0].name)
            last = store.layout[0].last
            assert last is not None
            for i in range(low + 1, last + 1):
                builder.place(Placement(i % 50, i // 50 * 100, 100, i), i)
            low = last
            store.seal(builder)
    store.close()

    def reopen() -> None:
        LogStore.open(RealFiles(), str(folder), LogSettings(), IDENTITY)[0].close()

    print(f"\nopen a log of 2 GiB ({len(store.segments())} segments): {best(3, reopen):.3f} s")


QUEUES = 20_000


def many_queues(folder: Path) -> tuple[LogStore, LogIndex, float, float]:
    """20 million messages in batches of 100 over 20,000 queues, each of them in each segment."""
    store = fresh(folder, segment_bytes=50_000 * 56)
    index = LogIndex(store.sealed, store.layout, applied=0)
    crc, place_seconds, enter_seconds = 0, 0.0, 0.0
    ends = [0] * QUEUES
    for first in range(1, 200_000, 1000):
        records = chain(1000, HEAD + 8, first=first, crc=crc)
        crc = records[-1].crc
        store.append(records, HardState(1, 1, first - 1))
        index.arrange(store.layout)
        places = []
        for i in range(first, first + 1000):
            places.append(Placement(i % QUEUES, ends[i % QUEUES], 100, i))
            ends[i % QUEUES] += 100
        start = time.perf_counter()
        for placement in places:
            index.place(placement, placement.index)
        place_seconds += time.perf_counter() - start
        while builder := index.sealable(first + 999):
            sealed = store.seal(builder)
            start = time.perf_counter()
            index.sealed(sealed)
            enter_seconds = max(enter_seconds, time.perf_counter() - start)
    return store, index, place_seconds, enter_seconds


def lookups(folder: Path) -> None:
    """Memory and time of an index over many queues."""
    tracemalloc.start()
    store, index, _, _ = many_queues(folder)
    gc.collect()
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    store.close()
    store, index, place_seconds, enter_seconds = many_queues(folder)
    segments = len(store.sealed)
    print(
        f"\n20 million messages, 20,000 queues in each of {segments} sealed segments and the active"
    )
    print(f"  all Python memory: {used / MIB:.1f} MiB, {used / QUEUES:.0f} B a queue")
    directory = sum(entry.__sizeof__() for entry in index._directory.values())
    directory += index._directory.__sizeof__() + 32 * QUEUES
    print(
        f"  of which the directory: {directory / MIB:.1f} MiB, {directory / QUEUES:.0f} B a queue"
    )
    print(f"  place: {place_seconds / 200_000 * 1e6:.2f} us a batch")
    print(f"  taking a sealed segment: {enter_seconds * 1e3:.1f} ms on the loop")
    random = Random(1)
    wanted = [(random.randrange(QUEUES), random.randrange(900)) for _ in range(20_000)]
    timed("lookup of 1 batch", lambda q, o: index.lookup(q, o, 1), wanted)
    timed("lookup of 8 batches", lambda q, o: index.lookup(q, o, 8), wanted)
    timed("at_time", lambda q, o: index.at_time(q, o * 200), wanted)
    timed("earliest", lambda q, _: index.earliest(q), wanted)
    timed("end", lambda q, _: index.end(q), wanted)
    store.close()


def timed(what: str, call: Callable[[int, int], object], wanted: list[tuple[int, int]]) -> None:
    """Print the microseconds of one call."""

    def run() -> None:
        for queue, offset in wanted:
            call(queue, offset)

    print(f"  {what}: {best(3, run) / len(wanted) * 1e6:.2f} us")


def placing() -> None:
    """Noting a batch, and the cache, without a disk."""
    places = [Placement(i % 16, i // 16 * 100, 100, i + 1) for i in range(100_000)]

    def place() -> None:
        builder = SegmentBuilder(1)
        for placement in places:
            builder.place(placement, placement.index)

    keys = bytes(400)

    def add_keys() -> None:
        builder = SegmentBuilder(1)
        for i in range(10_000):
            builder.add_keys(i, keys)

    print(f"\nplace: {best(3, place) / len(places) * 1e6:.2f} us a batch")
    print(f"add_keys of 100: {best(3, add_keys) / 10_000 * 1e6:.2f} us a batch")
    for size in (140, 10_000):
        records = chain(20_000, size) if size < 1000 else chain(4_000, size)

        def fill() -> None:
            cache = LogCache(start=Link(), last=Link(), terms=(), bytes_max=16 * MIB)
            for i in range(0, len(records), 8):  # noqa: B023
                cache.append(records[i : i + 8])  # noqa: B023

        cache = LogCache(start=Link(), last=Link(), terms=(), bytes_max=2**40)
        cache.append(records)

        def slices() -> None:
            for i in range(1, len(records) - 8, 8):  # noqa: B023
                cache.entries(i, i + 8, MIB)  # noqa: B023

        count = len(records)
        print(
            f"cache, {size} B records by 8: append {best(3, fill) / count * 8e6:.2f} us, "
            f"entries {best(3, slices) / count * 8e6:.2f} us a call"
        )


def main() -> None:
    """Run all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", help="where to write (default: a temporary folder)")
    parser.add_argument("--only", choices=["appends", "scans", "restart", "lookups", "placing"])
    options = parser.parse_args()
    folder = Path(options.folder or tempfile.mkdtemp(prefix="raftmq-log-")) / "group"
    parts: dict[str, Callable[[], None]] = {
        "appends": lambda: appends(folder),
        "scans": lambda: scans(folder),
        "placing": placing,
        "lookups": lambda: lookups(folder),
        "restart": lambda: restart(folder),
    }
    try:
        for name, part in parts.items():
            if options.only in (None, name):
                part()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
