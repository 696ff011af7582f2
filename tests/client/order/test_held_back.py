"""Restoring the order of streams: the core, without a clock and without a cluster."""

from collections import Counter
from collections.abc import Iterator, Sequence
from math import inf
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftmq.client.order import held_back
from raftmq.client.order.held_back import HeldBack
from raftmq.errors import MissingMessages

GAP_SECONDS = 10.0


class Sent(NamedTuple):
    """A message of a test."""

    stream: str
    number: int
    copy: int = 0


def empty(known: dict[str, int] | None = None, **bounds: Any) -> HeldBack[Sent]:
    bounds = {"messages_max": 100, "bytes_max": 1 << 20, **bounds}
    return HeldBack(known or {}, gap_seconds=GAP_SECONDS, **bounds)


def put(held: HeldBack[Sent], stream: str, *numbers: int, now: float = 0.0) -> list[object]:
    """Put numbers of a stream; what can be taken meanwhile."""
    taken: list[object] = []
    for number in numbers:
        sent = Sent(stream, number)
        held.put(sent, stream=stream, number=number, answer=b"x" * 10, now=now)
        taken += drained(held, now)
    return taken


def drained(held: HeldBack[Sent], now: float) -> list[object]:
    """Numbers of messages, and (first, last) of gaps, that can be taken."""
    return [
        (out.first, out.last) if isinstance(out, MissingMessages) else out.number
        for out in outs(held, now)
    ]


def outs(held: HeldBack[Sent], now: float) -> Iterator[Sent | MissingMessages]:
    """All that can be taken now."""
    while (out := held.take(now)) is not None:
        yield out


def test_message_waits_for_those_before_it() -> None:
    held = empty()
    assert put(held, "s", 0) == [0]
    assert put(held, "s", 2, 3) == []
    assert put(held, "s", 1) == [1, 2, 3]
    assert (len(held), held.next, held.deadline) == (0, {"s": 4}, inf)


def test_repeat_is_dropped_whether_the_first_was_taken_or_is_held_back() -> None:
    held = empty()
    assert put(held, "s", 0, 0, 2, 2) == [0]
    assert put(held, "s", 1, 2, 1, 0) == [1, 2]


def test_gap_is_told_once_its_time_is_over_and_what_comes_later_is_dropped() -> None:
    held = empty()
    assert put(held, "s", 0, 3, now=5.0) == [0]
    assert put(held, "s", 7, now=8.0) == []
    assert held.deadline == 15.0
    assert drained(held, 14.9) == []
    # 7 came later than 3, so its gap waits longer.
    assert drained(held, 15.0) == [(1, 2), 3]
    assert put(held, "s", 1, 2, now=16.0) == []
    assert drained(held, 17.9) == []
    assert drained(held, 18.0) == [(4, 6), 7]


def test_gap_names_its_stream_its_numbers_and_how_long_it_was_waited_for() -> None:
    held = empty()
    put(held, "meter-7", 0, 2)
    told = held.take(GAP_SECONDS)
    assert isinstance(told, MissingMessages)
    assert (told.stream, told.first, told.last) == ("meter-7", 1, 1)
    assert str(told) == "number 1 of stream 'meter-7' did not come within 10 s"


def test_stream_that_is_new_begins_at_its_lowest_number_if_0_does_not_come() -> None:
    held = empty()
    assert put(held, "s", 40) == []
    assert put(held, "s", 42, now=3.0) == []
    assert held.next == {}
    assert drained(held, GAP_SECONDS) == [40]
    assert held.next == {"s": 41}
    assert put(held, "s", 39, 41, now=GAP_SECONDS) == [41, 42]
    assert put(held, "t", 1, 0, now=GAP_SECONDS) == [0, 1]


def test_stream_goes_on_at_the_number_that_the_receiver_has_stored() -> None:
    held = empty({"s": 40})
    assert put(held, "s", 39, 41) == []
    assert put(held, "s", 40) == [40, 41]


def test_streams_do_not_wait_for_each_other() -> None:
    held = empty()
    assert put(held, "a", 0, 2) == [0]
    assert put(held, "b", 0, 1, 2) == [0, 1, 2]
    assert put(held, "a", 1) == [1, 2]


def test_bound_of_messages_tells_the_oldest_gap_at_once() -> None:
    held = empty(messages_max=3)
    put(held, "a", 0, 2)
    put(held, "b", 0, 5, now=1.0)
    told = put(held, "b", 6, now=2.0)
    assert told == [(1, 1), 2]
    assert held.fill < 1
    held.put(Sent("b", 7), stream="b", number=7, answer=b"", now=3.0)
    text = str(held.take(3.0))
    assert text.startswith("numbers 1 to 4 of stream 'b' did not come before 3 messages (10 bytes)")


def test_bound_of_bytes_counts_an_answer_once_however_many_of_its_messages_are_held_back() -> None:
    held, answer = empty(bytes_max=100), b"x" * 60
    for number in (1, 2, 3):
        held.put(Sent("s", number), stream="s", number=number, answer=answer, now=0.0)
    assert (held.byte_count, drained(held, 0.0)) == (60, [])
    held.put(Sent("s", 5), stream="s", number=5, answer=b"y" * 40, now=0.0)
    assert drained(held, 0.0) == [(0, 0), 1, 2, 3]
    assert held.byte_count == 40


def test_newer_copy_takes_the_place_of_the_message_held_back() -> None:
    held = empty()
    put(held, "s", 0, 2)
    assert held.find("s", 2) == Sent("s", 2)
    assert held.find("s", 1) is None
    held.replace("s", 2, Sent("s", 2, copy=1), b"z" * 25)
    assert (len(held), held.byte_count, held.deadline) == (1, 25, GAP_SECONDS)
    held.put(Sent("s", 1), stream="s", number=1, answer=b"", now=3.0)
    assert [held.take(3.0), held.take(3.0)] == [Sent("s", 1), Sent("s", 2, copy=1)]
    assert held.byte_count == 0


def test_stream_that_was_idle_longest_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_back, "STREAMS_MAX", 2)
    held = empty()
    put(held, "a", 0)
    put(held, "b", 0)
    put(held, "a", 1)
    put(held, "c", 0)
    assert held.next == {"a": 2, "c": 1}
    assert held.stream_count == 2


class Arrival(NamedTuple):
    """A message that comes at a time."""

    at: float
    sent: Sent


@st.composite
def arrivals(draw: st.DrawFn) -> list[Arrival]:
    """Messages of some streams, spread over queues, with losses and repeats, queues interleaved."""
    queues: list[list[Sent]] = [[] for _ in range(draw(st.integers(1, 4)))]
    for stream in "abc"[: draw(st.integers(1, 3))]:
        for number in range(draw(st.integers(0, 12))):
            # 0: the message is lost; above 1: the sender sent it again.
            for copy in range(draw(st.sampled_from([0, 1, 1, 1, 1, 2]))):
                draw(st.sampled_from(queues)).append(Sent(stream, number, copy))
    came, now = [], 0.0
    while any(queues):
        queue = draw(st.sampled_from([queue for queue in queues if queue]))
        came.append(Arrival(now, queue.pop(0)))
        now += draw(st.sampled_from([0.0, 0.0, 1.0, GAP_SECONDS]))
    return came


def played(held: HeldBack[Sent], came: Sequence[Arrival]) -> Iterator[Sent | MissingMessages]:
    """All that is taken, until nothing is held back; the bound is checked at each step."""
    for at, sent in came:
        held.put(sent, stream=sent.stream, number=sent.number, answer=b"x", now=at)
        yield from outs(held, at)
        assert held.fill < 1
        assert len(held) == len(list(held)) == sum(held._kept.values())
    while held.deadline < inf:
        yield from outs(held, held.deadline)


@given(came=arrivals(), messages_max=st.integers(1, 12))
def test_each_stream_comes_in_order_each_number_once_or_told_as_missing(
    came: list[Arrival], messages_max: int
) -> None:
    held = empty(messages_max=messages_max)
    # By stream, the numbers that were taken or told, in that order.
    numbers: dict[str, list[int]] = {}
    taken = Counter[tuple[str, int]]()
    told = set[tuple[str, int]]()
    for out in played(held, came):
        if isinstance(out, MissingMessages):
            gap = range(out.first, out.last + 1)
            numbers.setdefault(out.stream, []).extend(gap)
            told |= {(out.stream, number) for number in gap}
        else:
            numbers.setdefault(out.stream, []).append(out.number)
            taken[out.stream, out.number] += 1
    for stream, each in numbers.items():
        assert each == list(range(each[0], each[-1] + 1))
        assert held.next[stream] == each[-1] + 1
    assert set(taken.values()) <= {1}
    assert not told & set(taken)
    # Each message was taken, or came after its number was told or passed by the beginning.
    for _, sent in came:
        begins = numbers[sent.stream][0]
        name = sent.stream, sent.number
        assert name in taken or name in told or sent.number < begins
    assert (len(held), held.byte_count) == (0, 0)


@given(came=arrivals())
def test_without_loss_and_in_time_all_messages_come_and_no_gap_is_told(
    came: list[Arrival],
) -> None:
    held = empty(dict.fromkeys("abc", 0), messages_max=1000)
    lost = {
        (stream, number)
        for stream in "abc"
        for number in range(12)
        if all(each.sent[:2] != (stream, number) for each in came)
    }
    at_once = [each._replace(at=0.0) for each in came]
    found = list(played(held, at_once))
    gaps = {
        (out.stream, number)
        for out in found
        if isinstance(out, MissingMessages)
        for number in range(out.first, out.last + 1)
    }
    taken = {out[:2] for out in found if isinstance(out, Sent)}
    assert taken == {each.sent[:2] for each in came}
    # Exactly the lost numbers below the last one of each stream.
    last = {stream: max(n for s, n in taken if s == stream) for stream, _ in taken}
    assert gaps == {(s, n) for s, n in lost if n < last.get(s, -1)}


def test_beginning_of_an_unknown_stream_that_a_bound_cuts_short_is_reported() -> None:
    held = empty(messages_max=3)
    assert put(held, "s", 7, 8, 9) == [(0, 6), 7, 8, 9]
    # Too late, and it was told.
    assert put(held, "s", 0) == []
    # The time that a beginning has is over: the receiver may have begun in the middle.
    assert put(held, "t", 4, now=1.0) == []
    assert drained(held, 1.0 + GAP_SECONDS) == [4]


def test_numbers_of_a_receiver_are_taken_by_the_next_however_many_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(held_back, "STREAMS_MAX", 2)
    held = empty()
    assert put(held, "a", 0) + put(held, "b", 0, 2) + put(held, "c", 0) == [0, 0, 0]
    assert held.next == {"a": 1, "c": 1, "b": 1}
    # The last of them are kept.
    assert empty(held.next).next == {"c": 1, "b": 1}
