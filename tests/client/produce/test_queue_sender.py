"""A queue's sender whose connections break at the worst moments."""

from collections.abc import Awaitable, Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from raftmq.batch import Limits
from raftmq.client.produce.producer_batch import PendingSend
from raftmq.client.produce.queue_sender import QueueSender, SenderHost
from raftmq.client.produce.settings import ProducerSettings
from raftmq.client.routing.connection import Answer, Lost
from raftmq.client.routing.weights import Weights
from raftmq.errors import Rejected
from raftmq.wire.codec import pack
from raftmq.wire.frame import Frame
from raftmq.wire.messages import ErrorReply, FrameKind

QUEUE = 1 << 16
LOST = Lost(was_written=True, why="it broke")


class FakeConnection:
    node = 1
    has_room = True

    def __init__(self, *, is_open: bool = True) -> None:
        self.is_open = is_open
        self.asked: list[Callable[[Answer], None]] = []

    def post(self, kind: int, header: bytes, body: Any, on: Callable[[Answer], None]) -> object:
        self.asked.append(on)
        return object()


class FakeRouter:
    last_error = "no node answers"

    def __init__(self, first: FakeConnection, *later: FakeConnection) -> None:
        self.current = first
        self.later = list(later)
        self.weights = Weights()

    def open_leader(self, group: int) -> FakeConnection | None:
        return self.current if self.current.is_open else None

    async def leader(self, group: int) -> FakeConnection:
        self.current = self.later.pop(0)
        return self.current

    def delay(self, attempt: int) -> float:
        return 0.01


def start(
    tasks: anyio.abc.TaskGroup, router: FakeRouter, count: int
) -> tuple[QueueSender, list[PendingSend]]:
    """A sender with batches in flight, of one message each."""

    def run(function: Callable[[], Awaitable[None]]) -> anyio.CancelScope:
        scope = anyio.CancelScope()

        async def scoped() -> None:
            with scope:
                await function()

        tasks.start_soon(scoped)
        return scope

    host = SenderHost(
        producer=1,
        topic="t",
        router=router,  # type: ignore[arg-type]
        tasks=SimpleNamespace(is_closed=False, start=run),  # type: ignore[arg-type]
        random=Random(1),
        now_ms=lambda: 0,
        limits=Limits(),
        settings=lambda: ProducerSettings(batch_bytes=1000, batch_messages=1),
        give_back=lambda entry: None,
        failed=lambda entry: None,
        sealed=lambda sender, size, calls: None,
        pump_later=lambda sender, is_after_answer: sender.pump(),
    )
    sender = QueueSender(host, queue_number=QUEUE, group=1)
    deadline = anyio.current_time() + 100
    entries = [
        PendingSend(
            queue_number=QUEUE, size=10, deadline=deadline, arguments=(b"x", None, None, None, 0)
        )
        for _ in range(count)
    ]
    for entry in entries:
        sender.append(entry)
        sender.pump(is_flush=True)
    return sender, entries


async def settled(sender: QueueSender) -> None:
    with anyio.fail_after(5):
        while sender.is_recovering:
            await anyio.sleep(0.01)


@pytest.mark.anyio
async def test_batch_is_resent_though_the_next_connection_breaks_as_it_is_handed_over() -> None:
    first, sound = FakeConnection(), FakeConnection()
    async with anyio.create_task_group() as tasks:
        sender, _ = start(tasks, FakeRouter(first, FakeConnection(is_open=False), sound), 1)
        first.is_open = False
        first.asked[0](LOST)
        await settled(sender)
        assert len(sound.asked) == 1
        tasks.cancel_scope.cancel()


@pytest.mark.anyio
async def test_batch_in_doubt_behind_one_that_was_refused_for_good_is_sent_under_a_new_number() -> (
    None
):
    first, sound = FakeConnection(), FakeConnection()
    async with anyio.create_task_group() as tasks:
        sender, (refused, behind) = start(tasks, FakeRouter(first, sound), 2)
        reply = pack(ErrorReply("too_many_delayed", "the topic has its limit of delayed messages"))
        first.asked[0](Frame(FrameKind.ERROR, 1, reply, b""))
        first.is_open = False
        first.asked[1](LOST)
        await settled(sender)
        assert isinstance(refused.error, Rejected)
        assert behind.error is None
        assert len(sound.asked) == 1
        tasks.cancel_scope.cancel()
