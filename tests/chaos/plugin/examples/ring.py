"""A plain Python queue that has nothing to do with raftmq, and a test of it."""

import threading
import time

import pytest


class Ring:
    """A queue of a fixed size, between threads."""

    def __init__(self, size: int) -> None:
        self._cells: list[object] = [None] * size
        self._head = self._tail = 0
        self._lock = threading.Lock()

    def put(self, item: object) -> bool:
        """Add an item; False: the queue is full."""
        with self._lock:
            # The bug: a full ring and an empty one look alike, so this is never true.
            if self._tail - self._head > len(self._cells):
                return False
            self._cells[self._tail % len(self._cells)] = item
            self._tail += 1
            return True

    def get(self) -> object:
        """Take the oldest item; None: there is none."""
        with self._lock:
            if self._head == self._tail:
                return None
            item = self._cells[self._head % len(self._cells)]
            self._head += 1
            return item


@pytest.mark.chaos(seeds=3, faults=["consumer-hangs"], time=2)
def test_ring_loses_nothing(history, nemesis):
    ring, runs = Ring(64), threading.Event()
    runs.set()
    nemesis.can("consumer-hangs", lambda event: runs.clear(), lambda event: runs.set())

    def consume():
        while not is_drained.is_set():
            runs.wait(1)
            with history.call(1, "poll") as call:
                item = ring.get()
                call.ok_many([] if item is None else [(None, item, None)])
            time.sleep(0 if item is not None else 0.001)

    is_drained = threading.Event()
    # A daemon: a test that ends before its last lines must not keep pytest alive.
    consumer = threading.Thread(target=consume, daemon=True)
    consumer.start()
    with nemesis:
        while not nemesis.is_over:
            number = history.unique_value()
            with history.call(0, "send", value=number) as call:
                if not ring.put(number):
                    call.fail()
            time.sleep(0.001)
    time.sleep(0.2)
    is_drained.set()
    consumer.join()
