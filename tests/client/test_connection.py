"""The first request after an answer leaves within `post`; others go through the writing task."""

from random import Random

import anyio
import anyio.lowlevel
import pytest

from raftmq.client.address import Address
from raftmq.client.routing.connection import Answer, Connection, Lost
from raftmq.wire.frame import Frame, FrameParser, encode_frame
from raftmq.wire.messages import REPLY, FrameKind, Welcome

from .pipe import Pipe

pytestmark = pytest.mark.anyio

_WELCOME = Welcome(1, "c", 1, "i", "s", 1 << 20, 1 << 20)
_HEADER = b"\x80"


class PromptPipe(Pipe):
    """A connection in memory whose end can send without waiting, at most `room` bytes a call."""

    def __init__(self) -> None:
        super().__init__()
        self.room = 1 << 20
        self.sent_nowait: list[bytes] = []

    def send_nowait(self, data: bytes) -> int:
        piece = data[: self.room]
        if piece:
            self.sent_nowait.append(piece)
            self.other._inbox.append(piece)
            self.other._event.set()
        return len(piece)


class Node:
    """The other end: it reads frames and answers them."""

    def __init__(self, end: Pipe) -> None:
        self._end = end
        self._parser = FrameParser(1 << 20)
        self._frames: list[Frame] = []

    async def take(self) -> Frame:
        while not self._frames:
            self._parser.feed(await self._end.receive())
            self._frames += self._parser.frames()
        return self._frames.pop(0)

    async def answer(self, frame: Frame) -> None:
        await self._end.send(b"".join(encode_frame(frame.kind | REPLY, frame.correlation, b"")))


def _post(connection: Connection, answers: list[Answer]) -> None:
    connection.post(FrameKind.METADATA, _HEADER, (), answers.append)


async def test_request_after_an_answer_leaves_before_post_returns() -> None:
    near, far = PromptPipe.pair()
    assert isinstance(near, PromptPipe)
    connection, node = Connection(near, Address("h", 1), _WELCOME), Node(far)
    answers: list[Answer] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(connection.run)
        _post(connection, answers)
        first = await node.take()
        assert not near.sent_nowait, "the first one of all went through the writing task"
        await node.answer(first)
        while not answers:
            await anyio.lowlevel.checkpoint()
        _post(connection, answers)
        assert len(near.sent_nowait) == 1
        _post(connection, answers)
        _post(connection, answers)
        assert len(near.sent_nowait) == 1, "the ones after it gather"
        numbers = [(await node.take()).correlation for _ in range(3)]
        assert numbers == [2, 3, 4]
        connection.close()
    assert sum(isinstance(each, Lost) and each.was_written for each in answers) == 3


@pytest.mark.parametrize("room", [0, 1, 10])
async def test_request_that_leaves_in_part_is_finished_in_order(room: int) -> None:
    near, far = PromptPipe.pair()
    assert isinstance(near, PromptPipe)
    connection, node = Connection(near, Address("h", 1), _WELCOME), Node(far)
    answers: list[Answer] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(connection.run)
        _post(connection, answers)
        await node.answer(await node.take())
        while not answers:
            await anyio.lowlevel.checkpoint()
        near.room = room
        for _ in range(3):
            _post(connection, answers)
        assert [(await node.take()).correlation for _ in range(3)] == [2, 3, 4]
        connection.close()


async def test_request_that_left_in_part_counts_as_written() -> None:
    near, far = PromptPipe.pair()
    assert isinstance(near, PromptPipe)
    connection, node = Connection(near, Address("h", 1), _WELCOME), Node(far)
    answers: list[Answer] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(connection.run)
        _post(connection, answers)
        await node.answer(await node.take())
        while not answers:
            await anyio.lowlevel.checkpoint()
        near.room = 3
        request = connection.post(FrameKind.METADATA, _HEADER, (), answers.append)
        assert request.is_written
        assert not connection.forget(request), "a node may act on it: it is not withdrawn"
        connection.close()


class FickleSocket(PromptPipe):
    """Takes part of what it is given, at random: a socket whose buffer is nearly full."""

    def __init__(self) -> None:
        super().__init__()
        self.random = Random(0)

    def send_nowait(self, data: bytes) -> int:
        self.room = self.random.choice((0, 1, 20, 1 << 20))
        return super().send_nowait(data)


@pytest.mark.parametrize("seed", range(40))
async def test_requests_of_callbacks_and_callers_never_mix_on_a_socket_that_takes_parts(
    seed: int,
) -> None:
    """An answer's callback posts, and so do the callers that the answer wakes, at any time."""
    random = Random(seed)
    near, far = FickleSocket.pair()
    assert isinstance(near, FickleSocket)
    near.random = random
    connection, node = Connection(near, Address("h", 1), _WELCOME), Node(far)
    posted: list[int] = []

    def post(is_chained: bool) -> None:
        body = b"%d" % len(posted) * random.randint(1, 40)

        def on_answer(answer: Answer) -> None:
            if is_chained and len(posted) < 60:
                for _ in range(random.choice((0, 1, 1, 2))):
                    post(is_chained=random.random() < 0.7)

        posted.append(connection.post(FrameKind.PRODUCE, b"", [body], on_answer).correlation)

    async def call() -> None:
        while len(posted) < 60:
            await sleep_some(random)
            post(is_chained=random.random() < 0.5)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(connection.run)
        for _ in range(2):
            tasks.start_soon(call)
        for number in range(1, 61):
            frame = await node.take()
            assert frame.correlation == number
            await sleep_some(random)
            await node.answer(frame)
        connection.close()


async def sleep_some(random: Random) -> None:
    """Let other tasks run for some rounds of the loop."""
    for _ in range(random.randint(1, 4)):
        await anyio.lowlevel.checkpoint()
