"""A group's window: masks and keys of messages that it has not handed out."""

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftmq.pop import windows
from raftmq.pop.groups import PopGroup
from raftmq.pop.policy import Policy
from raftmq.pop.spans import Span, run
from raftmq.pop.windows import CROWDED_MAX, CROWDED_MIN, WINDOW_MAX, WINDOW_MIN, Fill, Window


def filtered() -> PopGroup:
    group = PopGroup(Policy(), is_filtered=True)
    group.follow(7, 0)
    return group


def serve(group: PopGroup, size: int = 100) -> list[Span]:
    group.ask(1, size, invisible_ms=100, until=10**9)
    start = group._leases._note_count + 1
    return [one.messages for one in group.hand_out({7: 10**6}, 0, count(start).__next__)]


def test_messages_that_do_not_match_are_passed_and_never_handed_out() -> None:
    group = filtered()
    assert serve(group) == []
    assert group.feed(7, 0, 8, mask=0b0110_1100, keys=None) == 8
    assert serve(group) == [Span(2, 0b11011, 1)]
    assert group.counts(7).passed == 4
    assert group.backlogs[7].next == group.known(7) == 8


def test_nothing_that_matches_leaves_no_window() -> None:
    group = filtered()
    for base in range(0, 10**6, 50_000):
        assert group.feed(7, base, 50_000, mask=0, keys=None) == 50_000
    assert group.counts(7).passed == 10**6
    assert group.wants_feed({7: 10**6}) == []


def test_window_is_fed_up_to_its_bound_and_no_further() -> None:
    group = filtered()
    assert group.feed(7, 0, WINDOW_MAX - 1, mask=None, keys=None) == WINDOW_MAX - 1
    assert group.feed(7, WINDOW_MAX - 1, 9, mask=None, keys=None) == 1
    assert group.feed(7, WINDOW_MAX, 9, mask=None, keys=None) == 0
    assert group.known(7) == WINDOW_MAX


def test_window_wants_to_be_fed_when_little_is_left_and_there_is_more() -> None:
    group, ends = filtered(), {7: 3 * WINDOW_MAX}
    assert group.wants_feed(ends) == [(7, 0)]
    group.feed(7, 0, WINDOW_MIN, mask=None, keys=None)
    assert group.wants_feed(ends) == []
    serve(group, 1)
    assert group.wants_feed(ends) == [(7, WINDOW_MIN)]
    assert PopGroup.load(group.dump(0)).wants_feed(ends) == [(7, WINDOW_MIN)]
    assert group.wants_feed({7: WINDOW_MIN}) == []
    group.came(7)
    assert group.wants_feed({7: WINDOW_MIN + 1}) == [(7, WINDOW_MIN)]


@pytest.mark.parametrize(
    ("queue", "base", "size", "keys"),
    [
        (8, 0, 1, b""),
        (7, 1, 1, b""),
        (7, -1, 1, b""),
        (7, 0, 0, b""),
        (7, 0, -5, b""),
        (7, 0, 2, b"x"),
    ],
)
def test_told_amiss_nothing_changes(queue: int, base: int, size: int, keys: bytes) -> None:
    group = filtered()
    before = group.dump(0)
    assert group.feed(queue, base, size, mask=None, keys=keys) == 0
    assert group.dump(0) == before


def test_group_that_needs_no_telling_is_told_nothing() -> None:
    group = PopGroup(Policy())
    group.follow(7, 5)
    assert group.feed(7, 5, 1, mask=None, keys=b"") == 0
    assert group.wants_feed({7: 100}) == []
    assert group.known(7) == 5


def test_filter_that_comes_later_begins_where_the_group_is() -> None:
    group = PopGroup(Policy())
    group.follow(7, 0)
    assert serve(group, 3) == [run(0, 3, 1)]
    group.set_filtered(True)
    assert serve(group) == []
    assert group.wants_feed({7: 100}) == [(7, 3)]
    group.feed(7, 3, 4, mask=0b1010, keys=None)
    assert serve(group) == [Span(4, 0b101, 1)]
    group.set_filtered(False)
    assert serve(group, 5) == [run(7, 5, 1)]


def test_retention_that_overtakes_the_window_counts_what_it_took() -> None:
    group = filtered()
    group.feed(7, 0, 8, mask=0b1000_1010, keys=None)
    group.trim(7, 20)
    assert group.known(7) == 20
    # Three match and are known, twelve were never looked at; the rest did not match.
    assert group.audit() | {"lost": 15, "passed": 5} == group.audit()


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 600), st.booleans()), max_size=20))
def test_window_is_a_queue_of_bits_and_keys(steps: list[tuple[int, int, bool]]) -> None:
    window, model, fed = Window(Fill(), is_keyed=True), list[tuple[bool, int]](), count(1)
    for size, bits, is_fed in steps:
        if is_fed:
            keys = [next(fed) for _ in range(size)]
            told = b"".join(key.to_bytes(4, "little") for key in keys)
            assert window.feed(size, bits, told) == size
            model += [(bool(bits >> n & 1), key) for n, key in enumerate(keys)]
        else:
            cut = min(size, len(model))
            bits = window.cut(cut)
            assert bits == sum(matches << n for n, (matches, _) in enumerate(model[:cut]))
            del model[:cut]
        assert window.width == len(model)
        assert window.mask == sum(matches << n for n, (matches, _) in enumerate(model))
        assert bytes(window.keys or b"") == b"".join(key.to_bytes(4, "little") for _, key in model)
        assert Window.load(window.dump(), Fill()).dump() == window.dump()


def test_windows_of_many_queues_make_do_with_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "FED_MAX", 2 * WINDOW_MAX)
    group = PopGroup(Policy(), is_filtered=True)
    ends = dict.fromkeys(range(5), 10**6)
    fed = []
    for queue in ends:
        group.follow(queue, 0)
        fed.append(group.feed(queue, 0, WINDOW_MAX, mask=None, keys=None))
    assert fed == [WINDOW_MAX, WINDOW_MAX] + [CROWDED_MAX] * 3
    group.ask(1, 3 * WINDOW_MAX, invisible_ms=100, until=10**9)
    assert group.wants_feed(ends) == []
    for one in (group, PopGroup.load(group.dump(0))):
        one.backlogs[4].take(CROWDED_MAX - CROWDED_MIN + 1, 0)
        one.came(4)
        assert one.wants_feed(ends) == [(4, CROWDED_MAX)]
        # When one of the large ones is worked off there is room again.
        one.backlogs[0].take(WINDOW_MAX, 0)
        assert one.feed(4, CROWDED_MAX, WINDOW_MAX, mask=None, keys=None) > CROWDED_MAX
