"""A group's events of messages that the duel does not reach: filters that go, limits of rows."""

import pytest

from raftmq.log.traces import BEFORE, FROM, ROW_BYTES, EventBuilder, MessageEvent, find, rows_of
from raftmq.pop.groups import PopGroup
from raftmq.pop.message_events import FRESH, EventKind, follow
from raftmq.pop.policy import Mode, Policy

QUEUE = 1 << 16


def state_of(offset: int, events: list[MessageEvent]) -> str:
    builder = EventBuilder()
    builder.add(1, 1, events)
    rows = rows_of(memoryview(builder.section()), QUEUE)
    state = FRESH
    for row in find(rows, queue=QUEUE, offset=offset, after=0):
        state = follow(state, row.kind, detail=row.detail, at=0)
    return state


def test_what_a_filter_passed_over_ahead_of_the_consumers_is_fresh_when_it_goes() -> None:
    group = PopGroup(Policy(), Mode.POP, is_filtered=True)
    group.follow(QUEUE, 0)
    group.feed(QUEUE, 0, 4, mask=0b1010, keys=None)
    assert [state_of(n, group.events) for n in range(4)] == ["passed", "fresh", "passed", "fresh"]
    group.set_filtered(False)
    # Messages before the first match were looked at, and stay passed over.
    assert group.backlogs[QUEUE].next == 1
    assert [state_of(n, group.events) for n in range(4)] == ["passed", "fresh", "fresh", "fresh"]
    group.ask(1, 10, invisible_ms=1000, until=1000)
    (handed,) = group.hand_out({QUEUE: 4}, 0, lambda: 1 << 20)
    assert list(handed.messages.offsets()) == [1, 2, 3]
    assert [state_of(n, group.events) for n in range(4)] == ["passed", *["leased"] * 3]


WIDE = ((1 << 65_536) - 1, 1 << 65_535 | 1)


@pytest.mark.parametrize("bits", [1, BEFORE, FROM, *WIDE], ids=["1", "<", ">", "all", "two"])
def test_row_holds_the_largest_numbers_that_a_log_may_name(bits: int) -> None:
    builder = EventBuilder()
    most = 2**64 - 1
    builder.add(most, 2**40, [MessageEvent(1, most, 2**63, bits, 10**9, most, most, 2**70)])
    section = memoryview(builder.section())
    offset = 2**63 - 1 if bits == BEFORE else 2**63
    (row,) = find(rows_of(section, most), queue=most, offset=offset, after=0)
    assert (row.index, row.consumer, row.token, row.detail) == (most, most, most, 2**63 - 1)
    assert row.attempt == 2**16 - 1
    assert not list(find(rows_of(section, most), queue=most, offset=offset, after=most))
    assert len(section) - 8 - ROW_BYTES == (8192 if bits == WIDE[1] else 0)


def test_nothing_that_happened_is_no_bytes() -> None:
    builder = EventBuilder()
    builder.add(1, 1, [])
    assert builder.section() == b""
    assert builder.snapshot() == []
    assert len(rows_of(memoryview(b""), QUEUE).rows) == 0


def test_state_outlives_a_kind_that_says_nothing_of_it() -> None:
    assert follow("leased", EventKind.EXTENDED, detail=5, at=0) == "leased"
    assert follow("acked", EventKind.TRIMMED, detail=0, at=0) == "acked"
