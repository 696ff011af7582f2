"""Places in topics: how far a query has come, as Spark keeps places and as users write them.

Spark writes the end of each micro-batch into the checkpoint as JSON, and compares such texts:

    {"orders": {"id": 7, "queues": {"0": 123, "1": 98}}}

The JSON holds the topic's number, so the source notices a topic that was deleted and created again
under its name. A queue that is missing is new and begins at 0; a topic that is missing was not
read before, and begins at its earliest message.

Users write the same without the number, as for Kafka, with -2 for the earliest message and -1 for
the end: `{"orders": {"0": 12, "1": -2}}`. Queues and topics left out are at the earliest message as
a start, and at the end as an end.

Invariants:
- Equal places are equal JSON: topics by name, queues by number.
- `ranges` are without gap or overlap: each micro-batch begins where the one before ended.
- A range holds the same messages whenever it is read: no message below a queue's end changes.
"""

import json
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from raftmq.pipeline.errors import PipelineError

EARLIEST = -2
"""As an offset: the first message that is kept."""
LATEST = -1
"""As an offset: after the last message."""

_HOW = """write {"orders": {"0": 12, "1": -2}}: topic, queue, offset; -2 earliest, -1 latest"""


class Place(NamedTuple):
    """A place in each queue of a topic."""

    id: int
    """The topic's number."""
    queues: dict[int, int]
    """Queue → the next offset to read."""


Places = dict[str, Place]
"""Topic → its place."""


class Range(NamedTuple):
    """Neighbouring messages of one queue."""

    topic: str
    """The topic's name."""
    topic_id: int
    """The topic's number."""
    queue: int
    """The queue within the topic, from 0."""
    start: int
    """The first offset."""
    end: int
    """The offset after the last message; more than `start`."""

    @property
    def messages(self) -> int:
        """How many messages."""
        return self.end - self.start

    def __str__(self) -> str:
        return f"queue {self.queue} of topic {self.topic!r}, offsets {self.start} to {self.end - 1}"


def to_json(places: Places) -> dict[str, Any]:
    """Places as what Spark turns into JSON; equal places in equal order.

    >>> to_json({"b": Place(2, {10: 7, 9: 1}), "a": Place(1, {})})
    {'a': {'id': 1, 'queues': {}}, 'b': {'id': 2, 'queues': {'9': 1, '10': 7}}}
    """
    return {
        topic: {"id": place.id, "queues": {str(q): place.queues[q] for q in sorted(place.queues)}}
        for topic, place in sorted(places.items())
    }


def from_json(found: Any) -> Places:
    """Places as Spark gives them back.

    Raises:
        PipelineError: a checkpoint of another source, or of another version.
    """
    try:
        return {
            str(topic): Place(int(each["id"]), {int(q): int(o) for q, o in each["queues"].items()})
            for topic, each in found.items()
        }
    except (AttributeError, KeyError, TypeError, ValueError):
        message = f"the checkpoint holds {json.dumps(found)[:200]}, which are no offsets of raftmq"
        raise PipelineError(message, "use a checkpoint of its own for each query") from None


class RequestedOffsets(NamedTuple):
    """Offsets of one topic as a user wrote them."""

    id: int | None
    """The topic's number, if it was said."""
    queues: dict[int, int]
    """Queue → offset, `EARLIEST` or `LATEST`."""


def parse_requested(text: str, option: str) -> dict[str, RequestedOffsets]:
    """Offsets as users write them, with or without the topic's number.

    >>> parse_requested('{"orders": {"0": 12}}', "startingOffsets")["orders"].queues
    {0: 12}

    Raises:
        PipelineError: that is no such JSON.
    """
    wrong = PipelineError(f"option {option} cannot be read: {text[:100]}", _HOW)
    try:
        found = json.loads(text)
    except ValueError:
        raise wrong from None
    if not isinstance(found, dict) or not found:
        raise wrong
    return {topic: _requested(each, wrong) for topic, each in found.items()}


def _requested(found: Any, wrong: PipelineError) -> RequestedOffsets:
    number = None
    if isinstance(found, dict) and "queues" in found:
        number, found = found.get("id"), found["queues"]
    if not isinstance(found, dict) or not (number is None or type(number) is int):
        raise wrong
    queues = {}
    for queue, offset in found.items():
        if not (queue.isdecimal() and type(offset) is int and offset >= EARLIEST):
            raise wrong
        queues[int(queue)] = offset
    return RequestedOffsets(number, queues)


def ranges(start: Places, end: Places) -> list[Range]:
    """The ranges between two places, by topic and queue; queues without messages are left out."""
    found = []
    for topic, place in sorted(end.items()):
        before = start[topic].queues if topic in start else {}
        for queue, offset in sorted(place.queues.items()):
            first = before.get(queue, 0)
            if first < offset:
                found.append(Range(topic, place.id, queue, first, offset))
    return found


def limited(found: list[Range], rows_max: int) -> list[Range]:
    """The first `rows_max` messages of all, shared in proportion to what each queue has.

    >>> limited([Range("t", 1, 0, 0, 300), Range("t", 1, 1, 50, 150)], 8)  # doctest: +ELLIPSIS
    [Range(..., queue=0, start=0, end=6), Range(..., queue=1, start=50, end=52)]
    """
    total = sum(each.messages for each in found)
    if total <= rows_max:
        return found
    shares = [each.messages * rows_max // total for each in found]
    # The shares that lost most by rounding down get one message more, up to `rows_max` in all.
    by_loss = sorted(range(len(found)), key=lambda n: (-(found[n].messages * rows_max % total), n))
    for n in by_loss[: rows_max - sum(shares)]:
        shares[n] += 1
    return [
        each._replace(end=each.start + share)
        for each, share in zip(found, shares, strict=True)
        if share
    ]


def split(found: list[Range], parts_min: int) -> list[Range]:
    """The same messages in at least `parts_min` ranges, or one a message if there are fewer.

    Large ranges are cut into more pieces than small ones; the order stays.
    """
    total = sum(each.messages for each in found)
    if len(found) >= parts_min:
        return found
    pieces = []
    for each in found:
        parts = min(each.messages, -(-each.messages * parts_min // total))
        edges = [each.start + each.messages * n // parts for n in range(parts + 1)]
        pieces += [each._replace(start=start, end=end) for start, end in pairwise(edges)]
    return pieces


def advanced(start: Places, read: list[Range], seen: Places) -> Places:
    """The places after these ranges were read.

    Args:
        start: the places before.
        read: what was read beyond them.
        seen: all topics and queues there are; a queue without a range in `read` keeps its place.
    """
    after = {}
    for topic, place in seen.items():
        before: Mapping[int, int] = start[topic].queues if topic in start else {}
        after[topic] = Place(place.id, {queue: before.get(queue, 0) for queue in place.queues})
    for each in read:
        after[each.topic].queues[each.queue] = each.end
    return after
