"""Processor time of a node for a message to a consumer of many queues, with and without a session.

    python -m bench.alone.fetch_sessions [--messages N] [--rounds N] [--queues N,N]

One node, one consumer with a long poll at all queues of a topic, one producer that sends single
messages to one of them. Each message ends the poll, and the consumer asks again. The figure is the
processor time of the node's process for a message, its append and sync included.

Left out: the client's time, and the wait for the disk; a cluster of three, where followers take the
same time in both cases.
"""

import argparse
import socket
import time
from collections.abc import Sequence
from pathlib import Path

import trio

import raftmq
from bench.machine import describe
from raftmq.batch import encode
from raftmq.testing import cluster
from raftmq.wire.codec import pack, unpack
from raftmq.wire.fetches import NO_SESSION, Fetch, Fetched, FetchFrom
from raftmq.wire.frame import Frame, FrameParser, encode_frame
from raftmq.wire.messages import PROTOCOL, FrameKind, Hello

QUEUES = "1,100,1000,4000"
PARK_SECONDS = 0.002
"""Pause between a fetch and the message that ends the fetch's wait."""


class Caller:
    """A connection with one request under way."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port))
        self._parser = FrameParser(64 << 20)
        self._number = 0
        self.ask(FrameKind.HELLO, pack(Hello(PROTOCOL, "", 0, "", "bench")))

    def send(self, kind: int, header: bytes, body: Sequence[bytes] = ()) -> None:
        """Send a request."""
        self._number += 1
        self._socket.sendall(b"".join(encode_frame(kind, self._number, header, body)))

    def receive(self) -> Frame:
        """Wait for the answer to the last request."""
        while not (frames := list(self._parser.frames())):
            self._parser.feed(self._socket.recv(1 << 20))
        (frame,) = frames
        assert frame.kind != FrameKind.ERROR, frame.header
        return frame

    def ask(self, kind: int, header: bytes, body: Sequence[bytes] = ()) -> Frame:
        """Send a request and wait for its answer."""
        self.send(kind, header, body)
        return self.receive()


def cpu_seconds(pid: int) -> float:
    """Processor time of all threads of a process."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def cost_ms(
    reader: Caller, writer: Caller, pid: int, queues: list[int], messages: int, *, has_session: bool
) -> tuple[float, int]:
    """Milliseconds of the node's processor for a message, and the bytes of a request."""
    offsets = dict.fromkeys(queues, 0)
    session, epoch = 0, NO_SESSION
    ends = unpack(Fetched, reader.ask(FrameKind.FETCH, _fetch(offsets, 0, 0, NO_SESSION)).header)
    for item in ends.queues:
        offsets[item.queue] = item.end
    if has_session:
        first = reader.ask(FrameKind.FETCH, _fetch(offsets, 0, 0, 0))
        session, epoch = unpack(Fetched, first.header).session, 1
        assert session
    producer = time.monotonic_ns()
    before = cpu_seconds(pid)
    for number in range(messages):
        request = _fetch({} if session else offsets, 60_000, session, epoch)
        reader.send(FrameKind.FETCH, request)
        time.sleep(PARK_SECONDS)
        batch = encode([b"x" * 100]).to_bytes(
            queue=queues[0], producer=producer, first_sequence=number
        )
        writer.ask(FrameKind.PRODUCE, b"", [batch])
        answer = unpack(Fetched, reader.receive().header)
        assert [item.queue for item in answer.queues] == [queues[0]]
        offsets[queues[0]] += 1
        epoch += bool(session)
    taken = cpu_seconds(pid) - before
    if session:
        reader.ask(FrameKind.FETCH, _fetch({}, 0, session, NO_SESSION))
    return taken / messages * 1e3, len(request)


def _fetch(offsets: dict[int, int], wait_ms: int, session: int, epoch: int) -> bytes:
    asked = [FetchFrom(queue, offset) for queue, offset in offsets.items()]
    return pack(Fetch(asked, wait_ms, 1 << 20, session=session, epoch=epoch))


async def main(counts: Sequence[int], messages: int, rounds: int) -> None:
    """Print the table."""
    print("; ".join(f"{name}: {value}" for name, value in describe().items()))
    print("| queues | without a session, ms | in a session, ms | bytes of a request |")
    print("|---:|---:|---:|---:|")
    async with cluster(1) as nodes, raftmq.connect(nodes.url) as mq:
        host, port = nodes.host(1), nodes.public_port(1)
        reader, writer = Caller(host, port), Caller(host, port)
        for count in counts:
            name = f"t{count}"
            await mq.admin.create_topic(name, queues=count)
            topics = {topic.name: topic.id for topic in (await mq.admin.cluster()).topics}
            queues = [topics[name] << 16 | n for n in range(count)]
            cells: dict[bool, list[str]] = {False: [], True: []}
            sizes = {False: 0, True: 0}
            for _ in range(rounds):
                for has_session, cell in cells.items():
                    cost, sizes[has_session] = cost_ms(
                        reader, writer, nodes.pid(1), queues, messages, has_session=has_session
                    )
                    cell.append(f"{cost:.2f}")
            found = " | ".join(", ".join(cell) for cell in cells.values())
            print(f"| {count:,} | {found} | {sizes[False]:,} / {sizes[True]:,} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--queues", default=QUEUES, help="how many queues; the default: %(default)s"
    )
    parser.add_argument("--messages", type=int, default=100, help="for each figure")
    parser.add_argument("--rounds", type=int, default=2, help="figures of each kind")
    options = parser.parse_args()
    wanted = [int(each) for each in options.queues.split(",")]
    trio.run(main, wanted, options.messages, options.rounds)
