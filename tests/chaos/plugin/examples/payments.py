"""Every payment that was accepted is booked once, whatever happens to brokers and service."""

import sqlite3
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

import raftmq
from raftmq.checkers import check_total_queue
from raftmq.errors import OutcomeUnknown, Rejected, Unavailable

SERVICE = Path(__file__).parent / "bookkeeper.py"


class Bookkeeper:
    """The service's process, and its books."""

    def __init__(self, url, path):
        self.path = path
        self.command = [sys.executable, str(SERVICE), url, str(path)]
        self.process = subprocess.Popen(self.command)

    def kill_and_restart(self):
        self.process.kill()
        self.process.wait()
        self.process = subprocess.Popen(self.command)

    def booked(self):
        with sqlite3.connect(self.path, timeout=10) as books:
            return [
                number for (number,) in books.execute("select number from booked order by rowid")
            ]


@pytest.fixture
def bookkeeper(raftmq_cluster, tmp_path):
    with raftmq.blocking.connect(raftmq_cluster.url) as mq:
        mq.admin.create_topic("payments", queues=3)
    service = Bookkeeper(raftmq_cluster.url, tmp_path / "books.db")
    yield service
    service.process.kill()
    service.process.wait()


@pytest.mark.chaos(seeds=2, faults=["kill-leader", "pause", "kill-bookkeeper"], time=8)
def test_each_payment_is_booked_once(raftmq_cluster, bookkeeper, nemesis, history):
    history.expect(partial(check_total_queue, is_exactly_once=True))
    nemesis.can("kill-bookkeeper", lambda event: bookkeeper.kill_and_restart())
    accepted = 0
    with raftmq.blocking.connect(raftmq_cluster.url) as mq, mq.producer("payments") as producer:
        with nemesis:
            while not nemesis.is_over:
                number = history.unique_value()
                with history.call(
                    0,
                    "send",
                    value=number,
                    failed=(Unavailable, Rejected),
                    unknown=(OutcomeUnknown,),
                ):
                    producer.send(str(number).encode(), key=str(number % 5))
                    accepted += 1
                time.sleep(0.01)
        # All faults are healed. Accepted payments must be booked within 30 s.
        until = time.monotonic() + 30
        while len(bookkeeper.booked()) < accepted and time.monotonic() < until:
            time.sleep(0.1)
    with history.call(1, "poll") as call:
        call.ok_many((None, number, None) for number in bookkeeper.booked())
