"""Delayed messages and transactions in one process on real files and a real clock."""

import time
from pathlib import Path

import pytest

import raftmq.blocking
from raftmq.client.blocking.transactions import BlockingTransaction
from raftmq.errors import Reason, Rejected

pytestmark = pytest.mark.process


def test_plain_code_sends_for_later_and_takes_back(tmp_path: Path) -> None:
    with raftmq.blocking.open(tmp_path) as mq:
        mq.admin.create_topic("orders", queues=1)
        with mq.producer("orders") as p, mq.consumer("orders") as c:
            sent = p.send(b"soon", delay=2.0)
            p.send_nowait(b"sooner", delay=0.2)
            gone = p.send_many([b"x", b"y"], delay=[3600, 3601]).receipts()
            assert p.send_many_nowait([b"now"], delay=0).wait().receipts()[0].offset == 0
            assert gone[0].id is not None
            assert gone[1].id is not None
            assert p.cancel(gone[0].id)
            assert mq.cancel(gone[1].id)
            got: list[tuple[bytes, int]] = []
            while len(got) < 3:
                got += [(m.body, m.timestamp) for m in c.fetch(1, wait=5.0)]
            assert [body for body, _ in got] == [b"now", b"sooner", b"soon"]
            with mq.consumer("orders") as again:
                numbers = [(m.producer is None, m.sequence) for m in again.fetch(1)]
                while len(numbers) < 3:
                    numbers += [(m.producer is None, m.sequence) for m in again.fetch(1)]
            # The four delayed messages were sent before, and have taken 0 to 3.
            assert numbers == [(False, 4), (True, None), (True, None)]
            late = got[2][1] - sent.deliver_at_ms
            assert 0 <= late < 2_000
            assert sent.id is not None
            with pytest.raises(Rejected) as refused:
                p.cancel(sent.id)
            assert refused.value.reason is Reason.FELL_DUE


def test_messages_wait_while_nobody_is_there(tmp_path: Path) -> None:
    with raftmq.blocking.open(tmp_path) as mq:
        mq.admin.create_topic("orders", queues=1)
        with mq.producer("orders") as p:
            p.send(b"late", delay=0.5)
    time.sleep(0.5)
    with raftmq.blocking.open(tmp_path) as mq, mq.consumer("orders") as c:
        assert c.fetch(1, wait=10.0).bodies == [b"late"]


def fail_in(transaction: BlockingTransaction) -> None:
    """Leave a transaction's block by an exception."""
    with transaction:
        transaction.send(b"never")
        raise ZeroDivisionError


def test_plain_code_has_transactions_and_a_check_back(tmp_path: Path) -> None:
    with raftmq.blocking.open(tmp_path) as mq:
        mq.admin.create_topic("orders", queues=1)
        with mq.producer("orders") as p, mq.consumer("orders") as c:
            with p.transaction(group="shop", note="one") as t:
                t.send(b"a", key="k")
                t.send_many([b"b", b"c"])
            failed = p.transaction(group="shop")
            with pytest.raises(ZeroDivisionError):
                fail_in(failed)
            left = p.transaction(group="shop", note="left open")
            left.send(b"d")
            (found,) = mq.open_transactions("shop")
            assert (found.id, found.note) == (left.id, "left open")
            with mq.check_back("shop", lambda found: found.messages == 1, after=0.0, every=0.05):
                got: list[bytes] = []
                while len(got) < 4:
                    got += c.fetch(4, wait=10.0).bodies
            assert got == [b"a", b"b", b"c", b"d"]
            assert mq.open_transactions() == []
            assert mq.end_transaction(found.id, commit=True) == 0
            with pytest.raises(Rejected):
                failed.commit()


def test_plain_code_hands_off(tmp_path: Path) -> None:
    with raftmq.blocking.open(tmp_path) as mq:
        for name in ("orders", "bills"):
            mq.admin.create_topic(name, queues=1)
        with mq.producer("orders") as p:
            p.send_many([b"a", b"b", b"c"])
        with (
            mq.consumer("orders", group="billing", mode="pop") as c,
            mq.producer("bills") as p,
            mq.consumer("bills") as bills,
        ):
            one = next(iter(c))
            with p.transaction(acks=[one]) as t:
                t.send(b"bill " + one.body)
            rest = c.pop(5)
            (part,) = rest.by_partition_group()
            with p.transaction(acks=part) as t:
                t.send_many([b"bill " + m.body for m in part])
            got: list[bytes] = []
            while len(got) < 3:
                got += bills.fetch(3, wait=10.0).bodies
            assert got == [b"bill a", b"bill b", b"bill c"]
            assert rest.ack().is_complete
            with pytest.raises(Rejected) as refused, p.transaction(acks=part) as t:
                t.send(b"again")
            assert refused.value.reason is Reason.FENCED
