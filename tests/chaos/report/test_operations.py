"""Lanes, rates and quantiles agree with the history, and state what they leave out."""

import numpy as np

from raftmq.chaos.report.operations import (
    LANES_MAX,
    OPERATIONS_MAX,
    curves,
    sample,
    sentence,
    timed,
)
from raftmq.checkers.history import History, Recorder
from tests.chaos.report.made_up import Clock, history


def many(operations: int, processes: int = 2) -> History:
    """Sends of a millisecond each; every hundredth stays unknown."""
    clock = Clock()
    recorder = Recorder(clock)
    for number in range(operations):
        send = recorder.invoke(number % processes, "send", key="q", value=number)
        clock.now += 1_000_000
        if number % 100 == 99:
            recorder.unknown(send)
        else:
            recorder.ok(send, offset=number)
    return recorder.history()


def test_small_history_is_drawn_whole() -> None:
    seen = history()
    shown = sample(seen, timed(seen), 0, [])
    assert len(shown.bars) == shown.total == seen.operation_count
    assert shown.sentence() == f"All {shown.total:,} operations are drawn."


def test_big_history_is_sampled_and_says_so() -> None:
    seen = many(20_000)
    shown = sample(seen, timed(seen), 0, [7, 8, 9])
    assert len(shown.bars) <= OPERATIONS_MAX
    assert f"{len(shown.bars):,} of 20,000 operations are drawn" in shown.sentence()
    assert f"one in {shown.step:,} of the others" in shown.sentence()
    assert shown.step > 1


def test_operations_of_anomalies_and_troubled_ones_are_never_left_out_of_a_sample() -> None:
    seen = many(20_000)
    shown = sample(seen, timed(seen), 0, [7, 8, 9])
    drawn = {bar.operation for bar in shown.bars}
    assert {7, 8, 9} <= drawn
    assert set(range(99, 20_000, 100)) <= drawn
    assert [bar.operation for bar in shown.bars if bar.is_anomalous] == [7, 8, 9]


def test_too_many_processes_are_counted_and_those_with_anomalies_keep_their_lanes() -> None:
    seen = many(2_000, processes=200)
    shown = sample(seen, timed(seen), 0, [199])
    assert len(shown.lanes) == LANES_MAX
    assert 199 in shown.lanes
    assert shown.lanes_left_out == 200 - LANES_MAX
    assert f"without a lane: {200 - LANES_MAX} processes" in shown.sentence()


def test_operations_of_one_process_that_overlap_get_rows_of_their_own() -> None:
    clock = Clock()
    recorder = Recorder(clock)
    sends = [recorder.invoke(0, "send", value=value) for value in range(3)]
    clock.now = 1_000_000
    for send in sends:
        recorder.ok(send)
    seen = recorder.history()
    assert [bar.depth for bar in sample(seen, timed(seen), 0, []).bars] == [0, 1, 2]


def test_rates_count_every_operation_once_and_quantiles_are_those_of_numpy() -> None:
    seen = history(lost=0)
    of = timed(seen)
    found = curves(seen, of, 0, 20_000)
    counted = sum(sum(one.ok) + sum(one.fail) + sum(one.unknown) for one in found)
    assert counted == seen.operation_count
    (send,) = [one for one in found if one.function == "send"]
    code = seen.functions.index("send")
    is_ok = (of.function == code) & (of.outcome == 1)
    latency_ms = (of.end_ns - of.start_ns)[is_ok] / 1e6
    assert np.isclose(max(send.max_ms), latency_ms.max(), atol=1e-3)
    bucket = int(np.argmax(send.ok))
    inside = is_ok & ((of.end_ns / (20_000e6 / 200)).astype(int) == bucket)
    expected = np.percentile((of.end_ns - of.start_ns)[inside] / 1e6, 50, method="inverted_cdf")
    assert np.isclose(send.median_ms[bucket], expected, atol=1e-3)


def test_unanswered_operation_goes_on_to_the_end() -> None:
    clock = Clock()
    recorder = Recorder(clock)
    recorder.invoke(0, "send", value=1)
    clock.now = 5_000_000
    recorder.ok(recorder.invoke(1, "send", value=2))
    seen = recorder.history()
    assert [int(end) for end in timed(seen).end_ns] == [5_000_000, 5_000_000]


def test_operation_in_words_names_the_messages_that_matter() -> None:
    recorder = Recorder(Clock())
    sends = [recorder.invoke(0, "send", key="q", value=value) for value in (10, 11, 12)]
    recorder.ok(sends[0], offset=4)
    recorder.fail(sends[1])
    poll = recorder.invoke(1, "poll", key="q")
    recorder.ok_many(poll, [("q", 10, 4), ("q", 12, 5)])
    empty = recorder.invoke(1, "poll", key="q")
    recorder.ok_many(empty, [])
    seen = recorder.history()
    of = timed(seen)
    words = [sentence(seen, of, one, [seen.values.index(12)]) for one in range(5)]
    assert words == [
        "send 10 in q → ok at offset 4",
        "send 11 in q → fail",
        "send 12 in q → unknown",
        "poll → ok 12 in q at offset 5 and 1 more",
        "poll → ok",
    ]
