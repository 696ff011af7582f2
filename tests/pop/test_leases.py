"""Leases as columns: single facts; the rest is in test_groups."""

import random

import pytest

from raftmq.pop import leases
from raftmq.pop.leases import Lease, Leases
from raftmq.pop.pieces import Piece
from raftmq.pop.spans import run


@pytest.mark.parametrize("scans", [0, 3, 10**9])
def test_leases_of_a_consumer_are_found_whether_rows_are_in_order_or_not(
    monkeypatch: pytest.MonkeyPatch, scans: int
) -> None:
    monkeypatch.setattr(leases, "_SCANNED_MAX", 20)
    monkeypatch.setattr(leases, "_SCANS_MAX", scans)
    monkeypatch.setattr(leases, "_STALE_MIN", 30)
    draw = random.Random(3)
    held = Leases()
    open_ones: dict[int, Lease] = {}
    for token in range(1, 1500):
        deadline = draw.choice([5, 50])
        lease = Lease(token, 7, Piece(10 * token, 0b101, 2), draw.randint(1, 5), deadline)
        held.open(lease)
        open_ones[token] = lease
        for gone in draw.sample(sorted(open_ones), min(draw.choice([0, 0, 1, 4]), len(open_ones))):
            row = held.find(gone, open_ones.pop(gone).consumer, 0)
            assert row is not None
            assert held.take(row, run(10 * gone, 3)) is not None
        consumer = draw.randint(1, 6)
        assert list(held.of_consumer(consumer, 5)) == [
            (each.token, each.queue, each.messages.span, each.deadline)
            for each in open_ones.values()
            if each.consumer == consumer and each.deadline > 5
        ]
        if token % 200 == 0:
            values = held.dump()
            held = Leases()
            held.load(values)


def test_what_is_left_of_a_lease_is_told() -> None:
    held = Leases()
    held.open(Lease(1, 7, Piece(10, 0b1111, 1), 5, 50))
    row = held.find(1, 5, 0)
    assert row is not None
    held.take(row, run(10, 2))
    assert list(held.of_consumer(5, 0)) == [(1, 7, run(12, 2, 1), 50)]
    assert list(held.of_consumer(5, 50)) == []
