"""A group ordered by key: single facts; the duel is in test_groups."""

import struct
from itertools import count

import pytest

from raftmq.pop import keyed
from raftmq.pop.actions import Action
from raftmq.pop.groups import PopGroup
from raftmq.pop.leases import Handed
from raftmq.pop.pieces import WIDTH_MAX
from raftmq.pop.policy import Mode, Order, Policy
from raftmq.pop.spans import Span, run
from raftmq.pop.windows import WINDOW_MAX
from raftmq.results import Changed

from .counter import Counter, step

A, B, C, NONE = 7, 8, 0xFFFFFFFF, 0
TOKENS = count(1)


def ordered(*, attempts_max: int = 3, is_blocking: bool = False) -> PopGroup:
    policy = Policy((10, 50), attempts_max, 100, Order.KEY, is_blocking)
    group = PopGroup(policy, Mode.ORDERED)
    group.follow(7, 0)
    return group


def feed(group: PopGroup, *keys: int) -> None:
    told = struct.pack(f"<{len(keys)}I", *keys)
    assert group.feed(7, group.known(7), len(keys), mask=None, keys=told) == len(keys)


def serve(group: PopGroup, size: int = 100, now: int = 0, consumer: int = 1) -> list[Handed]:
    group.ask(consumer, size, invisible_ms=100, until=10**9)
    return group.hand_out({7: 10**6}, now, TOKENS.__next__)


def offsets(handed: list[Handed]) -> list[list[int]]:
    return [list(one.messages.offsets()) for one in handed]


def test_one_message_of_each_key_is_out_at_a_time_and_all_without_a_key() -> None:
    group = ordered()
    feed(group, A, B, A, NONE, C, A, B, NONE)
    (first,) = serve(group)
    assert first.messages == Span(0, 0b10011011, 1)
    assert group.counts(7).held == 3
    group.ack(1, first.token, run(0, 1), 0)
    (second,) = serve(group, consumer=2)
    assert offsets([second]) == [[2]]
    group.ack(1, first.token, run(1, 7), 0)
    group.ack(2, second.token, run(2, 1), 0)
    assert offsets(serve(group)) == [[5, 6]]


def test_key_whose_message_failed_waits_and_the_others_flow() -> None:
    group = ordered()
    feed(group, A, B, A, B)
    (first,) = serve(group)
    group.nack(1, first.token, run(0, 1), 0)
    group.ack(1, first.token, run(1, 1), 0)
    (second,) = serve(group)
    assert offsets([second]) == [[3]]
    group.pass_time(10)
    (again,) = serve(group, now=10)
    assert again.messages == run(0, 1, 2)
    group.ack(1, again.token, again.messages, 10)
    assert offsets(serve(group, now=10)) == [[2]]


def test_order_holds_over_a_lease_that_runs_out_and_a_snapshot() -> None:
    group = ordered()
    feed(group, A, A, A)
    serve(group)
    group = PopGroup.load(group.dump(0))
    assert serve(group) == []
    group.pass_time(100)
    assert serve(group, now=100) == []
    group = PopGroup.load(group.dump(0))
    group.pass_time(110)
    (again,) = serve(group, now=110)
    assert again.messages == run(0, 1, 2)


def test_dead_letter_frees_its_key_and_comes_back_late_but_in_turn() -> None:
    group = ordered()
    feed(group, A, A, A)
    (first,) = serve(group)
    group.reject(1, first.token, first.messages, 0, reason="poison")
    (second,) = serve(group)
    assert offsets([second]) == [[1]]
    assert group.redrive(1) == Changed(1)
    assert serve(group) == []
    group.ack(1, second.token, second.messages, 0)
    (third,) = serve(group)
    assert offsets([third]) == [[2]]
    group.ack(1, third.token, third.messages, 0)
    (late,) = serve(group)
    assert late.messages == run(0, 1, 1)


@pytest.mark.parametrize("verb", ["redrive", "purge"])
def test_parked_message_blocks_its_key_alone_until_somebody_attends_to_it(verb: str) -> None:
    group = ordered(attempts_max=1, is_blocking=True)
    feed(group, A, B, A, B)
    (first,) = serve(group)
    group.nack(1, first.token, run(0, 1), 0)
    group.ack(1, first.token, run(1, 1), 0)
    assert offsets(serve(group, now=10**6)) == [[3]]
    group = PopGroup.load(group.dump(0))
    assert serve(group, now=10**6) == []
    getattr(group, verb)(1)
    assert offsets(serve(group, now=10**6)) == [[0] if verb == "redrive" else [2]]


@pytest.mark.parametrize("is_blocking", [False, True])
def test_part_of_a_letter_that_is_redriven_is_in_turn_with_its_own_key(is_blocking: bool) -> None:
    group = ordered(is_blocking=is_blocking)
    feed(group, A, B, C, A, B, C)
    (first,) = serve(group)
    group.reject(1, first.token, run(0, 3), 0, reason="no")
    assert group.redrive(1, run(1, 1)) == Changed(1)
    assert group.dead[1].piece.keys == struct.pack("<2I", A, C)
    group = PopGroup.load(group.dump(0))
    (second,) = serve(group)
    # In a group that does not block the others' turns are over; b's second one has its turn.
    assert offsets([second]) == ([[1]] if is_blocking else [[3, 4, 5]])
    group.ack(1, second.token, second.messages, 0)
    (third,) = serve(group)
    assert offsets([third]) == ([[4]] if is_blocking else [[1]])


def test_key_with_thousands_of_messages_does_not_hold_up_the_others() -> None:
    group = ordered()
    feed(group, *[A] * 20_000, B, C)
    assert offsets(serve(group)) == [[0, 20_000, 20_001]]


def test_chains_are_bounded_and_go_on_when_their_key_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyed, "HELD_MAX", 3)
    group = ordered()
    feed(group, A, A, A, A, A, B)
    (first,) = serve(group)
    assert offsets([first]) == [[0]]
    assert serve(group) == []
    group.ack(1, first.token, first.messages, 0)
    assert offsets(serve(group)) == [[1, 5]]


def test_freed_messages_go_out_together_before_fresh_ones() -> None:
    group = ordered()
    feed(group, *range(1, 501), *range(1, 501), *range(1000, 1100))
    (first,) = serve(group, 500)
    assert first.messages == run(0, 500, 1)
    serve(group, 100)  # looks at all: the second round is held, the rest goes out
    group.ack(1, first.token, first.messages, 0)
    (second,) = serve(group, 1000)
    assert second.messages == run(500, 500, 1)


def test_message_that_retention_took_frees_its_key() -> None:
    group = ordered()
    feed(group, A, A, B, A)
    serve(group)
    group.trim(7, 2)
    assert offsets(serve(group)) == [[3]]
    assert group.counts(7).lost == 2


def test_lease_is_no_wider_than_its_bound() -> None:
    group = ordered()
    feed(group, *[A, A] + [B] * (WINDOW_MAX - 2))
    (first,) = serve(group)
    for _ in range(5):
        feed(group, *[NONE] * 10_000)
        for one in serve(group, 10_000):
            assert one.messages.bits.bit_length() <= WIDTH_MAX
    group.ack(1, first.token, first.messages, 0)
    assert [one.messages.bits.bit_length() <= WIDTH_MAX for one in serve(group)] == [True]


@pytest.mark.parametrize("key", ["", "gBqm00"])
def test_key_whose_checksum_is_0_has_an_order_too(key: str) -> None:
    log = Counter(mode=Mode.ORDERED)
    log.send(2, keys=[key, key])
    (first,) = log.pop(1)
    assert first.messages.size == 1
    assert log.pop(2) == []
    log.settle(1, step(Action.ACK, first))
    assert [one.messages.base for one in log.pop(2)] == [1]


def test_first_filter_holds_for_what_is_held_and_for_what_was_read_ahead() -> None:
    hashes = struct.pack("<9I", A, A, B, A, A, B, A, C, C)
    group, ends = ordered(), {7: 9}
    assert group.feed(7, 0, 9, mask=None, keys=hashes) == 9
    group.ask(5, 2, invisible_ms=1000, until=1000)
    (first,) = group.hand_out(ends, 0, lambda: 1)
    # 1, 3, 4, 6 and 5 are held behind 0 and 2; 7 and 8 are known.
    assert (list(first.messages.offsets()), group.known(7)) == ([0, 2], 9)
    group.set_filtered(True)
    assert group.ack(5, 1, first.messages, 0) == Changed(2)
    group.ask(5, 9, invisible_ms=1000, until=1000)
    assert group.hand_out(ends, 0, lambda: 2) == [], "it is not known yet what matches"
    assert group.feed(7, 1, -2, mask=0, keys=b"") == 0, "a record may hold any number"
    assert group.wants_feed(ends) == [(7, 1)], "what is held comes first"
    group = PopGroup.load(group.dump(0))
    # 4 and 8 match.
    assert group.feed(7, 1, 8, mask=0b1000_1000, keys=hashes[4:]) == 6
    assert group.wants_feed(ends) == [(7, 7)]
    assert group.feed(7, 7, 2, mask=0b10, keys=hashes[28:]) == 2
    (second,) = group.hand_out(ends, 0, lambda: 3)
    assert list(second.messages.offsets()) == [4, 8]
    group.audit()
    assert group.counts(7).passed == 5


def test_without_a_filter_what_was_read_ahead_is_told_anew() -> None:
    hashes = struct.pack("<3I", A, B, C)
    group, ends = ordered(), {7: 3}
    group.set_filtered(True)
    assert group.feed(7, 0, 3, mask=0b101, keys=hashes) == 3
    group.set_filtered(True)
    assert group.known(7) == 3, "another filter holds for what comes after it"
    group.set_filtered(False)
    assert group.wants_feed(ends) == [(7, 0)]
    assert group.feed(7, 0, 3, mask=None, keys=hashes) == 3
    group.ask(5, 9, invisible_ms=1000, until=1000)
    (handed,) = group.hand_out(ends, 0, lambda: 1)
    assert list(handed.messages.offsets()) == [0, 1, 2]
