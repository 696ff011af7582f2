"""The blocking client: calls that it passes on to the async one."""

import inspect
import socket
import time
from pathlib import Path

import pytest

import raftmq
from raftmq.client.blocking.client import BlockingAdmin, BlockingClient
from raftmq.client.pop.handles import handle_of
from raftmq.errors import Unavailable


def test_connect_without_waiting_fails_at_once_where_nothing_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"raftmq://127.0.0.1:{taken.getsockname()[1]}"
        begun = time.monotonic()
        with (
            pytest.raises(Unavailable, match="no process listens"),
            raftmq.blocking.connect(url, timeout=60.0, wait_refused=0.0),
        ):
            pass
        assert time.monotonic() - begun < 30, "it waited until the time was over"


def test_messages_are_settled_by_their_handles(tmp_path: Path) -> None:
    with raftmq.blocking.open(tmp_path) as mq:
        mq.admin.create_topic("orders", queues=2)
        with mq.producer("orders") as producer:
            producer.send_many([b"%d" % n for n in range(3)])
        with mq.consumer("orders", group="g", mode="pop", prefetch=0) as consumer:
            handles: list[str] = []
            while len(handles) < 3:
                popped = consumer.pop(3, wait=5.0)
                handles += [handle_of(each) for each in popped]
        assert mq.settle(handles[:2]) == [True, True]
        assert mq.settle(handles[2:], "reject", reason="bad") == [True]
        assert mq.settle(handles) == [False] * 3
        assert mq.acked_before(handles) == [True, True, False]


def test_producer_shows_the_weights_of_the_nodes(tmp_path: Path) -> None:
    with raftmq.blocking.open(tmp_path) as mq:
        mq.admin.create_topic("orders", queues=2)
        with mq.producer("orders") as producer:
            queues = [producer.send(b"x").queue for _ in range(4)]
            assert sorted(queues) == [0, 0, 1, 1]
            assert producer.statistics().weights == {1: 1.0}


@pytest.mark.parametrize(
    ("of", "blocking"), [(raftmq.Client, BlockingClient), (raftmq.Admin, BlockingAdmin)]
)
def test_blocking_face_has_every_call_of_the_async_one(of: type, blocking: type) -> None:
    def calls(each: type) -> set[str]:
        return {name for name, _ in inspect.getmembers(each, callable) if name[0] != "_"}

    assert calls(of) - calls(blocking) == set()


def test_blocking_connect_has_every_option_of_the_async_one() -> None:
    options = set(inspect.signature(raftmq.connect).parameters)
    assert options - set(inspect.signature(raftmq.blocking.connect).parameters) == {"world"}


def test_what_was_entered_and_never_left_is_left_with_the_client_and_commits_nothing(
    tmp_path: Path,
) -> None:
    with raftmq.blocking.open(tmp_path) as mq:
        mq.admin.create_topic("orders")
        mq.producer("orders").__enter__().send(b"sent")
        consumer = mq.consumer("orders", group="g").__enter__()
        assert next(iter(consumer)).body == b"sent"
        # A context that was left in time is not left twice.
        with mq.producer("orders") as producer:
            producer.send(b"too")
        mq.producer("orders").__enter__().transaction(group="g").__enter__().send(b"open")
    with raftmq.blocking.open(tmp_path) as mq:
        with mq.consumer("orders", start="earliest") as reader:
            bodies = [next(iter(reader)).body for _ in range(2)]
        assert sorted(bodies) == [b"sent", b"too"]
        assert not mq.open_transactions()
