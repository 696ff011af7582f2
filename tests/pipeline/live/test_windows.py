"""The rules of windows: each message counts once, and only what is late is left out."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftmq.pipeline.errors import PipelineError
from raftmq.pipeline.live import windows as rules
from raftmq.pipeline.live.windows import Added, Group, Window, Windows, ranked
from tests.pipeline.live.messages import BOARD, LENGTH, Message, direct, partials, window_of


@st.composite
def batches(draw: st.DrawFn, *, lag_us: int) -> list[list[Message]]:
    """Batches of queues whose event times rise, with messages that are late within a bound."""
    ends: Counter[int] = Counter()
    made = []
    for batch in range(draw(st.integers(0, 8))):
        rows = []
        for _ in range(draw(st.integers(0, 12))):
            queue = draw(st.integers(0, 2))
            event = max(0, batch * 150_000 - draw(st.integers(0, lag_us)))
            unusable = draw(st.integers(0, 9)) == 0
            tag = draw(st.sampled_from(["a", "b", None]))
            rows.append(
                Message(queue, ends[queue], None if unusable else event, tag,
                        draw(st.integers(-5, 5)), draw(st.integers(1, 200)))
            )  # fmt: skip
            ends[queue] += 1
        made.append(rows)
    return made


def values(closed: list[Window]) -> dict[tuple[int, Group], tuple[int, int]]:
    return {
        (window.start, group): (cell.count, int(cell.sums[0]))
        for window in closed
        for group, cell in window.cells.items()
    }


def run(windows: Windows, made: list[list[Message]]) -> list[Added]:
    return [windows.add(partials(batch)) for batch in made]


@given(batches(lag_us=200_000))
def test_windows_equal_a_direct_computation_if_nothing_is_later_than_the_lateness(
    made: list[list[Message]],
) -> None:
    windows = Windows(BOARD)
    added = [*run(windows, made), windows.flush()]
    closed = [window for one in added for window in one.closed]
    messages = [message for batch in made for message in batch]
    assert values(closed) == direct(messages)
    assert sum(one.late for one in added) == 0
    assert sum(one.unusable for one in added) == sum(m.event is None for m in messages)
    assert not windows.open


@given(batches(lag_us=900_000))
def test_each_message_is_in_its_window_or_late_or_unusable(made: list[list[Message]]) -> None:
    windows = Windows(BOARD)
    kept: list[Message] = []
    late = 0
    closed = []
    for batch in made:
        watermark = windows.watermark
        added = windows.add(partials(batch))
        starts = [(message, window_of(message)) for message in batch]
        in_time = [m for m, start in starts if start is not None and start + LENGTH > watermark]
        kept += in_time
        missed = [m for m, start in starts if start is not None and start + LENGTH <= watermark]
        late += len(missed)
        assert (added.counted, added.late) == (len(in_time), len(missed))
        assert windows.watermark >= watermark
        closed += added.closed
        # A closed window never comes again.
        assert all(start + LENGTH > windows.watermark for start in windows.open)
    closed += windows.flush().closed
    assert values(closed) == direct(kept)
    starts_closed = [window.start for window in closed]
    assert len(set(starts_closed)) == len(starts_closed)


@given(batches(lag_us=600_000), st.randoms(use_true_random=False))
def test_order_of_rows_within_a_batch_does_not_matter(made, random) -> None:  # type: ignore[no-untyped-def]
    one, other = Windows(BOARD), Windows(BOARD)
    for batch in made:
        rows = partials(batch)
        shuffled = random.sample(rows, len(rows))
        first, second = one.add(rows), other.add(shuffled)
        assert values(first.closed) == values(second.closed)
        assert first[2:] == second[2:]
        assert one.watermark == other.watermark
    assert values(one.flush().closed) == values(other.flush().closed)


def test_watermark_follows_the_queue_that_is_furthest_behind() -> None:
    windows = Windows(BOARD)
    ahead, behind = Message(0, 0, 5_000_000, "a", 1, 1), Message(1, 0, 1_000_000, "a", 1, 1)
    added = windows.add(partials([ahead, behind]))
    assert windows.watermark == 1_000_000 - 200_000
    assert not added.closed
    # The slow queue's next message is not late.
    assert windows.add(partials([Message(1, 1, 1_000_100, "a", 1, 1)])).late == 0


def test_queue_without_messages_holds_nobody_up() -> None:
    windows = Windows(BOARD)
    windows.add(partials([Message(0, 0, 0, "a", 1, 1), Message(1, 0, 0, "a", 1, 1)]))
    added = windows.add(partials([Message(0, 1, 9_000_000, "a", 1, 1)]))
    assert [window.start for window in added.closed] == [0]


def test_queue_whose_messages_are_all_late_holds_nobody_up() -> None:
    windows = Windows(BOARD)
    windows.add(partials([Message(0, 0, 5_000_000, "a", 1, 1)]))
    rows = [Message(0, 1, 8_000_000, "a", 1, 1), Message(1, 0, 0, "a", 1, 1)]
    assert windows.add(partials(rows)).late == 1
    assert windows.watermark == 8_000_000 - 200_000


def test_oldest_windows_close_when_too_many_are_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "WINDOWS_MAX", 3)
    windows = Windows(replace(BOARD, lateness_ms=3_600_000))
    rows = [Message(0, n, n * LENGTH, "a", 1, 1) for n in range(5)]
    added = windows.add(partials(rows))
    assert [window.start for window in added.closed] == [0, LENGTH]
    assert windows.add(partials([Message(0, 5, 0, "a", 1, 1)])).late == 1


def test_too_many_groups_end_the_job_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "CELLS_MAX", 3)
    windows = Windows(BOARD)
    with pytest.raises(PipelineError, match="more than 3 groups are open"):
        windows.add(partials([Message(0, n, 0, str(n), 1, 1) for n in range(4)]))


def test_rows_that_were_counted_are_told_apart_by_their_offsets() -> None:
    windows = Windows(BOARD)
    first = [Message(0, 0, 0, "a", 1, 1), Message(1, 0, 0, "a", 1, 1)]
    windows.add(partials(first))
    again = partials([*first, Message(1, 1, 0, "a", 1, 1), Message(2, 0, 0, "a", 1, 1)])
    assert windows.repeated(again) == {("t", 0): 1, ("t", 1): 1}
    assert not windows.repeated(partials([Message(1, 1, 0, "a", 1, 1)]))


def test_groups_are_ranked_by_the_measure_that_the_board_names() -> None:
    windows = Windows(replace(BOARD, order="cents", top=2))
    rows = [Message(0, n, 0, tag, cents, 1) for n, (tag, cents) in enumerate(
        [("a", 1), ("a", 1), ("b", 5), (None, 3), ("c", 3)])]  # fmt: skip
    windows.add(partials(rows))
    found = ranked(windows.open[0], windows.board)
    assert [(group, row[:2]) for group, row in found] == [(("b",), (1, 5)), ((None,), (1, 3))]
