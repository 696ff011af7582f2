"""Broadcast groups: each instance gets all messages, in the order of the queue, from its place on.

| function | key | value of its invoke | value of its answer, a row a message |
|---|---|---|---|
| `poll` | - | the instance, `group@instance` | message, with its queue and offset |
| `commit_offset` | instance and queue, a row a queue | - | the next offset |
| `reset` | instance and queue, a row a queue | the place, an offset | - |

A *life* is one process of an instance; two lives of one instance never overlap.

| anomaly | what is wrong |
|---|---|
| `instance-skipped` | a poll passed over offsets, and no reset explains it |
| `instance-went-back` | a poll went back behind the committed place, and no reset explains it |
| `instance-lost` | a message was acknowledged, and the instance read to the end without it |

Invariants:
- An instance may pass over messages that retention dropped: those before `earliest`, by queue.
- A reset explains a poll only if the reset began before the poll was answered, and was not over
  before the newest commit that the poll follows.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from raftmq.checkers.history import NONE, History, RowType
from raftmq.checkers.pop.calls import Call, sends_of
from raftmq.checkers.pop.resets import Found, Reset, resets_of
from raftmq.checkers.rows import number_of, rows_of
from raftmq.checkers.verdict import Report, judged

CHECKER = "instances"
COMMIT_OFFSET = "commit_offset"


class _Read(NamedTuple):
    """A message that an instance got."""

    call: Call
    offset: int


class _Commit(NamedTuple):
    """A place that an instance surely committed."""

    since: int
    """Row from which on the commit may have happened: the automatic commit may have committed the
    place before the call, but not before the instance polled the message in front of it."""
    end: int
    """Row of the answer."""
    offset: int
    """The next message to read."""


@dataclass(slots=True)
class _Queue:
    """All calls of one instance on one queue."""

    name: str
    reads: list[_Read] = field(default_factory=list)
    commits: list[_Commit] = field(default_factory=list)
    resets: list[Reset] = field(default_factory=list)
    earliest: int = 0


def check_instances(
    history: History, *, is_drained: bool, earliest: Mapping[str, int] | None = None
) -> Report:
    """Judge broadcast groups; queues of which an instance got nothing are not looked at.

    Args:
        history: what clients did.
        is_drained: False: instances need not have come to the end.
        earliest: by queue: what retention has left begins there; None: it dropped nothing.
    """
    found = Found()
    ends: Counter[str] = Counter()
    for sent in sends_of(history):
        if sent.call.outcome is RowType.OK:
            ends[sent.queue] = max(ends[sent.queue], sent.offset + 1)
    for one in _queues_of(history).values():
        queue = one.name.rpartition(" ")[2]
        one.earliest = (earliest or {}).get(queue, 0)
        _look_at_order(found, one)
        if is_drained:
            _look_for_lost(found, one, ends[queue])
    return judged(CHECKER, found.anomalies, found.counts, compared=found.compared)


def _queues_of(history: History) -> dict[str, _Queue]:
    instances = _instances_of(history)
    found: dict[str, _Queue] = {}
    for row in rows_of(history, "poll", COMMIT_OFFSET):
        if not row.key or row.is_invoke:
            continue
        if row.function == "poll":
            instance = instances.get(row.call.operation, "")
            if "@" in instance:
                name = f"{instance} {row.key}"
                found.setdefault(name, _Queue(name)).reads.append(_Read(row.call, row.offset))
        else:
            of_queue = found.setdefault(row.key, _Queue(row.key))
            # A commit of a life that has read nothing of the queue moves no place in it.
            if of_queue.reads and of_queue.reads[-1].call.process == row.call.process:
                since = of_queue.reads[-1].call.begin
                of_queue.commits.append(_Commit(since, row.call.end, number_of(row.value)))
    for name, resets in resets_of(history).items():
        if name in found:
            found[name].resets = resets
    return {name: one for name, one in sorted(found.items()) if one.reads}


def _instances_of(history: History) -> dict[int, str]:
    """By the operation of a poll: the instance that polled."""
    rows = rows_of(history, "poll")
    return {
        row.call.operation: str(row.value) for row in rows if row.is_invoke and row.code != NONE
    }


def _look_at_order(found: Found, queue: _Queue) -> None:
    """Judge that no message skips ahead, or goes back behind the commit, unless a reset explains
    it."""
    reached, at, process = queue.earliest, -1, -1
    for call, offset in queue.reads:
        found.compared += 1
        is_new = call.process != process
        committed, places = _places(queue, call)
        is_explained = any(offset == max(place, queue.earliest) for place in places)
        # An instance that lost its queues for a while goes on at its commit, even within a life.
        lowest, highest = min([committed, *places]), reached if is_new else at
        if not is_explained and offset > max(highest, queue.earliest):
            fact = f"{queue.name}: offset {offset} came, and {highest} would have been next"
            found.note("instance-skipped", fact, call)
        elif not is_explained and offset < lowest:
            fact = f"{queue.name}: offset {offset} came, though it had come to {lowest}"
            found.note("instance-went-back", fact, call)
        at, process = offset + 1, call.process
        reached = max(reached, at)


def _places(queue: _Queue, call: Call) -> tuple[int, list[int]]:
    """Where a poll may go on: its newest commit, and the targets of resets that may be later."""
    commits = [one for one in queue.commits if one.end < call.begin]
    newest = commits[-1] if commits else _Commit(0, 0, 0)
    # The commit undoes a reset that surely was over before it; a reset that begins after the poll's
    # answer cannot have moved the poll.
    places = [
        one.target
        for one in queue.resets
        if one.call.begin < call.end and not one.is_over(newest.since)
    ]
    return newest.offset, places


def _look_for_lost(found: Found, queue: _Queue, end: int) -> None:
    """Judge that all messages that retention left came, and after each reset all from its place
    on."""
    places: dict[int, set[int]] = defaultdict(set)
    places[-1] = {read.offset for read in queue.reads}
    for reset in queue.resets:
        if reset.is_done:
            begin = reset.call.begin
            places[begin] = {read.offset for read in queue.reads if read.call.end > begin}
    for begin, offsets in places.items():
        first = queue.earliest
        if begin >= 0:
            reset = next(one for one in queue.resets if one.call.begin == begin)
            first = max(first, reset.floor(queue.resets))
        for offset in range(first, end):
            found.compared += 1
            if offset not in offsets:
                since = f" after the reset to {first}" if begin >= 0 else ""
                found.note("instance-lost", f"{queue.name}: offset {offset} never came{since}")
