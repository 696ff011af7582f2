"""The cluster's answers: where queues begin and end, and what a user's words mean as offsets.

All answers are linearizable: an end is never behind one that was seen before, under any leader.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from raftmq.blocking import BlockingClient
from raftmq.pipeline.errors import PipelineError

from .connection import client, explained
from .offsets import EARLIEST, LATEST, Place, Places, Range, RequestedOffsets
from .options import Options, Where


@dataclass(frozen=True, slots=True)
class Bounds:
    """The first and last places of the queues of all topics, at one moment."""

    earliest: Places
    """The first kept offsets."""
    end: Places
    """The offsets after the last committed messages."""

    def check(self, start: Places) -> None:
        """Refuse places that a query cannot go on from.

        Raises:
            PipelineError: a topic was deleted and created again, is not read, or this is another
                cluster.
        """
        for topic, place in start.items():
            known = self.end.get(topic)
            if known is None:
                raise PipelineError(
                    f"the checkpoint is of topic {topic!r} as well, which is not read",
                    f"name it in subscribe, too, or use a checkpoint of its own ({_ANEW})",
                )
            if known.id != place.id:
                raise PipelineError(
                    f"topic {topic!r} was deleted and created again: its number is {known.id}, "
                    f"and the offsets are of number {place.id}",
                    _ANEW,
                )
            for queue, offset in place.queues.items():
                end = known.queues.get(queue)
                if end is None or end < offset:
                    has = "does not exist" if end is None else f"ends at offset {end}"
                    raise PipelineError(
                        f"queue {queue} of topic {topic!r} {has}, and offset {offset} was read: "
                        "the offsets are of another cluster, or it lost messages",
                        _ANEW,
                    )


_ANEW = "begin again with another checkpoint and output"


@dataclass(frozen=True, slots=True)
class Cluster:
    """The topics that are read."""

    options: Options
    """The options of the read."""

    @property
    def client(self) -> BlockingClient:
        """The client of this process."""
        return client(self.options.url, self.options.timeout)

    def bounds(self) -> Bounds:
        """The present bounds of the queues.

        Raises:
            PipelineError: there is no such topic.
            Unavailable: a leader was not found in time.
        """
        earliest: Places = {}
        end: Places = {}
        for topic in self.options.topics:
            with explained():
                found = self.client.admin.describe_topic(topic)
            earliest[topic] = Place(found.id, {each.queue: each.earliest for each in found.queues})
            end[topic] = Place(found.id, {each.queue: each.end for each in found.queues})
        return Bounds(earliest, end)

    def resolve(self, where: Where, bounds: Bounds, *, is_start: bool) -> Places:
        """A user's words as offsets, cut to what the queues hold.

        Args:
            where: the words.
            bounds: of all topics.
            is_start: a queue that the words leave out is at its earliest message, else at its end.

        Raises:
            PipelineError: a topic has another number, or a queue that is named does not exist.
        """
        match where:
            case "earliest":
                return bounds.earliest
            case "latest":
                return bounds.end
            case datetime():
                return {topic: self.at_time(topic, where, bounds) for topic in bounds.end}
            case str():
                raise AssertionError(where)
        return {
            topic: _resolved(
                topic, where.get(topic, RequestedOffsets(None, {})), bounds, is_start=is_start
            )
            for topic in bounds.end
        }

    def at_time(self, topic: str, time: datetime, bounds: Bounds) -> Place:
        """In each queue the first message stored at `time` or later; the queue's end if none is."""
        with explained():
            found = self.client.admin.find_offsets(topic, time.astimezone(UTC))
        place = bounds.end[topic]
        # A queue that was added meanwhile is not part of this plan.
        return Place(place.id, {q: min(found[q], end) for q, end in place.queues.items()})


def _resolved(topic: str, requested: RequestedOffsets, bounds: Bounds, *, is_start: bool) -> Place:
    earliest, end = bounds.earliest[topic], bounds.end[topic]
    if requested.id is not None and requested.id != end.id:
        message = f"topic {topic!r} was deleted and created again: its number is {end.id}, "
        raise PipelineError(f"{message}and {requested.id} was given", "find the offsets again")
    unknown = sorted(set(requested.queues) - set(end.queues))
    if unknown:
        message = f"topic {topic!r} has queues 0 to {len(end.queues) - 1}, no {unknown[0]}"
        raise PipelineError(message, "name queues that exist")
    queues = {}
    for queue, last in end.queues.items():
        offset = requested.queues.get(queue, EARLIEST if is_start else LATEST)
        if offset > last:
            message = f"queue {queue} of topic {topic!r} ends at offset {last}, {offset} was given"
            raise PipelineError(message, "give an offset up to its end")
        if offset == EARLIEST:
            offset = earliest.queues[queue]
        queues[queue] = last if offset == LATEST else offset
    return Place(end.id, queues)


def lost(found: Iterable[Range], earliest: Places) -> tuple[list[Range], list[Range]]:
    """Which parts of these ranges retention took away, and what is left of them."""
    gone, left = [], []
    for each in found:
        first = earliest[each.topic].queues.get(each.queue, 0)
        if each.start < first:
            gone.append(each._replace(end=min(each.end, first)))
        if first < each.end:
            left.append(each._replace(start=max(each.start, first)))
    return gone, left
