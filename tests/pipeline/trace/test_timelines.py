"""Timelines of runs say of each message what following its events one by one says."""

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftmq.client.admin.events import SWEEPING
from raftmq.client.admin.traces import word_of
from raftmq.pipeline.trace.timelines import arrow_schema, timelines
from raftmq.pop.message_events import EventKind, follow
from tests.pipeline.trace.stories import event, table

END = 2**63 - 1
KINDS = {word_of(kind): kind for kind in EventKind} | {"trimmed": EventKind.TRIMMED}
KINDS["lost"] = EventKind.LOST
PLAIN = ("handed out", "handed out", "acked", "nacked", "expired", "ready", "given back",
         "extended", "dead letter", "redriven", "purged", "passed over", "lost")  # fmt: skip
SETTLED = ("dead", "acked", "passed", "lost", "purged", "skipped")


def random_events(draw: Random) -> list[dict[str, Any]]:
    """Some history of one queue and two groups; not all of it could happen."""
    rows: list[dict[str, Any]] = []
    end = trimmed = 0
    for index in range(5, 5 + draw.randint(1, 60)):
        if end == 0 or draw.random() < 0.2:
            count = draw.randint(1, 12)
            rows.append(event(index, "stored", end, count))
            end += count
        for step in range(1, draw.randint(1, 4)):
            group = draw.randint(1, 2)
            whose = {"group": f"g{group}", "attachment": group, "step": step}
            what = draw.choice(PLAIN) if draw.random() < 0.85 else draw.choice(SWEEPING)
            if trimmed == end:
                continue
            # Messages that retention took are never touched again.
            first = draw.randint(trimmed, end - 1)
            count, is_endless = draw.randint(1, end - first), False
            if what == "trimmed":
                first, count = 0, first + 1
                trimmed = count
            elif what == "skipped":
                first, count = 0, first + 1
            elif what in ("reset", "filter gone"):
                is_endless = True
            elif what in ("handed out", "extended", "nacked", "expired"):
                whose["until"] = 1_000_000 + (index + draw.randint(-3, 50)) * 10_000
            whose |= {"attempt": draw.randint(0, 3), "consumer": draw.choice((None, 7, 8))}
            rows.append(event(index, what, first, None if is_endless else count, **whose))
    return rows


def end_of(row: dict[str, Any]) -> int:
    """The offset after a row's run; a run without a count has no end."""
    return END if row["count"] is None else int(row["offset"] + row["count"])


def followed(rows: list[dict[str, Any]], offset: int, attachment: int) -> dict[str, Any] | None:
    """The life of one message, event by event."""
    (born,) = (
        row for row in rows if row["what"] == "stored" and row["offset"] <= offset < end_of(row)
    )
    state, told = "fresh", []
    for row in rows:
        is_meant = row["offset"] <= offset < end_of(row)
        if not is_meant or row["attachment"] != attachment or row["index"] < born["index"]:
            continue
        before, time = state, row["timestamp"] // 1000
        until = (row["until"] or 0) // 1000
        state = follow(state, KINDS[row["what"]], detail=until, at=time)
        if row["what"] == "extended" or (row["what"] in SWEEPING and state == before):
            continue
        told.append((time, row))
    if not told:
        return None
    handed = [(time, row) for time, row in told if row["what"] == "handed out"]
    stored = born["timestamp"] // 1000
    ended = told[-1][0] if state in SETTLED else None
    last = handed[-1][0] if handed else None
    return {
        "outcome": state,
        "attempts": max(row["attempt"] for _, row in told),
        "handed": len(handed),
        "failed": sum(row["what"] in ("nacked", "expired") for _, row in told),
        "consumer": handed[-1][1]["consumer"] if handed else None,
        "wait_ms": handed[0][0] - stored if handed else None,
        "service_ms": (
            ended - last if ended is not None and last is not None and state == "acked" else None
        ),
        "total_ms": None if ended is None else ended - stored,
    }


@settings(max_examples=50)
@given(st.integers(0, 10**9))
def test_timelines_equal_what_following_each_message_says(seed: int) -> None:
    draw = Random(seed)
    rows = random_events(draw)
    end = max(row["offset"] + row["count"] for row in rows if row["what"] == "stored")
    low = draw.randint(0, end - 1)
    high = draw.randint(low + 1, end)
    mixed = draw.sample(rows, len(rows))
    found = timelines(table(mixed), low, high)
    assert found.schema == arrow_schema()
    lives: dict[tuple[int, int], dict[str, Any]] = {}
    for life in found.to_pylist():
        for offset in range(life["offset"], life["offset"] + life["count"]):
            assert (life["attachment"], offset) not in lives
            lives[life["attachment"], offset] = life
    for attachment in (1, 2):
        for offset in range(low, high):
            expected = followed(rows, offset, attachment)
            life = lives.pop((attachment, offset), None)
            assert (life is None) == (expected is None)
            if life is not None and expected is not None:
                assert {name: life[name] for name in expected} == expected
    assert lives == {}


def test_messages_with_one_life_are_one_row() -> None:
    whose = {"group": "g", "attachment": 1}
    rows = [
        event(5, "stored", 0, 1000),
        event(6, "handed out", 0, 1000, attempt=1, consumer=9, until=9_000_000, **whose),
        event(7, "acked", 0, 400, attempt=1, **whose),
        event(7, "acked", 400, 500, attempt=1, step=1, **whose),
        event(8, "nacked", 900, 100, attempt=1, until=99_000_000, **whose),
    ]
    found = timelines(table(rows), 0, 1000).to_pylist()
    told = [(life["offset"], life["count"], life["outcome"], life["total_ms"]) for life in found]
    assert told == [(0, 900, "acked", 20), (900, 100, "waiting", None)]
    assert {(life["topic"], life["queue"], life["group"]) for life in found} == {("orders", 1, "g")}


ACKED = event(6, "acked", 0, 10, group="g", attachment=1)


@pytest.mark.parametrize("rows", [[], [event(5, "stored", 0, 10)], [ACKED]])
def test_what_no_group_came_to_or_was_never_stored_has_no_timeline(
    rows: list[dict[str, Any]],
) -> None:
    assert len(timelines(table(rows), 0, 10)) == 0
