"""pysyncobj: three processes replicate calls of one method, with a journal file.

pysyncobj has no client: only a member calls a replicated method. So the load runs inside the
leader's process, which saves the hop that every other system pays, and there are three processes
instead of four. A *message* is a body handed to a replicated `append(body)`; a batch is one call
with the batch's bodies joined, as a batch is one record in the floor. The object counts the bytes
and keeps no body, so that its periodic dump stays small.

pysyncobj acknowledges (calls back) once a majority has the call in its journal, a memory-mapped
file that is never synced: a power loss may lose acknowledged calls. It has no consumers.

    python -m bench.peers.pysyncobj SELF JOURNAL PARTNER PARTNER

runs one node. The node answers each line on stdin, a JSON object, with one on stdout: `{"ask":
"status"}` with the leader, `{"ask": "append", ...}` with a sample.
"""

import dataclasses
import json
import os
import platform
import subprocess
import sys
import threading
import time
from importlib import metadata
from typing import Any

from bench.processes import Clustered, free_ports
from bench.system import Meter, Sample, Unsupported

ELECTION_SECONDS_MAX = 30.0
IN_FLIGHT_BYTES_MAX = 4 << 20


class Pysyncobj(Clustered):
    """`System` of three pysyncobj nodes."""

    name = "pysyncobj"
    settings = (
        "3 processes, load inside the leader, defaults, journal file (never synced to disk); "
        "a batch is one replicated call"
    )

    @property
    def version(self) -> str:
        """Versions of the library and of Python."""
        return f"pysyncobj {metadata.version('pysyncobj')}, python {platform.python_version()}"

    def available(self) -> str | None:
        """None, or what to install."""
        try:
            import pysyncobj  # noqa: F401
        except ImportError:
            return "pysyncobj is not installed: uv sync --locked"
        return None

    def produce(self, *, size: int, batch: int, window: int, seconds: float) -> Sample:
        """Calls of `size * batch` bytes, `window` in flight, up to a bound of bytes."""
        return self._append(size=size, batch=batch, window=window, seconds=seconds)

    def single(self, *, size: int, seconds: float) -> Sample:
        """One call in flight."""
        return self._append(size=size, batch=1, window=1, seconds=seconds)

    def consume(self, *, size: int, batch: int, window: int, seconds: float) -> Sample:
        """Unsupported."""
        raise Unsupported("pysyncobj replicates calls; it has no consumers")

    def pop(self, *, size: int, batch: int, window: int, seconds: float) -> Sample:
        """Unsupported."""
        raise Unsupported("pysyncobj replicates calls; it has no consumers")

    def ordered(
        self, *, size: int, batch: int, window: int, fill_seconds: float, seconds: float
    ) -> Sample:
        """Unsupported."""
        raise Unsupported("pysyncobj replicates calls; it has no consumers")

    def in_order(
        self, *, size: int, batch: int, window: int, fill_seconds: float, seconds: float
    ) -> Sample:
        """Unsupported."""
        raise Unsupported("pysyncobj replicates calls; it has no consumers")

    def _start(self) -> None:
        addresses = [f"127.0.0.1:{port}" for port in free_ports(3)]
        nodes = []
        for number, address in enumerate(addresses):
            partners = [each for each in addresses if each != address]
            journal = str(self._cluster.folder / f"journal{number}")
            command = [sys.executable, "-m", "bench.peers.pysyncobj", address, journal, *partners]
            nodes.append(self._cluster.start(command, name=f"node{number}", is_piped=True))
        deadline = time.monotonic() + ELECTION_SECONDS_MAX
        leaders: set[str | None] = {None}
        while None in leaders or len(leaders) != 1:
            if time.monotonic() > deadline:
                raise RuntimeError(f"pysyncobj did not agree on a leader: {leaders}")
            time.sleep(0.2)
            leaders = {self._ask(node, ask="status")["leader"] for node in nodes}
        self._leader = nodes[addresses.index(str(leaders.pop()))]

    def _append(self, *, size: int, batch: int, window: int, seconds: float) -> Sample:
        in_flight = max(1, min(window, IN_FLIGHT_BYTES_MAX // (size * batch)))
        answer = self._ask(
            self._leader, ask="append", size=size, batch=batch, window=in_flight, seconds=seconds
        )
        settings = f"{in_flight} in flight" if in_flight < window else ""
        return dataclasses.replace(Sample(**answer), settings=settings)

    def _ask(self, node: "subprocess.Popen[str]", **question: object) -> dict[str, Any]:
        assert node.stdin is not None
        assert node.stdout is not None
        print(json.dumps(question), file=node.stdin, flush=True)
        line = node.stdout.readline()
        if not line:
            self._cluster.check_alive()
            raise RuntimeError("a pysyncobj node hung up")
        answer: dict[str, Any] = json.loads(line)
        return answer


def _serve(address: str, journal: str, partners: list[str]) -> None:
    """One node: answer the questions on stdin until it closes."""
    import pysyncobj

    class Counter(pysyncobj.SyncObj):  # type: ignore[misc]
        """Counts what is appended."""

        def __init__(self) -> None:
            super().__init__(address, partners, pysyncobj.SyncObjConf(journalFile=journal))
            self.bytes = 0

        @pysyncobj.replicated  # type: ignore[untyped-decorator]
        def append(self, body: bytes) -> int:
            """Count a body's bytes; returns the number of bytes so far."""
            self.bytes += len(body)
            return self.bytes

    node = Counter()
    for line in sys.stdin:
        question = json.loads(line)
        if question.pop("ask") == "status":
            leader = node._getLeader() if node.isReady() else None
            answer: dict[str, Any] = {"leader": leader and str(leader)}
        else:
            answer = dataclasses.asdict(_run_window(node, **question))
        print(json.dumps(answer), flush=True)


def _run_window(node: Any, *, size: int, batch: int, window: int, seconds: float) -> Sample:
    """Keep `window` calls in flight; the callbacks run in pysyncobj's own thread."""
    meter = Meter(size=size, seconds=seconds)
    body = os.urandom(size * batch)
    free = threading.Semaphore(window)
    failures: list[object] = []

    def append() -> None:
        sent_at = time.perf_counter()

        def on_done(_: object, failure: object) -> None:
            if failure:
                failures.append(failure)
            else:
                meter.on_ack(batch, sent_at)
            free.release()

        node.append(body, callback=on_done)

    while not meter.is_over():
        if free.acquire(timeout=30.0):
            append()
        if failures:
            raise RuntimeError(f"pysyncobj refused a call: {failures[0]}")
    return meter.sample()


if __name__ == "__main__":
    _serve(sys.argv[1], sys.argv[2], sys.argv[3:])
