"""A wrong argument of a public call is refused at the call, in words that say what is right."""

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from inspect import isawaitable
from math import nan
from typing import Any, NamedTuple

import numpy as np
import pytest

from raftmq.client import connect
from raftmq.client.arguments import typed, typed_call
from raftmq.errors import Reason, Rejected, WrongType
from tests.client.consume.test_consumer import fill

from .fake_cluster import URL, FakeCluster

pytestmark = pytest.mark.anyio


class Open(NamedTuple):
    """Objects whose methods the table calls; typed `Any`, as the arguments are wrong."""

    mq: Any
    admin: Any
    p: Any
    c: Any
    pop: Any
    popped: Any
    m: Any


TEXT, WHOLE, SECONDS = "is a text (str), not ", "is a whole number (int), not ", "is a number of s"
FROM_0 = "timeout is a number of seconds, from 0"
CALLS: list[tuple[Callable[[Open], Any], str]] = [
    # Client.
    (lambda o: connect(URL, cluster=None), f"cluster {TEXT}None"),  # type: ignore[arg-type]
    (lambda o: connect(URL, timeout=None), FROM_0),  # type: ignore[arg-type]
    (lambda o: connect(URL, wait_refused="1"), "wait_refused is a"),  # type: ignore[arg-type]
    (lambda o: o.mq.producer(7), f"topic {TEXT}7"),
    (lambda o: o.mq.producer("orders", linger="1"), "linger is a number of seconds or None"),
    (lambda o: o.mq.producer("orders", batch_bytes=2.5), f"batch_bytes {WHOLE}2.5"),
    (lambda o: o.mq.claimed_producer("orders", None), f"session {TEXT}None"),
    (lambda o: o.mq.claimed_producer("orders", "s", label="1"), f"label {WHOLE}'1'"),
    (lambda o: o.mq.claimed_producer("orders", "s", batch_bytes="1"), f"batch_bytes {WHOLE}'1'"),
    (lambda o: o.mq.claim_part("orders", "work", part=None), f"part {WHOLE}None"),
    (lambda o: o.mq.consumer(None), f"topic {TEXT}None"),
    (lambda o: o.mq.consumer("orders", group=7), "group is a text (str) or None, not 7"),
    (lambda o: o.mq.consumer("orders", mode=7), f"mode {TEXT}7"),
    (lambda o: o.mq.consumer("orders", queues=0), "queues is a list, each entry a whole number"),
    (lambda o: o.mq.consumer("orders", group="g", filter=7), f"filter {TEXT}7"),
    (lambda o: o.mq.consumer("orders", group="g", tags=["a"]), f"tags {TEXT}['a']"),
    (lambda o: o.mq.consumer("orders", group="g", session=None), f"session {SECONDS}"),
    (lambda o: o.mq.consumer("orders", name="g"), "consumer() has no option name=: it has "),
    (lambda o: o.mq.consumer("orders", group="g", mode="pop", prefetch=2.5), "prefetch is a whole"),
    (lambda o: o.mq.consumer("orders", group="g", mode="pop", renew="1"), f"renew {SECONDS}"),
    (lambda o: o.mq.settle("1-2-3"), "handles is a list, each entry a text (str), not '1-2-3'"),
    (lambda o: o.mq.settle([7]), "handles is a list, each entry a text (str), not [7]"),
    (lambda o: o.mq.settle([], "nack", delay="5"), f"delay {SECONDS}"),
    (lambda o: o.mq.acked_before(None), "handles is a list"),
    (lambda o: o.mq.progress("orders", None), f"group {TEXT}None"),
    (lambda o: o.mq.get(7), f"message_id {TEXT}7"),
    (lambda o: o.mq.get("1-1", timeout="3"), FROM_0),
    (lambda o: o.mq.get("1-1", timeout=-1), FROM_0),
    (lambda o: o.mq.get("1-1", timeout=True), FROM_0),
    (lambda o: o.mq.trace(None), f"message_id {TEXT}None"),
    (lambda o: o.mq.why(b"1-1"), f"message_id {TEXT}b'1-1'"),
    (lambda o: o.mq.events("1"), f"partition_group {WHOLE}'1'"),
    (lambda o: o.mq.cancel(None), f"message_id {TEXT}None"),
    (lambda o: o.mq.check_back("g", 7), "check is a function, not 7"),
    (lambda o: o.mq.check_back("g", print, every=None), f"every {SECONDS}"),
    (lambda o: o.mq.open_transactions(None), f"group {TEXT}None"),
    (lambda o: o.mq.end_transaction(7, commit=True), f"transaction_id {TEXT}7"),
    (lambda o: o.mq.end_transaction("t1-1", commit=None), "commit is True or False, not None"),
    (lambda o: o.mq.find("orders", key=7), f"key {TEXT}7"),
    (lambda o: o.mq.find("orders", key="k", since=1.5), "since is a datetime or None, not 1.5"),
    (lambda o: o.mq.find("orders", key="k", limit=2.5), f"limit {WHOLE}2.5"),
    # Admin.
    (lambda o: o.admin.create_topic(7), f"name {TEXT}7"),
    (lambda o: o.admin.create_topic("new", 2.5), f"queues {WHOLE}2.5"),
    (lambda o: o.admin.create_topic("new", True), f"queues {WHOLE}True"),
    (lambda o: o.admin.create_topic("new", beside=None), f"beside {TEXT}None"),
    (lambda o: o.admin.describe_topic(["orders"]), f"name {TEXT}['orders']"),
    (lambda o: o.admin.alter_topic("orders", "9"), f"queues {WHOLE}'9'"),
    (lambda o: o.admin.delete_topic(None), f"name {TEXT}None"),
    (lambda o: o.admin.list_groups(topic=7), "topic is a text (str) or None, not 7"),
    (lambda o: o.admin.describe_group(None), f"name {TEXT}None"),
    (lambda o: o.admin.create_consumer_group(None), f"name {TEXT}None"),
    (lambda o: o.admin.create_consumer_group("g", schedule=5), "schedule is a list, each entry "),
    (lambda o: o.admin.create_consumer_group("g", schedule=[nan]), "each entry a number of sec"),
    (lambda o: o.admin.create_consumer_group("g", invisible="9"), f"invisible {SECONDS}"),
    (lambda o: o.admin.create_consumer_group("g", attempts_max=2.5), "attempts_max is a whole num"),
    (lambda o: o.admin.create_consumer_group("g", is_blocking=1), "is_blocking is True or False"),
    (lambda o: o.admin.consumer_groups(name=7), "name is a text (str) or None, not 7"),
    (lambda o: o.admin.delete_consumer_group(None), f"name {TEXT}None"),
    (lambda o: o.admin.attach("orders", None), f"group {TEXT}None"),
    (lambda o: o.admin.detach("orders", b"g"), f"group {TEXT}b'g'"),
    (lambda o: o.admin.backlogs(group=7), "group is a text (str) or None, not 7"),
    (lambda o: o.admin.dead_letters("orders", "g", limit="3"), "limit is a whole number (int) or"),
    (lambda o: o.admin.redrive("letter"), "letters is a list, each entry a DeadLetter"),
    (lambda o: o.admin.purge([7]), "letters is a list, each entry a DeadLetter"),
    (lambda o: o.admin.subscribe("orders", "g", None), f"filter {TEXT}None"),
    (lambda o: o.admin.unsubscribe(7, "g"), f"topic {TEXT}7"),
    (lambda o: o.admin.list_subscriptions(group=7), "group is a text (str) or None, not 7"),
    (lambda o: o.admin.reset_group("g", "orders", to=None), "to is 'earliest', 'latest', a da"),
    (lambda o: o.admin.reset_group("g", "orders", to=1, queues=["0"]), "queues is a list, each en"),
    (lambda o: o.admin.clone_group("g", None, "orders"), f"name {TEXT}None"),
    (lambda o: o.admin.members(7), "group is a text (str) or None, not 7"),
    (lambda o: o.admin.find_offsets("orders", 2.5), "at is 'earliest', 'latest', a datetime or a"),
    (lambda o: o.admin.cluster(timeout="3"), FROM_0),
    (lambda o: o.admin.status("1"), f"node {WHOLE}'1'"),
    (lambda o: o.admin.transfer(1, to=None), f"to {WHOLE}None"),
    (lambda o: o.admin.add_node(4, 7, 7400), f"host {TEXT}7"),
    (lambda o: o.admin.remove_node("4"), f"node {WHOLE}'4'"),
    (lambda o: o.admin.replace_node(1, 4.0, "h", 7400), f"new {WHOLE}4.0"),
    # Producer.
    (lambda o: o.p.send("text"), "a body is bytes, not str"),
    (lambda o: o.p.send(b"", key=7), "key is a text (str), bytes or None, not 7"),
    (lambda o: o.p.send(b"", props="a=1"), "props is a dict or None, not 'a=1'"),
    (lambda o: o.p.send(b"", queue="0"), f"queue {WHOLE}'0'"),
    (lambda o: o.p.send(b"", timeout="1"), FROM_0),
    (lambda o: o.p.send_nowait(None), "a body is bytes, not NoneType"),
    (lambda o: o.p.send_nowait(b"", queue=0.5), f"queue {WHOLE}0.5"),
    (lambda o: o.p.send_nowait(b"", timeout=nan), FROM_0),
    (lambda o: o.p.send_many(7), "messages is a list, not 7"),
    (lambda o: o.p.send_many(bodies=b"text"), "bodies is a list or None, not b'text'"),
    (lambda o: o.p.send_many(bodies=[b""], keys=7), "keys is a list or None, not 7"),
    (lambda o: o.p.send_many(bodies=[b""], props=["a"]), "the props of a message are a dict or"),
    (lambda o: o.p.send_many([b""], queue="0"), "queue is a whole number (int) or None, not '0'"),
    (lambda o: o.p.send_many([b""], timeout=None, check=1), "check is True or False, not 1"),
    (lambda o: o.p.send_many_nowait([b""], timeout="1"), FROM_0),
    (lambda o: o.p.put_arrow([b""]), "rows is a RecordBatch, not [b'']"),
    (lambda o: o.p.flush(timeout="1"), FROM_0),
    (lambda o: o.p.cancel(7), f"message_id {TEXT}7"),
    (lambda o: o.p.transaction(group=7), f"group {TEXT}7"),
    (lambda o: o.p.transaction(acks=7), "acks is a list, each entry a LeasedMessage"),
    (lambda o: o.p.transaction(group="g", timeout="1"), FROM_0),
    # Consumers and messages.
    (lambda o: o.c.fetch(2.5), f"count {WHOLE}2.5"),
    (lambda o: o.c.fetch(wait=None), "wait is a number of seconds, from 0, not None"),
    (lambda o: o.c.commit([1]), "offsets is a dict or None, not [1]"),
    (lambda o: o.c.seek(queue="0", offset=1), "queue is a whole number (int) or None, not '0'"),
    (lambda o: o.c.seek(time=5.0), "time is a datetime or None, not 5.0"),
    (lambda o: o.c.committed(timeout=nan), FROM_0),
    (lambda o: o.pop.pop("3"), f"count {WHOLE}'3'"),
    (lambda o: o.pop.pop(1, wait=nan), "wait is a number of seconds, from 0, not nan"),
    (lambda o: o.pop.ack(o.m), "messages is a list, each entry a LeasedMessage"),
    (lambda o: o.pop.ack(["1-1"]), "messages is a list, each entry a LeasedMessage, not ['1-1']"),
    (lambda o: o.pop.nack([], delay="1"), f"delay {SECONDS}"),
    (lambda o: o.pop.claim(7, ttl=1), "key is a text (str) or bytes, not 7"),
    (lambda o: o.pop.claim("k", ttl=None), f"ttl {SECONDS}"),
    (lambda o: o.pop.flush(timeout="1"), FROM_0),
    (lambda o: o.m.ack(timeout="1"), FROM_0),
    (lambda o: o.m.nack("1"), f"delay {SECONDS}"),
    (lambda o: o.m.reject(None), f"reason {TEXT}None"),
    (lambda o: o.m.extend(None), f"seconds {SECONDS}"),
    (lambda o: o.popped.nack(True), f"delay {SECONDS}"),
    (lambda o: o.popped.extend("9"), f"seconds {SECONDS}"),
]  # fmt: skip


@asynccontextmanager
async def opened(cluster: FakeCluster) -> AsyncIterator[Open]:
    fill(cluster, queues=1, messages=2)
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        mq = await enter(connect(URL, world=cluster))
        p = await enter(mq.producer("orders"))
        c = await enter(mq.consumer("orders", group="reads"))
        pop = await enter(mq.consumer("orders", group="pops", mode="pop"))
        popped = await pop.pop(1, wait=5.0)
        yield Open(mq, mq.admin, p, c, pop, popped, popped[0])
        await popped.ack()


async def _finished(call: Callable[[Open], Any], o: Open) -> None:
    found = call(o)
    if isawaitable(found):
        await found


async def test_wrong_argument_is_refused_at_the_call(cluster: FakeCluster) -> None:
    async with opened(cluster) as o:
        for number, (call, words) in enumerate(CALLS):
            requests = sum(len(node.requests) for node in cluster.nodes.values())
            with pytest.raises(WrongType) as caught:
                await _finished(call, o)
            assert words in str(caught.value), number
            assert caught.value.reason is Reason.BAD_ARGUMENT
            assert isinstance(caught.value, TypeError)
            assert isinstance(caught.value, Rejected)
            sent = sum(len(node.requests) for node in cluster.nodes.values()) - requests
            assert sent == 0, number


def test_right_arguments_of_other_kinds_are_taken() -> None:
    @typed_call
    def call(count: int, wait: float = 0.0, body: bytes = b"", names: Iterable[str] = ()) -> int:
        return count

    assert call(np.int64(7)) == 7  # type: ignore[arg-type]
    assert call(1, np.float32(0.5), bytearray(b"x"), ("a",)) == 1  # type: ignore[arg-type]
    assert call(1, 3, memoryview(b"x"), iter("a")) == 1  # type: ignore[arg-type]


def test_calls_that_are_skipped_or_internal_are_as_they_were() -> None:
    @typed(skip=["fast"])
    class Face:
        def fast(self, body: bytes) -> bytes:
            return body

        def slow(self, body: bytes) -> bytes:
            return body

        def _inside(self, body: bytes) -> bytes:
            return body

    face: Any = Face()
    assert (face.fast("x"), face._inside("x")) == ("x", "x")
    with pytest.raises(WrongType, match="body is bytes, not 'x'"):
        face.slow("x")
