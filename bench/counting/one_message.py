"""One message at a time: its way through the processes, counted; beside bare trio and the floor.

    python -m bench.counting.one_message [--works echo,floor,send,pop] [--tasks 1,64] [--seconds 3]
                                [--size 200] [--spread] [--quick] [--py-spy PATH] [--json]

| work | one message is |
|---|---|
| echo | bytes to a bare trio server in another process, and back |
| floor | a frame to three bare trio processes, answered when two disks have it (`bench.floor`) |
| send | an awaited `Producer.send` to three nodes |
| pop | an awaited `pop(1)` and `ack` of one consumer that all tasks share |
| pops | the same, each task with a consumer of its own |

For each work and number of tasks the program prints the rate and the latency, and for each process
and message: processor time in the program and in the kernel, context switches, system calls
(strace), bytes sent on TCP, and the packages in which the time goes (py-spy). All is counted while
the load goes on, but in stretches of its own: the rate is not that under strace.

All messages go to one queue, so one node leads and two follow; with `--spread` the producer picks
the queue. `--quick` leaves the traces out.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

import raftmq
from bench.counting.counts import CALLS, Calls, Shares, Tracer, Work, stacks
from bench.floor import Floor
from bench.floor_server import HEADER, WRITE, positions, prepared
from bench.machine import describe
from bench.raftmq_system import TOPIC, RaftmqSystem
from bench.system import percentile

WARM_SECONDS = 1.0
TRACE_SECONDS = 2.0
STACK_SECONDS = 6
FILLED = 200_000
"""Messages that are there to be popped."""
FILL = 10_000
"""Messages of one call that fills."""


class Tally:
    """Messages that a load is done with."""

    def __init__(self) -> None:
        self.latencies: list[float] = []
        """Seconds of each message, in order."""
        self.has_begun = trio.Event()
        """Set with the first message."""

    def note(self, begun: float) -> None:
        """A message is done that was begun at this `time.perf_counter()`."""
        self.latencies.append(time.perf_counter() - begun)
        self.has_begun.set()


Load = Callable[[int, Tally], Awaitable[None]]
"""Keeps this many messages under way, until cancelled."""


@dataclass(frozen=True, slots=True)
class Row:
    """One work with one number of tasks."""

    work: str
    tasks: int
    rate: float
    """Messages a second."""
    p50_ms: float
    p99_ms: float
    done: Mapping[str, Work]
    """By process: work for all messages."""
    messages: int
    """Messages of the stretch of `done`."""
    calls: Mapping[str, Calls] = field(default_factory=dict[str, Calls])
    """By process: system calls of `traced` messages; empty: not traced."""
    traced: int = 0
    shares: Mapping[str, Shares] = field(default_factory=dict[str, Shares])
    """By process: where the time goes; empty: no py-spy."""


def main(arguments: list[str]) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.counting.one_message", description=__doc__
    )
    parser.add_argument("--works", default="echo,floor,send,pop")
    parser.add_argument("--tasks", default="1,64")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--size", type=int, default=200)
    parser.add_argument("--spread", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--py-spy", default="")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(arguments)
    if not chosen.json:
        print("\n".join(f"{name}: {value}" for name, value in describe().items()))
    queue = None if chosen.spread else 0
    for work in chosen.works.split(","):
        for tasks in map(int, chosen.tasks.split(",")):
            with SYSTEMS[work](work, chosen.size, queue) as (pids, load):
                row = trio.run(_measure, work, tasks, pids, load, chosen)
            print(json.dumps(_plain(row)) if chosen.json else _text(row), flush=True)


async def _measure(
    work: str, tasks: int, pids: Mapping[str, int], load: Load, chosen: argparse.Namespace
) -> Row:
    pids = {"load": os.getpid(), **pids}
    tally = Tally()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(load, tasks, tally)
        await tally.has_begun.wait()
        await trio.sleep(WARM_SECONDS)
        first, begun = len(tally.latencies), time.perf_counter()
        before = {name: Work.of(pid) for name, pid in pids.items()}
        await trio.sleep(chosen.seconds)
        done = {name: Work.of(pid).since(before[name]) for name, pid in pids.items()}
        seconds, messages = time.perf_counter() - begun, len(tally.latencies) - first
        ascending = sorted(tally.latencies[first:])
        calls: Mapping[str, Calls] = {}
        shares: Mapping[str, Shares] = {}
        traced = 0
        if not chosen.quick:
            calls, traced = await _traced(pids, tally)
        if chosen.py_spy:
            with tempfile.TemporaryDirectory() as folder:
                job = lambda: stacks(chosen.py_spy, pids, STACK_SECONDS, Path(folder))  # noqa: E731
                shares = await trio.to_thread.run_sync(job)
        nursery.cancel_scope.cancel()
    p50, p99 = percentile(ascending, 0.5) or 0.0, percentile(ascending, 0.99) or 0.0
    return Row(work, tasks, messages / seconds, p50, p99, done, messages, calls, traced, shares)


async def _traced(pids: Mapping[str, int], tally: Tally) -> tuple[Mapping[str, Calls], int]:
    """System calls of all processes, and the number of messages meanwhile."""
    if not Tracer.is_there():
        return {}, 0
    with tempfile.TemporaryDirectory() as folder:
        tracer = Tracer(pids, Path(folder))
        await trio.sleep(WARM_SECONDS)
        first, begun = len(tally.latencies), time.time()
        await trio.sleep(TRACE_SECONDS)
        traced, ended = len(tally.latencies) - first, time.time()
        return await trio.to_thread.run_sync(tracer.stop, begun, ended), traced


# The works


@contextmanager
def _echo(_work: str, size: int, _queue: int | None) -> Iterator[tuple[dict[str, int], Load]]:
    """A bare trio server, and a bare trio client."""
    command = [sys.executable, "-m", "bench.counting.one_message", "--serve-echo"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())

        async def call(tally: Tally) -> None:
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            data = os.urandom(size)
            while True:
                begun = time.perf_counter()
                await stream.send_all(data)
                missing = size
                while missing:
                    missing -= len(await stream.receive_some(missing))
                tally.note(begun)

        async def load(tasks: int, tally: Tally) -> None:
            async with trio.open_nursery() as nursery:
                for _ in range(tasks):
                    nursery.start_soon(call, tally)

        try:
            yield {"server": server.pid}, load
        finally:
            server.kill()


async def _serve_echo() -> None:
    async def serve(stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError):
            while data := await stream.receive_some(65_536):
                await stream.send_all(data)

    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    print(listener.socket.getsockname()[1], flush=True)
    await trio.serve_listeners(serve, [listener])


@contextmanager
def _floor(_work: str, size: int, _queue: int | None) -> Iterator[tuple[dict[str, int], Load]]:
    with Floor() as floor:

        async def load(tasks: int, tally: Tally) -> None:
            frame = HEADER.pack(size, 0) + os.urandom(size)
            with floor.connect(WRITE) as sock:
                begun = deque([time.perf_counter()] * tasks)
                sock.send(frame * tasks)
                answered = 0
                async for count in positions(trio.socket.from_stdlib_socket(prepared(sock))):
                    for _ in range(count - answered):
                        tally.note(begun.popleft())
                    begun.extend([time.perf_counter()] * (count - answered))
                    sock.send(frame * (count - answered))
                    answered = count

        yield floor.pids, load


@contextmanager
def _raftmq(work: str, size: int, queue: int | None) -> Iterator[tuple[dict[str, int], Load]]:
    with RaftmqSystem() as system:
        body = b"x" * size

        async def load(tasks: int, tally: Tally) -> None:
            async with AsyncExitStack() as stack:
                mq = await stack.enter_async_context(raftmq.connect(system.url))
                producer = await stack.enter_async_context(mq.producer(TOPIC))
                if work == "send":
                    calls = [_send(producer, body, queue)] * tasks
                else:
                    for _ in range(FILLED // FILL):
                        await producer.send_many(bodies=[body] * FILL, queue=queue)
                    consumers: list[raftmq.PopConsumer] = []
                    for _ in range(tasks if work == "pops" else 1):
                        one = mq.consumer(TOPIC, group="one", mode="pop")
                        consumers.append(await stack.enter_async_context(one))
                    calls = [_pop(consumers[task % len(consumers)]) for task in range(tasks)]
                async with trio.open_nursery() as nursery:
                    for call in calls:
                        nursery.start_soon(_again, call, tally)

        yield _roles(system, queue), load


def _send(
    producer: raftmq.Producer, body: bytes, queue: int | None
) -> Callable[[], Awaitable[object]]:
    return lambda: producer.send(body, queue=queue)


def _pop(consumer: raftmq.PopConsumer) -> Callable[[], Awaitable[object]]:
    async def pop() -> None:
        messages = await consumer.pop(1)
        assert messages, f"all {FILLED} messages are popped: fill more, or measure less"
        await messages[0].ack()

    return pop


async def _again(call: Callable[[], Awaitable[object]], tally: Tally) -> None:
    while True:
        begun = time.perf_counter()
        await call()
        tally.note(begun)


def _roles(system: RaftmqSystem, queue: int | None) -> dict[str, int]:
    """Process ids of the nodes; with a queue, under the names `leader` and `follower`."""
    if queue is None:
        return system.pids

    async def leader() -> int:
        async with raftmq.connect(system.url) as mq:
            return (await mq.admin.describe_topic(TOPIC)).queues[queue].leader

    leads = f"node{trio.run(leader)}"
    followers = [pid for name, pid in system.pids.items() if name != leads]
    return {"leader": system.pids[leads], "follower 1": followers[0], "follower 2": followers[1]}


SYSTEMS = {"echo": _echo, "floor": _floor, "send": _raftmq, "pop": _raftmq, "pops": _raftmq}
"""By work: starts its processes; gives their ids and the load."""


# The table


def _text(row: Row) -> str:
    """The row for people."""
    head = f"\n{row.work}, {row.tasks} at a time: {row.rate:,.0f}/s, "
    head += f"p50 {row.p50_ms:.2f} ms, p99 {row.p99_ms:.2f} ms; for each message:"
    owners = sorted({owner for shares in row.shares.values() for owner in shares})
    columns = ["process", "user us", "kernel us", "switches", "preempted"]
    columns += [*CALLS, "other", "waits", "TCP bytes"] if row.calls else []
    lines = [
        "| " + " | ".join([*columns, *owners]) + " |",
        "|---" + "|---:" * (len(columns + owners) - 1) + "|",
    ]
    total = [0.0] * (len(columns) - 1)
    for name in row.done:
        cells = list(_cells(row, name))
        total = [a + b for a, b in zip(total, cells, strict=True)]
        shares = [f"{row.shares.get(name, {}).get(owner, 0.0):.0%}" for owner in owners]
        lines.append(_line(name, cells, shares))
    lines.append(_line("all", total, [""] * len(owners)))
    return "\n".join([head, "", *lines])


def _line(name: str, cells: list[float], shares: list[str]) -> str:
    shown = [f"{each:,.0f}" if each >= 20 else f"{each:.2f}" for each in cells]
    return "| " + " | ".join([name, *shown, *shares]) + " |"


def _cells(row: Row, name: str) -> Iterator[float]:
    work = row.done[name]
    for each in (work.user * 1e6, work.kernel * 1e6, work.waits, work.preempted):
        yield each / max(1, row.messages)
    if row.calls:
        calls, count = row.calls[name], max(1, row.traced)
        for column in (*CALLS, "other"):
            yield calls.by_column[column] / count
        yield calls.idle_waits / count
        yield calls.sent_bytes / count


def _plain(row: Row) -> dict[str, Any]:
    """The row for programs."""
    cpu = {name: (work.user + work.kernel) * 1e6 for name, work in row.done.items()}
    return {
        "work": row.work,
        "tasks": row.tasks,
        "rate": round(row.rate, 1),
        "p50_ms": round(row.p50_ms, 3),
        "p99_ms": round(row.p99_ms, 3),
        "cpu_us": {name: round(each / max(1, row.messages)) for name, each in cpu.items()},
        "cpu_us_all": round(sum(cpu.values()) / max(1, row.messages)),
        "switches": round(sum(each.waits for each in row.done.values()) / max(1, row.messages), 2),
    }


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve-echo"]:
        trio.run(_serve_echo)
    else:
        main(sys.argv[1:])
