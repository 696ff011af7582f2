"""Total queue, log and key order on random runs: perfect ones are valid, spoilt ones are not."""

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from raftmq.checkers import (
    History,
    LogRules,
    Recorder,
    Report,
    RowType,
    Verdict,
    check_key_order,
    check_log,
    check_total_queue,
)
from raftmq.checkers.history import NONE, Flags
from raftmq.checkers.traffic import Traffic, traffic
from raftmq.checkers.verdict import judged

from .writing import Script, random_log_run

seeds = st.integers(0, 2**32)


@given(seeds)
@settings(max_examples=80)
def test_perfect_log_is_valid(seed: int) -> None:
    history = random_log_run(random.Random(seed))
    assume((history.outcomes()[history.operation[history.is_function("send")]] == 1).any())
    rules = LogRules(is_send_contiguous=True)
    for report in (check_log(history, rules), check_total_queue(history)):
        assert report.verdict is Verdict.VALID, report
        assert not report.names() - {"duplicated"}
    # Two readers read each queue: to a bag of messages every one of them came twice.
    assert check_total_queue(history).counts["duplicated"] > 0


def pick(rng: random.Random, found: Traffic, chosen: Flags) -> int:
    places = np.flatnonzero(chosen)
    assume(len(places))
    return int(rng.choice(list(places)))


def answered(found: Traffic) -> Flags:
    """Sends that were acknowledged."""
    is_answered: Flags = found.sends.outcome == RowType.OK
    return is_answered


def lose(history: History, found: Traffic, rng: random.Random) -> History:
    """One acknowledged message is in no poll."""
    value = found.sends.value[pick(rng, found, answered(found) & found.is_delivered())]
    rows = found.deliveries.row[found.deliveries.value == value]
    values, offsets = history.value.copy(), history.offset.copy()
    values[rows], offsets[rows] = NONE, NONE
    return replace(history, value=values, offset=offsets)


def invent(history: History, found: Traffic, rng: random.Random) -> History:
    """One delivery brings a value that was never sent."""
    row = found.deliveries.row[pick(rng, found, found.deliveries.value != NONE)]
    values = history.value.copy()
    values[row] = len(history.values)
    return replace(history, value=values, values=[*history.values, "never sent"])


def move(history: History, found: Traffic, rng: random.Random) -> History:
    """One delivery names another offset, past the end."""
    row = found.deliveries.row[pick(rng, found, found.deliveries.value != NONE)]
    offsets = history.offset.copy()
    offsets[row] = int(offsets.max()) + 5
    return replace(history, offset=offsets)


def disagree(history: History, found: Traffic, rng: random.Random) -> History:
    """One delivery shows another sent value at its offset."""
    deliveries = found.deliveries
    place = pick(rng, found, deliveries.value != NONE)
    others = deliveries.value != deliveries.value[place]
    values = history.value.copy()
    values[deliveries.row[place]] = deliveries.value[pick(rng, found, others)]
    # Another delivery must show the offset as it was.
    assume(((deliveries.value == deliveries.value[place]).sum()) > 1)
    return replace(history, value=values)


def swap(history: History, found: Traffic, rng: random.Random) -> History:
    """Two deliveries in a row to one reader of one queue change places."""
    deliveries = found.deliveries
    first = pick(rng, found, deliveries.value != NONE)
    same = (deliveries.process == deliveries.process[first]) & (
        deliveries.key == deliveries.key[first]
    )
    same[: first + 1] = False
    assume(same.any())
    rows = deliveries.row[[first, int(np.flatnonzero(same)[0])]]
    values, offsets = history.value.copy(), history.offset.copy()
    values[rows], offsets[rows] = values[rows[::-1]], offsets[rows[::-1]]
    return replace(history, value=values, offset=offsets)


def fail_a_send(history: History, found: Traffic, rng: random.Random) -> History:
    """A send that took effect reports failure."""
    place = pick(rng, found, answered(found) & found.is_delivered())
    types = history.type.copy()
    is_same = history.operation == found.sends.operation[place]
    types[is_same & (types == RowType.OK)] = RowType.FAIL
    return replace(history, type=types)


def swap_offsets(history: History, found: Traffic, rng: random.Random) -> History:
    """Two sends of one producer to one queue get each other's offsets."""
    sends = found.sends
    first = pick(rng, found, answered(found))
    same = answered(found) & (sends.process == sends.process[first])
    same &= (sends.key == sends.key[first]) & (np.arange(len(same)) > first)
    second = pick(rng, found, same)
    rows = sends.end[[first, second]]
    offsets = history.offset.copy()
    offsets[rows] = offsets[rows[::-1]]
    return replace(history, offset=offsets)


Spoil = Callable[[History, Traffic, random.Random], History]
NONMONOTONIC = {"nonmonotonic-poll", "internal-nonmonotonic-poll"}
LOST = {"lost-prefix", "lost-middle", "lost-postfix"}


@pytest.mark.parametrize(
    ("spoil", "in_log", "in_bag"),
    [
        (lose, {"lost-write", "unseen"}, LOST),
        (invent, {"unexpected"}, {"unexpected"}),
        (move, {"duplicate"}, set()),
        (disagree, {"inconsistent-offset"}, set()),
        (swap, NONMONOTONIC, set()),
        (fail_a_send, {"aborted-read"}, {"aborted-read"}),
        (swap_offsets, {"nonmonotonic-send", "internal-nonmonotonic-send"}, set()),
    ],
)
@given(seed=seeds)
@settings(max_examples=40)
def test_spoilt_log_is_invalid_by_name(
    spoil: Spoil, in_log: set[str], in_bag: set[str], seed: int
) -> None:
    rng = random.Random(seed)
    history = random_log_run(rng)
    found = traffic(history)
    assume(answered(found).any())
    spoilt = spoil(history, found, rng)
    assume(answered(traffic(spoilt)).any())
    report = check_log(spoilt)
    assert report.verdict is Verdict.INVALID
    assert report.names() & in_log
    shows_itself(spoilt, report, check_log)
    bag = check_total_queue(spoilt)
    assert bag.names() & in_bag or not in_bag
    shows_itself(spoilt, bag, check_total_queue)


def shows_itself(history: History, report: Report, check: Callable[[History], Report]) -> None:
    """The minimal sub-history of each anomaly, judged alone, has the same anomaly."""
    for anomaly in report.anomalies:
        rows = np.isin(history.operation, anomaly.operations)
        rows &= np.isin(history.value, [NONE, *anomaly.values]) if anomaly.values else True
        alone = check(history.select(rows))
        # A phantom alone is a history without sends.
        assert anomaly.name in alone.names() or alone.reason.startswith("vacuous"), anomaly
        assert len(anomaly.operations) <= 6


def test_each_part_of_a_loss_has_its_name() -> None:
    for lost, name in ((0, "lost-prefix"), (2, "lost-middle"), (4, "lost-postfix")):
        script = Script()
        for value in range(5):
            script.sent(0, value)
        script.polled(1, *((value, None) for value in range(5) if value != lost))
        report = check_total_queue(script.history())
        assert report.verdict is Verdict.INVALID
        assert report.names() == {name}


def test_missing_end_of_a_queue_that_was_not_drained_is_unknown() -> None:
    script = Script()
    script.sent(0, "a")
    script.sent(0, "b")
    script.polled(1, ("a", None))
    report = check_total_queue(script.history(), is_drained=False)
    assert report.verdict is Verdict.UNKNOWN
    assert "not drained" in report.reason
    assert check_total_queue(script.history()).verdict is Verdict.INVALID


def test_duplicates_are_anomalies_only_of_exactly_once() -> None:
    script = Script()
    script.sent(0, "a")
    script.polled(1, ("a", None))
    script.polled(1, ("a", None))
    assert check_total_queue(script.history()).verdict is Verdict.VALID
    strict = check_total_queue(script.history(), is_exactly_once=True)
    assert strict.verdict is Verdict.INVALID
    assert strict.names() == {"duplicated"}


def test_unknown_send_that_was_delivered_is_recovered() -> None:
    script = Script()
    script.sent(0, "a")
    script.send_unknown(0, "b")
    script.polled(1, ("a", None), ("b", None))
    report = check_total_queue(script.history())
    assert report.verdict is Verdict.VALID
    assert report.counts["recovered"] == 1


def test_loss_of_one_group_is_not_hidden_by_another() -> None:
    script = Script()
    for value in "abc":
        script.sent(0, value)
    script.polled(1, ("a", None), ("b", None), ("c", None), group="first")
    script.polled(2, ("a", None), ("c", None), group="second")
    report = check_total_queue(script.history())
    assert report.verdict is Verdict.INVALID
    assert report.names() == {"lost-middle"}
    assert report.anomalies[0].fact.startswith("group second: 'b'")
    assert not report.counts["duplicated"], "each group gets each message once"


def test_group_that_got_nothing_lost_everything() -> None:
    script = Script()
    script.sent(0, "a")
    script.polled(1, ("a", None), group="first")
    script.polled(2, group="second")
    assert check_total_queue(script.history()).counts["lost-postfix"] == 1


def test_ack_of_one_group_does_not_forbid_another_the_message() -> None:
    script = Script()
    script.sent(0, "a")
    script.polled(1, ("a", None), group="first")
    script.acked(1, "a")
    script.polled(2, ("a", None), group="second")
    assert check_total_queue(script.history()).verdict is Verdict.VALID
    script.polled(3, ("a", None), group="first")
    assert check_total_queue(script.history()).names() == {"duplicated", "redelivered-after-ack"}


def test_report_that_compared_nothing_is_never_valid() -> None:
    report = judged("checker", (), {}, compared=0)
    assert report.verdict is Verdict.UNKNOWN
    assert report.reason.startswith("vacuous: ")
    with pytest.raises(AssertionError, match="vacuous"):
        Report("checker", Verdict.VALID)


def nothing(script: Script) -> None:
    pass


def only_sends(script: Script) -> None:
    script.sent(0, "a", 0)


def only_failures(script: Script) -> None:
    script.send_failed(0, "a")
    script.polled(1)


def only_polls(script: Script) -> None:
    script.polled(1)


@pytest.mark.parametrize("write", [nothing, only_sends, only_failures, only_polls])
@pytest.mark.parametrize("check", [check_total_queue, check_log, check_key_order])
def test_history_that_cannot_show_anything_is_vacuous(
    write: Callable[[Script], None], check: Callable[[History], Report]
) -> None:
    script = Script()
    write(script)
    report = check(script.history())
    assert report.verdict is Verdict.UNKNOWN
    assert report.reason.startswith("vacuous: ")


@pytest.mark.parametrize("check", [check_total_queue, check_log, check_key_order])
def test_value_that_was_sent_twice_makes_the_verdict_unknown(
    check: Callable[[History], Report],
) -> None:
    script = Script()
    script.sent(0, "a", 0)
    script.sent(0, "a", 1)
    script.polled(1, ("a", 0), ("a", 1))
    report = check(script.history())
    assert report.verdict is Verdict.UNKNOWN
    assert "sent twice" in report.reason


def test_log_without_offsets_is_not_judged_as_a_log() -> None:
    script = Script()
    script.sent(0, "a")
    script.polled(1, ("a", None))
    assert check_log(script.history()).verdict is Verdict.UNKNOWN


def test_reader_that_was_assigned_anew_may_start_anywhere() -> None:
    script = Script()
    for offset in range(4):
        script.sent(0, offset, offset)
    script.polled(1, (0, 0), (1, 1), (2, 2), (3, 3))
    script.assigned(1)
    script.polled(1, (1, 1))
    script.assigned(1)
    script.polled(1, (3, 3))
    assert check_log(script.history()).verdict is Verdict.VALID


def test_offsets_without_a_message_are_not_skipped() -> None:
    script = Script()
    script.sent(0, "a", 0)
    script.sent(0, "b", 7)
    script.polled(1, ("a", 0), ("b", 7))
    assert check_log(script.history()).verdict is Verdict.VALID


def test_tolerated_anomaly_is_reported_and_does_not_decide() -> None:
    script = Script()
    script.sent(0, "a", 0)
    script.sent(0, "b", 1)
    script.polled(1, ("b", 1))
    script.polled(1, ("a", 0))
    report = check_log(script.history(), LogRules(tolerated=frozenset({"nonmonotonic-poll"})))
    assert report.verdict is Verdict.VALID
    assert report.names() == {"nonmonotonic-poll"}


def test_lag_is_measured_from_the_acknowledgement_to_the_call() -> None:
    script = Script()
    script.sent(0, "a", 0)
    script.polled(1, ("a", 0))
    script.sent(0, "b", 1)
    script.clock.now += 500_000_000
    script.polled(1)
    script.polled(1, ("b", 1))
    history = script.history()
    assert 500 <= check_log(history).counts["lag_ms_worst"] <= 505
    assert check_log(history, LogRules(lag_ms_max=600)).verdict is Verdict.VALID
    late = check_log(history, LogRules(lag_ms_max=400))
    assert late.names() == {"realtime-lag"}
    assert late.counts["realtime-lag"] == 1


def ordered_run(rng: random.Random, *, spoil: bool) -> History:
    """One message of a key is out at a time; spoilt, one is delivered before its turn."""
    script = Script()
    waiting: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    out: dict[str, int] = {}
    for _ in range(80):
        key = rng.choice(list(waiting))
        if rng.random() < 0.5:
            waiting[key].append(script.recorder.unique_value())
            script.sent(ord(key), waiting[key][-1], key=key)
        elif key in out and rng.random() < 0.2:
            # Its lease ran out: again.
            script.polled(rng.randrange(3), (out[key], None), key=key)
        elif key in out:
            script.acked(rng.randrange(3), out.pop(key), key=key)
        elif waiting[key]:
            place = 1 if spoil and len(waiting[key]) > 1 else 0
            spoil = spoil and not place
            out[key] = waiting[key].pop(place)
            script.polled(rng.randrange(3), (out[key], None), key=key)
    for key, left in waiting.items():
        for value in ([out[key]] if key in out else []) + left:
            script.polled(0, (value, None), key=key)
            script.acked(0, value, key=key)
    assume(not spoil)
    return script.history()


@given(seeds)
@settings(max_examples=40)
def test_one_message_of_a_key_at_a_time_is_in_order(seed: int) -> None:
    assert check_key_order(ordered_run(random.Random(seed), spoil=False)).verdict is Verdict.VALID


@given(seeds)
@settings(max_examples=40)
def test_message_before_its_turn_is_an_inversion(seed: int) -> None:
    history = ordered_run(random.Random(seed), spoil=True)
    report = check_key_order(history)
    assert report.verdict is Verdict.INVALID
    assert report.names() >= {"order-inversion"}
    shows_itself(history, report, check_key_order)


def test_recorder_is_one_history_for_many_threads() -> None:
    import threading

    recorder = Recorder()

    def work(process: int) -> None:
        for _ in range(300):
            recorder.ok(recorder.invoke(process, "send", "q", recorder.unique_value()), offset=0)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    history = recorder.history()
    assert len(history) == 2400
    assert len(set(history.values)) == 1200
    assert (np.diff(history.operation[history.type == RowType.INVOKE]) == 1).all()
