"""Plain code whose calls are ended by an exception from a signal handler, and forked children."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType

import anyio
import anyio.lowlevel
import pytest
from anyio.from_thread import start_blocking_portal

import raftmq
from raftmq.client.blocking.loop import Loop
from raftmq.client.produce.transactions import OpenTransaction
from raftmq.errors import RaftmqError


class Alarm(Exception):
    """Raised by the handler of the signal."""


@contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """The body's call is ended after this many seconds."""

    def ring(_: int, __: FrameType | None) -> None:
        raise Alarm

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        with pytest.raises(Alarm):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_call_that_is_ended_by_a_signal_is_cancelled_on_the_loop(backend: str) -> None:
    ended = threading.Event()

    async def wait_for_ever() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    with start_blocking_portal(backend) as portal:
        with alarm(0.2):
            Loop(portal).wait(wait_for_ever)
        assert ended.is_set()


def test_result_that_comes_with_the_interruption_is_put_back() -> None:
    back: list[int] = []

    async def take() -> int:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(0.5)
        return 7

    async def put_back(result: int) -> None:
        back.append(result)

    with start_blocking_portal("asyncio") as portal:
        with alarm(0.2):
            Loop(portal).wait(take, put_back)
        assert back == [7]
        with pytest.raises(ZeroDivisionError):
            Loop(portal).wait(fail, put_back)


async def fail() -> int:
    await anyio.lowlevel.checkpoint()
    raise ZeroDivisionError


def test_messages_that_are_put_back_come_with_the_next_call(tmp_path: Path) -> None:
    with raftmq.blocking.open(tmp_path) as mq:
        mq.admin.create_topic("orders", queues=2)
        sent = [b"%d" % n for n in range(20)]
        with mq.producer("orders") as producer:
            producer.send_many(sent)
        with mq.consumer("orders", group="g") as consumer:
            lost = consumer.fetch(5, wait=5.0)
            while len(lost) < 5:
                lost = consumer.fetch(5, wait=5.0)
            mq._loop.wait(partial(consumer._put_back, lost))
            (one,) = consumer.fetch(1, wait=5.0)
            mq._loop.wait(partial(consumer._put_back, one))
            got: list[bytes] = []
            while messages := consumer.fetch(20, wait=1.0):
                got += messages.bodies
            assert set(lost.bodies) <= set(got)
            assert len(got) == len(set(got))
        with mq.consumer("orders", group="p", mode="pop", invisible=600) as consumer:
            popped = consumer.pop(20, wait=5.0)
            mq._loop.wait(partial(consumer._give_back, popped))
            again = 0
            while again < len(sent):
                batch = consumer.pop(20, wait=5.0)
                assert batch, "what was given back does not come again"
                again += len(batch)
                batch.ack()


def test_messages_that_come_after_a_signal_are_lost_to_nobody(tmp_path: Path) -> None:
    with raftmq.blocking.open(tmp_path) as mq:
        mq.admin.create_topic("orders", queues=1)
        seen: list[bytes] = []
        with mq.producer("orders") as producer:
            with mq.consumer("orders", group="g", auto_commit=0.1) as consumer:
                for turn in range(3):
                    with alarm(0.3):
                        for message in consumer:
                            seen.append(message.body)  # noqa: PERF401  # an alarm ends it
                    producer.send_many([b"%d" % n for n in (2 * turn, 2 * turn + 1)])
                    time.sleep(0.3)
                with alarm(1.0):
                    for message in consumer:
                        seen.append(message.body)  # noqa: PERF401  # an alarm ends it
            with mq.consumer("orders", group="g") as consumer:
                seen += consumer.fetch(10, wait=1.0).bodies
        assert set(seen) == {b"%d" % n for n in range(6)}


def test_forked_child_is_refused_and_leaves_without_waiting(tmp_path: Path) -> None:
    read, write = os.pipe()
    with raftmq.blocking.open(tmp_path) as mq:
        mq.admin.create_topic("orders", queues=1)
        with mq.producer("orders") as producer:
            producer.send(b"parent")
            child = os.fork()
            if child == 0:
                signal.alarm(60)
                try:
                    producer.send(b"child", timeout=3.0)
                except RaftmqError as error:
                    os.write(write, str(error).encode())
        if child == 0:
            os.write(write, b"; left the producer")
    if child == 0:
        os.write(write, b"; left the client")
        os._exit(0)
    _, status = os.waitpid(child, 0)
    said = os.read(read, 10_000).decode()
    assert "forked child" in said
    assert said.endswith("; left the producer; left the client")
    assert status == 0
    with raftmq.blocking.open(tmp_path) as mq, mq.producer("orders") as producer:
        assert producer.send(b"again").offset == 1


def test_forked_child_leaves_a_check_back_whose_callback_blocks(tmp_path: Path) -> None:
    read, write = os.pipe()
    is_asked, may_answer = threading.Event(), threading.Event()

    def check(_: OpenTransaction) -> bool:
        is_asked.set()
        assert may_answer.wait(60)
        return True

    with raftmq.blocking.open(tmp_path) as mq:
        mq.admin.create_topic("orders", queues=1)
        with mq.producer("orders") as producer, producer.transaction(group="shop") as transaction:
            transaction.send(b"half")
            entered_by_parent = mq.check_back("shop", check, after=0.0, every=0.1)
            entered_by_child = mq.check_back("shop", check)
            with entered_by_parent:
                assert is_asked.wait(60)
                child = os.fork()
                if child == 0:
                    signal.alarm(20)
                    try:
                        entered_by_child.__enter__()
                    except RaftmqError as error:
                        os.write(write, str(error).encode())
                else:
                    may_answer.set()
                    while mq.open_transactions("shop"):
                        time.sleep(0.01)
    if child == 0:
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0
    assert "forked child" in os.read(read, 10_000).decode()
