"""Tests of the tests: each anomaly of the dictionary, planted into a small history, is named."""

from collections.abc import Callable

import numpy as np
import pytest

from raftmq.checkers import (
    ANOMALIES,
    Entry,
    Evidence,
    History,
    LogRules,
    NodeLog,
    Report,
    Verdict,
    check_key_order,
    check_linearizability,
    check_log,
    check_total_queue,
    check_zones,
    explain,
    with_entries,
)
from tests.checkers.writing import Script
from tests.quality import planted_flow_anomalies, planted_pop_anomalies, planted_withheld_anomalies

Plant = Callable[[Script], None]
Check = Callable[[History], Report]


def lost_prefix(script: Script) -> None:
    script.sent(0, "a")
    script.sent(0, "b")
    script.polled(1, ("b", None))


def lost_middle(script: Script) -> None:
    for value in "abc":
        script.sent(0, value)
    script.polled(1, ("a", None), ("c", None))


def lost_postfix(script: Script) -> None:
    script.sent(0, "a")
    script.sent(0, "b")
    script.polled(1, ("a", None))


def unexpected(script: Script) -> None:
    script.sent(0, "a", 0)
    script.polled(1, ("a", 0), ("x", 1))


def aborted(script: Script) -> None:
    script.sent(0, "a", 0)
    script.send_failed(0, "b")
    script.polled(1, ("a", 0), ("b", 1))


def duplicated(script: Script) -> None:
    script.sent(0, "a")
    script.polled(1, ("a", None))
    script.polled(2, ("a", None))


def redelivered(script: Script) -> None:
    script.sent(0, "a")
    script.polled(1, ("a", None))
    script.acked(1, "a")
    script.polled(1, ("a", None))


def lost_write(script: Script) -> None:
    for offset, value in enumerate("abc"):
        script.sent(offset, value, offset)
    script.polled(9, ("a", 0))
    script.polled(8, ("c", 2))


def unseen(script: Script) -> None:
    script.sent(0, "a", 0)
    script.sent(0, "b", 1)
    script.polled(1, ("a", 0))
    script.polled(1)


def inconsistent(script: Script) -> None:
    script.sent(0, "a", 0)
    script.sent(1, "b", 0)
    script.polled(2, ("a", 0))
    script.polled(3, ("b", 0))


def duplicate(script: Script) -> None:
    script.sent(0, "a", 0)
    script.polled(1, ("a", 0), ("a", 1))


def five(script: Script) -> None:
    for offset in range(5):
        script.sent(0, offset, offset)
    script.polled(7, *((offset, offset) for offset in range(5)))


def poll_skip(script: Script) -> None:
    five(script)
    script.polled(1, (0, 0))
    script.polled(1, (2, 2))


def nonmonotonic_poll(script: Script) -> None:
    five(script)
    script.polled(1, (2, 2))
    script.polled(1, (2, 2))


def internal_poll_skip(script: Script) -> None:
    five(script)
    script.polled(1, (0, 0), (3, 3))


def internal_nonmonotonic_poll(script: Script) -> None:
    five(script)
    script.polled(1, (3, 3), (2, 2))


def nonmonotonic_send(script: Script) -> None:
    first = script.recorder.invoke(0, "send", "q", "a")
    script.sent(0, "b", 0)
    script.recorder.ok(first, offset=1)
    # Two calls at once of one producer, in the order of its calls.
    script.polled(1, ("b", 0), ("a", 1))


def internal_nonmonotonic_send(script: Script) -> None:
    script.sent_many(0, ("a", 1), ("b", 0))
    script.polled(1, ("b", 0), ("a", 1))


def internal_send_skip(script: Script) -> None:
    script.sent_many(0, ("a", 0), ("b", 2))
    script.sent(3, "c", 1)
    script.polled(1, ("a", 0), ("c", 1), ("b", 2))


def realtime_send(script: Script) -> None:
    script.sent(0, "a", 5)
    script.sent(1, "b", 4)
    script.polled(2, ("b", 4), ("a", 5))


def realtime_lag(script: Script) -> None:
    script.sent(0, "a", 0)
    script.polled(1, ("a", 0))
    script.sent(0, "b", 1)
    script.clock.now += 10**9
    script.polled(1)
    script.polled(1, ("b", 1))


def order_inversion(script: Script) -> None:
    script.sent(0, "a", key="k")
    script.sent(0, "b", key="k")
    script.polled(1, ("b", None), key="k")
    script.polled(1, ("a", None), key="k")


def order_overtake(script: Script) -> None:
    script.sent(0, "a", key="k")
    script.sent(0, "b", key="k")
    script.polled(1, ("a", None), key="k")
    script.polled(2, ("b", None), key="k")
    script.acked(1, "a", key="k")
    script.acked(2, "b", key="k")


def stale_read(script: Script) -> None:
    script.wrote(0, 1)
    script.wrote(0, 2)
    script.read(1, 1)


def phantom_read(script: Script) -> None:
    script.wrote(0, 1)
    script.read(1, 2)


def zone_overlap(script: Script) -> None:
    script.wrote(0, 1)
    script.wrote(0, 2)
    script.read(1, 1)
    script.read(1, 2)


def exactly_once(history: History) -> Report:
    return check_total_queue(history, is_exactly_once=True)


def contiguous(history: History) -> Report:
    return check_log(history, LogRules(is_send_contiguous=True))


def prompt(history: History) -> Report:
    return check_log(history, LogRules(lag_ms_max=100))


def by_search(history: History) -> Report:
    return check_linearizability(history, method="search")


PLANTS: list[tuple[str, Plant, Check]] = [
    ("lost-prefix", lost_prefix, check_total_queue),
    ("lost-middle", lost_middle, check_total_queue),
    ("lost-postfix", lost_postfix, check_total_queue),
    ("unexpected", unexpected, check_total_queue),
    ("unexpected", unexpected, check_log),
    ("aborted-read", aborted, check_total_queue),
    ("aborted-read", aborted, check_log),
    ("duplicated", duplicated, exactly_once),
    ("redelivered-after-ack", redelivered, check_total_queue),
    ("lost-write", lost_write, check_log),
    ("unseen", unseen, check_log),
    ("inconsistent-offset", inconsistent, check_log),
    ("duplicate", duplicate, check_log),
    ("poll-skip", poll_skip, check_log),
    ("nonmonotonic-poll", nonmonotonic_poll, check_log),
    ("internal-poll-skip", internal_poll_skip, check_log),
    ("internal-nonmonotonic-poll", internal_nonmonotonic_poll, check_log),
    ("nonmonotonic-send", nonmonotonic_send, check_log),
    ("internal-nonmonotonic-send", internal_nonmonotonic_send, check_log),
    ("internal-send-skip", internal_send_skip, contiguous),
    ("realtime-send", realtime_send, check_log),
    ("realtime-lag", realtime_lag, prompt),
    ("order-inversion", order_inversion, check_key_order),
    ("order-overtake", order_overtake, check_key_order),
    ("nonlinearizable", stale_read, by_search),
    ("phantom-read", phantom_read, check_zones),
    ("zone-overlap", zone_overlap, check_zones),
    ("zone-inside", stale_read, check_zones),
]


def test_every_anomaly_of_the_dictionary_is_planted() -> None:
    planted = {name for name, _, _ in (*PLANTS, *planted_pop_anomalies.PLANTS)}
    planted |= {name for name, _ in planted_withheld_anomalies.PLANTS}
    planted |= {name for name, _, _ in planted_flow_anomalies.PLANTS}
    # One is tolerated, two are of leases that hold messages in order: they have tests of their own.
    of_leases = {"rest-delivered", "lease-inversion"}
    assert planted | {"stale-delivery"} | of_leases == set(ANOMALIES)
    assert all(meaning.endswith(".") for meaning in ANOMALIES.values())


@pytest.mark.parametrize(
    ("name", "plant", "check"),
    PLANTS,
    ids=[f"{name}-{check.__name__}" for name, _, check in PLANTS],
)
def test_planted_anomaly_is_named_and_explained(name: str, plant: Plant, check: Check) -> None:
    script = Script()
    plant(script)
    history = script.history()
    report = check(history)
    assert report.verdict is Verdict.INVALID
    assert name in report.names()
    assert report.counts[name] >= 1
    text = explain(report, history)
    assert ANOMALIES[name] in text
    # The minimal sub-history shows the same anomaly by itself.
    (anomaly, *_) = (one for one in report.anomalies if one.name == name)
    alone = history.select(np.isin(history.operation, anomaly.operations))
    again = check(alone)
    assert name in again.names() or again.reason.startswith("vacuous")


@pytest.mark.parametrize("check", sorted({check for _, _, check in PLANTS}, key=str))
def test_healthy_history_has_no_anomaly(check: Check) -> None:
    script = Script()
    if check in (check_zones, by_search):
        script.wrote(0, 1)
        script.read(1, 1)
    else:
        for offset, value in enumerate("abc"):
            script.sent(0, value, offset)
            script.polled(1, (value, offset))
            script.acked(1, value)
    report = check(script.history())
    assert report.verdict is Verdict.VALID
    assert not report.anomalies


def test_report_names_the_log_entries_of_the_values_involved() -> None:
    script = Script()
    inconsistent(script)
    history = script.history()
    log = (Entry(1, 1, 0xAA, 0), Entry(2, 1, 0xBB, 0xAA))
    positions = {code: code + 1 for code in range(2)}
    evidence = Evidence(nodes=(NodeLog(1, log), NodeLog(2, log[:1])), positions=positions)
    report = with_entries(check_log(history), evidence)
    (anomaly, *_) = (one for one in report.anomalies if one.name == "inconsistent-offset")
    assert [(copy.node, copy.entry.index) for copy in anomaly.entries] == [(1, 1), (2, 1), (1, 2)]
    assert "node 2: index 1, term 1, crc 000000aa" in explain(report, history)


def test_explanation_shows_what_happened_around() -> None:
    script = Script()
    for offset in range(50):
        script.sent(0, offset, offset)
    script.polled(1, *((offset, offset) for offset in range(50) if offset != 20))
    history = script.history()
    report = check_total_queue(history)
    lines = explain(report, history).splitlines()
    assert report.names() == {"lost-middle"}
    assert any("send key=q value=20" in line for line in lines)
    assert any("send key=q value=18" in line for line in lines)
    # A poll of 49 messages is shown by the messages that matter.
    assert len(lines) < 60
