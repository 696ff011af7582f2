"""Events of a log become facts about minutes: against a model that looks at each message."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from raftmq.pipeline.report import durations, fold_state
from raftmq.pipeline.report.fold_state import Carry, Leases, Queue
from raftmq.pipeline.report.minute_facts import MINUTE_MS, Facts, Flow, Level
from raftmq.pipeline.report.minute_fold import Attachment, Folding
from raftmq.pipeline.report.offsets import Offsets, before

BILLING = Attachment("orders", "billing", 7, False)
OFFSET_MAX = 2**63 - 1
RETURNING = {"reset", "redriven", "filter gone"}


def event(time: int, what: str, offset: int, count: int = 1, **other: Any) -> dict[str, Any]:
    row = {"what": what, "topic": "orders", "queue": 0, "offset": offset, "count": count}
    if what != "stored":
        row |= {"group": "billing", "attachment": 7}
    nobody = dict.fromkeys(("token", "producer", "consumer"))
    return {"timestamp": time * 1000} | nobody | row | other


def table(*rows: dict[str, Any]) -> pa.Table:
    names = {
        "timestamp": pa.timestamp("us", "UTC"), "what": pa.string(), "topic": pa.string(),
        "queue": pa.int32(), "offset": pa.int64(), "count": pa.int64(), "group": pa.string(),
        "attachment": pa.int64(), "token": pa.int64(), "producer": pa.int64(),
        "consumer": pa.int64(),
    }  # fmt: skip
    return pa.Table.from_pylist(list(rows), pa.schema(names))


def fold(*rows: dict[str, Any], carry: Carry | None = None) -> Facts:
    return Folding(carry if carry is not None else Carry(), [BILLING]).fold(table(*rows))


def flow(facts: Facts, minute: int = 0) -> Flow:
    return facts.flows[minute, "orders", "billing"]


def level(facts: Facts, minute: int = 0) -> Level:
    return facts.levels[minute, "orders", "billing"]


# A model that knows each message


class Model:
    """Each message by itself, as `raftmq.pop.message_events.follow` has it."""

    def __init__(self) -> None:
        self.end = 0
        self.state: dict[int, str] = {}
        self.stored: dict[int, int] = {}
        self.begun: set[int] = set()

    def apply(self, row: dict[str, Any]) -> None:
        what, offset, count = row["what"], row["offset"], row["count"]
        messages = range(offset, min(offset + count, self.end if what != "stored" else OFFSET_MAX))
        for each in messages:
            state = self.state.get(each, "fresh")
            match what:
                case "stored":
                    self.end = each + 1
                    self.stored[each] = row["timestamp"] // 1000
                case "handed out":
                    self.state[each] = "open"
                    self.begun.add(each)
                case "acked" | "dead letter" | "passed over":
                    self.state[each] = {"passed over": "passed"}.get(what, "settled")
                    self.begun.add(each)
                case "redriven":
                    self.state[each] = "open"
                case "trimmed" | "skipped":
                    if state in ("fresh", "open"):
                        self.state[each] = "settled"
                    self.begun.add(each)
                case "reset":
                    self.state.pop(each, None)
                    self.begun.discard(each)
                case "filter gone":
                    if state == "passed":
                        del self.state[each]
                        self.begun.discard(each)

    @property
    def level(self) -> Level:
        left = [n for n in range(self.end) if self.state.get(n, "fresh") in ("fresh", "open")]
        fresh = [n for n in range(self.end) if n not in self.begun]
        return Level(len(left), len(fresh), self.stored[left[0]] if left else 0)


@st.composite
def histories(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Possible events of a broker: only messages in hand are settled, only dead ones come back."""
    model, rows, time, dead, earliest = Model(), [], 1000, set[int](), 0
    leases, again, last = dict[int, int](), set[int](), 0
    for _ in range(draw(st.integers(1, 25))):
        time += draw(st.integers(0, 40_000))
        fresh = [n for n in range(model.end) if n not in model.begun]
        is_open = {n for n, state in model.state.items() if state == "open"}
        in_hand, waiting = sorted(is_open - again), sorted(is_open & again)
        kinds = ["stored"] + ["handed out"] * bool(fresh or waiting)
        kinds += ["passed over"] * bool(fresh) + ["acked", "dead letter"] * bool(in_hand)
        kinds += ["redriven"] * bool(dead)
        kinds += ["trimmed", "reset", "filter gone"] * bool(model.end)
        what = draw(st.sampled_from(kinds))
        if what == "stored":
            found = [event(time, what, model.end, draw(st.integers(1, 20)))]
        elif what in ("trimmed", "reset"):
            at = draw(st.integers(earliest, model.end))
            earliest = at if what == "trimmed" else earliest
            found = [event(time, "trimmed", 0, at)]
            if what == "reset":
                found = [
                    event(time, "skipped", 0, at),
                    event(time, "reset", at, OFFSET_MAX - at),
                ]
        elif what == "filter gone":
            found = [event(time, what, min(fresh, default=model.end), OFFSET_MAX - model.end)]
        else:
            among = {"redriven": sorted(dead), "acked": in_hand, "dead letter": in_hand}
            among |= {"handed out": fresh + waiting, "passed over": fresh}
            chosen = sorted(draw(st.sets(st.sampled_from(among[what]), min_size=1)))
            if what == "handed out":
                leases |= {n: token for token, n in enumerate(chosen, last + 1)}
                last += len(chosen)
            again = again | set(chosen) if what == "redriven" else again - set(chosen)
            held = leases if what in ("handed out", "acked", "dead letter") else {}
            found = [event(time, what, n, token=held.get(n)) for n in chosen]
        for row in found:
            model.apply(row)
            touched = range(row["offset"], min(row["offset"] + row["count"], model.end))
            dead = dead | set(touched) if what == "dead letter" else dead - set(touched)
        rows += found
    return rows


@settings(max_examples=20)
@given(histories(), st.integers(1, 8))
def test_lag_and_age_equal_those_of_a_model_however_the_log_is_cut(
    rows: list[dict[str, Any]], size: int
) -> None:
    data = b""
    levels: dict[tuple[int, str, str], Level] = {}
    for at in range(0, len(rows), size):
        carry = Carry.unpack(data)
        levels |= fold(*rows[at : at + size], carry=carry).levels
        data = carry.pack()
    model, expected = Model(), {}
    for row in rows:
        model.apply(row)
        time = row["timestamp"] // 1000
        expected[time - time % MINUTE_MS] = model.level
    found = {minute: each for (minute, *_), each in levels.items()}
    if RETURNING & {row["what"] for row in rows}:
        # Messages that were settled and no longer are have no known age.
        for minute, each in found.items():
            if not each.oldest:
                expected[minute] = structs.replace(expected[minute], oldest=0)
    assert found == expected


@settings(max_examples=20)
@given(histories(), st.integers(1, 8))
def test_flows_add_up_the_same_however_the_log_is_cut(
    rows: list[dict[str, Any]], size: int
) -> None:
    carry, parts = Carry(), Facts()
    for at in range(0, len(rows), size):
        for (minute, *key), each in fold(*rows[at : at + size], carry=carry).flows.items():
            parts.flow(minute, *key).add(each)
    whole = fold(*rows).flows
    if RETURNING & {row["what"] for row in rows}:
        # The storing time of a message that comes back may be forgotten.
        for each in (*parts.flows.values(), *whole.values()):
            each.waits.clear()
    assert parts.flows == whole


# Single facts


def test_producers_are_counted_once_for_all_queues() -> None:
    facts = fold(
        event(1, "stored", 0, 10, producer=7),
        event(2, "stored", 0, 5, queue=1, producer=7),
        event(3, "stored", 10, 1, producer=8),
        event(4, "stored", 11, 1),
        event(MINUTE_MS, "stored", 12, 1, producer=9),
    )
    assert facts.flows[0, "orders", ""].producers == {7, 8}
    assert facts.flows[MINUTE_MS, "orders", ""].producers == {9}


def test_counts_are_by_minute_and_group() -> None:
    facts = fold(
        event(1, "stored", 0, 10),
        event(2, "handed out", 0, 6, token=1, consumer=5),
        event(3, "acked", 0, 3, token=1, consumer=5),
        event(4, "nacked", 3, 1, token=1, consumer=5),
        event(5, "expired", 4, 1),
        event(6, "dead letter", 5, 1, token=1, consumer=6),
        event(MINUTE_MS, "handed out", 3, 2, token=2, consumer=5),
    )
    assert facts.flows[0, "orders", ""] == Flow(stored=10)
    first = flow(facts)
    assert (first.handed_out, first.acked, first.retries, first.dead) == (6, 3, 2, 1)
    assert first.consumers == {5, 6}
    assert flow(facts, MINUTE_MS).handed_out == 2
    assert level(facts) == Level(6, 4, 1)
    assert facts.last == MINUTE_MS


def test_wait_is_of_the_first_hand_out_only() -> None:
    facts = fold(
        event(0, "stored", 0, 2),
        event(10, "stored", 2, 2),
        event(20, "handed out", 0, 3, token=1),
        event(21, "nacked", 0, 3, token=1),
        event(40, "handed out", 0, 4, token=2),
    )
    assert flow(facts).waits == {20: 2, 10: 1, 30: 1}


def test_wait_reaches_back_over_batches() -> None:
    carry = Carry()
    fold(event(0, "stored", 0, 5), carry=carry)
    carry = Carry.unpack(carry.pack())
    assert flow(fold(event(33, "handed out", 0, 5, token=1), carry=carry)).waits == {33: 5}


def test_service_is_from_hand_out_to_ack() -> None:
    carry = Carry()
    fold(event(0, "stored", 0, 5), event(5, "handed out", 0, 5, token=9), carry=carry)
    facts = fold(event(12, "acked", 0, 2, token=9), event(15, "acked", 2, 3, token=9), carry=carry)
    assert flow(facts).services == {7: 2, 10: 3}
    assert not len(carry.leases.tokens)


def test_messages_that_retention_took_are_lost_once() -> None:
    facts = fold(
        event(0, "stored", 0, 10),
        event(1, "handed out", 0, 2, token=1),
        event(2, "acked", 0, 2, token=1),
        event(3, "trimmed", 0, 5),
        event(4, "trimmed", 0, 6),
    )
    assert flow(facts).lost == 4
    assert level(facts).lag == 4


def test_log_that_begins_in_the_middle_counts_no_lag_before_it() -> None:
    facts = fold(
        event(0, "acked", 40, 2, token=3),
        event(1, "stored", 100, 10),
        event(2, "acked", 98, 2, token=3),
    )
    assert facts.is_cut
    assert level(facts) == Level(10, 10, 1)
    assert flow(facts).acked == 4


def test_group_that_began_at_the_end_has_no_lag_before_it() -> None:
    late = Attachment("orders", "billing", 7, True, {0: 8})
    carry = Carry()
    Folding(carry, []).fold(table(event(0, "stored", 0, 10)))
    assert level(Folding(carry, [late]).appear(0)) == Level(2, 2, 0)


def test_group_without_consumers_begins_where_the_broker_says_last() -> None:
    carry = Carry()
    Folding(carry, []).fold(table(event(0, "stored", 0, 10)))
    for start, lag in ((10, 0), (8, 2)):
        late = Attachment("orders", "billing", 7, True, {0: start})
        assert level(Folding(carry, [late]).appear(0)).lag == lag
    touched = Attachment("orders", "billing", 7, True)
    facts = Folding(carry, [touched]).fold(table(event(1, "handed out", 9, 1, token=1)))
    assert level(facts) == Level(1, 0, 0)


def test_group_that_is_gone_has_no_level() -> None:
    carry = Carry()
    fold(event(0, "stored", 0, 10), carry=carry)
    facts = Folding(carry, []).fold(table(event(1, "stored", 10, 1)))
    assert not facts.levels
    assert not carry.readings


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold_state, "STEPS_MAX", 8)
    monkeypatch.setattr(fold_state, "LEASES_MAX", 4)
    carry = Carry()
    for n in range(100):
        handed = event(n + 1, "handed out", n, token=n + 1)
        fold(event(n, "stored", n), handed, carry=carry)
    assert len(carry.queues["orders", 0].starts) <= 8
    assert carry.leases.tokens.tolist() == [97, 98, 99, 100]
    # The oldest keeps its time; others get the time of a neighbour before them.
    assert carry.queues["orders", 0].time_of(0) == 0
    assert 80 <= carry.queues["orders", 0].time_of(99) <= 99


# Parts


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 40), st.integers(1, 10)), max_size=12))
def test_offsets_equal_a_set(steps: list[tuple[bool, int, int]]) -> None:
    found, model = Offsets(), set[int]()
    for is_added, start, count in steps:
        run = (np.array([start]), np.array([start + count]))
        found = found.plus(*run) if is_added else found.minus(Offsets(*run))
        messages = set(range(start, start + count))
        model = model | messages if is_added else model - messages
        assert [n for each in found.runs for n in range(*each)] == sorted(model)
        assert all(a[1] < b[0] for a, b in zip(found.runs, found.runs[1:], strict=False))
    assert found.size == len(model)
    assert found.first_gap == next(n for n in range(60) if n not in model)
    assert [n for each in found.from_on(7).runs for n in range(*each)] == sorted(
        n for n in model if n >= 7
    )


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=50), st.sampled_from([0.5, 0.9, 0.99]))
def test_quantile_is_within_two_percent(values: list[int], share: float) -> None:
    counts = durations.counted(np.array(values), np.ones(len(values), np.int64))
    found = durations.quantile(counts, share)
    exact = sorted(values)[max(0, int(np.ceil(round(share * len(values), 9))) - 1)]
    assert found == pytest.approx(exact, rel=0.016, abs=0.5)


def test_leases_that_are_not_known_are_not_timed() -> None:
    leases = Leases()
    leases.open(np.array([5]), np.array([100]), np.array([3]))
    assert leases.close(np.array([4, 5, 6]), np.array([1, 1, 1])).tolist() == [0, 100, 0]


def test_runs_are_cut_where_the_time_changes() -> None:
    queue = Queue("orders", 0, 0, 0)
    queue.store(np.array([10, 20]), np.array([20, 30]), np.array([1, 2]))
    pieces = queue.cut(np.array([0, 15]), np.array([12, 25]))
    assert [each.tolist() for each in pieces] == [[10, 15, 20], [12, 20, 25], [1, 1, 2], [0, 1, 1]]
    assert before(3).runs == [(0, 3)]
