"""The story in order: start, stream, kill a leader, kill both drivers, finish, prove.

| when | what |
|---|---|
| at once | both jobs start, and the departures begin to flow in the order of their time |
| 30 % of the messages are acked | SIGKILL to the leader of the first queue's partition group |
| 45 % | the node is started again |
| 60 %, and both have written | SIGKILL to both drivers, Java with them; started again at once |
| 80 % are about to be sent | sending waits until that has happened, so that it is never missed |
| all are acked and read | the jobs are stopped, and run again to the end of the queues |

Left out: faults of the network, the disk or the clock, which `raftmq chaos` has.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import msgspec
from anyio import to_thread

import raftmq
from demo.flights import Flight, flights
from demo.report import Check
from demo.screen import Screen
from raftmq.client import Outgoing
from raftmq.testing import Cluster, cluster

from .drivers import Driver
from .proof import archived, check_archive, check_windows, expected, windows_of

TOPIC = "flights"
QUEUES = 4
BOARD = """\
topics = ["flights"]
window = "24h"
# The data runs through a day in less than a second, and a leader is dead for some of them.
lateness = "4000h"
json = "time_hour timestamp, distance bigint"
event = "json.time_hour"
by = ["tag as carrier"]
sum = ["json.distance as miles"]
"""
KILL_LEADER_AT, RESTART_AT, KILL_DRIVERS_AT, HOLD_AT = 0.3, 0.45, 0.6, 0.8
"""Shares of the messages that are acked by then."""
SENDING_SECONDS = 40.0
"""Time in which all departures are sent, in any run."""
CHUNK = 500
SECONDS_MAX = 900.0
LOOK_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Result:
    """The result of the demo."""

    checks: list[Check]
    """The checks, held or violated."""
    messages: int
    """Number of sent messages."""
    seconds: float
    """Time of the whole demo."""

    @property
    def holds(self) -> bool:
        """Whether every check holds."""
        return all(check.holds for check in self.checks)


async def tell(rows: int, screen: Screen, folder: Path) -> Result:
    """Run the demo with this many messages; everything it makes is below `folder`.

    Cancelling ends every process.

    Raises:
        RaftmqError: the cluster did not get ready, or could not be asked.
        DriverFailed: a job ended with an error.
        TimeoutError: it all took too long.
    """
    begun = anyio.current_time()
    with anyio.fail_after(SECONDS_MAX):
        async with cluster(folder=folder / "nodes") as nodes:
            screen.note("three nodes are ready")
            checks = await Story(nodes, rows, screen, folder).run()
    return Result(checks, rows, anyio.current_time() - begun)


class Story:
    """One run on a cluster that is ready."""

    def __init__(self, nodes: Cluster, rows: int, screen: Screen, folder: Path) -> None:
        self._nodes = nodes
        self._rows = rows
        self._screen = screen
        self._acked = 0
        self._moved = anyio.Event()
        self._has_read = anyio.Event()
        self._were_killed = anyio.Event()
        self._board, self._archive = folder / "live", folder / "archive"
        spec = folder / "board.toml"
        spec.write_text(BOARD)
        live = ["live", "--board", str(spec), "--out", str(self._board)]
        archive = ["archive", "run", TOPIC, "--to", str(self._archive), "--every", "1s"]
        self._drivers = [
            Driver("live", live, url=nodes.url, folder=folder),
            Driver("archive", archive, url=nodes.url, folder=folder),
        ]

    async def run(self) -> list[Check]:
        """Everything between the start of the cluster and its end."""
        # By scheduled departure: the file begins with January, October, November.
        sent = sorted(flights(self._rows), key=_hour)
        async with raftmq.connect(self._nodes.url) as mq:
            await mq.admin.create_topic(TOPIC, queues=QUEUES)
            async with self._driving():
                with self._screen.progress(self._rows, ["live", "archive"]):
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(self._show, mq)
                        tasks.start_soon(self._break)
                        await self._send(mq, sent)
                await self._finish()
            ends = await mq.admin.find_offsets(TOPIC, "latest")
            lag = await self._lag(mq)
        self._screen.note("comparing what was written with what was sent")
        return await to_thread.run_sync(self._prove, sent, ends, lag)

    @asynccontextmanager
    async def _driving(self) -> AsyncIterator[None]:
        for driver in self._drivers:
            driver.start()
            self._screen.note(f"`{driver.name}` starts its Spark (pid {driver.pid})")
        try:
            yield
        finally:
            for driver in self._drivers:
                driver.kill()

    async def _send(self, mq: raftmq.Client, sent: list[Flight]) -> None:
        """Send all flights at an even pace, in order, chunk by chunk."""
        begun = anyio.current_time()
        async with mq.producer(TOPIC) as producer:
            for chunk in _chunks(sent):
                if self._acked >= self._rows * HOLD_AT:
                    await self._were_killed.wait()
                due = begun + SENDING_SECONDS * self._acked / self._rows
                await anyio.sleep_until(due)
                await producer.send_many(
                    [Outgoing(f.body, f.key, f.tag, f.props) for f in chunk], timeout=60.0
                )
                self._acked += len(chunk)
                self._moved.set()
                self._moved = anyio.Event()

    async def _break(self) -> None:
        nodes, screen = self._nodes, self._screen
        await self._until(KILL_LEADER_AT)
        leader = await nodes.leader(1)
        nodes.kill(leader)
        screen.note(f"SIGKILL to node {leader}, leader of partition group 1", style="bold red")
        await self._until(RESTART_AT)
        await nodes.restart(leader)
        screen.note(f"node {leader} was started again")
        await self._until(KILL_DRIVERS_AT)
        await self._has_read.wait()
        for driver in self._drivers:
            driver.check()
            driver.kill()
            screen.note(f"SIGKILL to the driver of `{driver.name}`", style="bold red")
        for driver in self._drivers:
            driver.start()
        self._were_killed.set()
        screen.note("both drivers were started again, with the same commands")

    async def _until(self, share: float) -> None:
        while self._acked < self._rows * share:
            await self._moved.wait()

    async def _show(self, mq: raftmq.Client) -> None:
        """Move the bars until both jobs have read all acked messages."""
        while True:
            for driver in self._drivers:
                driver.check()
            read = await self._read(mq)
            self._screen.show(self._acked, read)
            if min(read.values()) > 0:
                self._has_read.set()
            if self._acked == self._rows == min(read.values()):
                return
            await anyio.sleep(LOOK_SECONDS)

    async def _read(self, mq: raftmq.Client) -> dict[str, int]:
        """Number of messages that each job has committed."""
        groups = {group.name: group for group in await mq.admin.list_groups(topic=TOPIC)}
        read = dict.fromkeys((driver.name for driver in self._drivers), 0)
        for name in read:
            for group_name, group in groups.items():
                if group_name.startswith(f"spark-{name}"):
                    read[name] = sum(offset.committed or 0 for offset in group.offsets)
        return read

    async def _lag(self, mq: raftmq.Client) -> dict[str, int]:
        read = await self._read(mq)
        return {name: self._rows - count for name, count in read.items()}

    async def _finish(self) -> None:
        self._screen.note("all is acked and read; both jobs end, and run again to the end")
        for driver in self._drivers:
            await to_thread.run_sync(driver.stop)
            await to_thread.run_sync(driver.finish, "--once")

    def _prove(self, sent: list[Flight], ends: dict[int, int], lag: dict[str, int]) -> list[Check]:
        total = sum(ends.values())
        wrong = [] if total == self._rows else [f"{total} of {self._rows} are in the queues"]
        rows = archived(self._archive)
        return [
            Check("each message was sent and acked", "", abs(self._rows - total), wrong),
            *check_archive(rows, {flight.row: flight for flight in sent}, ends),
            *check_windows(expected(sent), windows_of(self._board / "windows")),
            *(Check("its lag is 0", name, count) for name, count in lag.items()),
        ]


def _hour(flight: Flight) -> str:
    row = msgspec.json.decode(flight.body)
    hour: str = row["time_hour"]
    return hour


def _chunks(sent: list[Flight]) -> Iterator[list[Flight]]:
    return (sent[at : at + CHUNK] for at in range(0, len(sent), CHUNK))
