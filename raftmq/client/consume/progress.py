"""Progress of a job: offsets kept under a group's name, by one owner at a time.

For a program that plans reads by offset, and reads elsewhere: Spark's driver. A consumer that reads
and commits in one place needs none of this.

    progress = await mq.progress("orders", "spark-daily")   # now it is ours
    done = progress.committed                               # {0: 1200, 1: 1180}
    await progress.commit({0: 1300, 1: 1244})

Taking it draws an *owner epoch* from the catalog, higher than any before, and claims each queue in
its own log. From then on the commits of an earlier holder are refused, so two drivers that were
started for one job never overwrite each other.

`raftmq group lag` shows the group like any other, and `raftmq group reset` moves it.
"""

from collections.abc import Mapping

from raftmq.client.admin.consumer_groups import require_no_instance
from raftmq.client.admin.resets import draw_epoch
from raftmq.client.routing.requests import after, find_topic, seconds_left
from raftmq.client.routing.router import Router
from raftmq.errors import Reason, Rejected
from raftmq.machine.offsets import CLAIM
from raftmq.machine.queue_numbers import QUEUE_MASK
from raftmq.wire.messages import TopicView

from .offsets import Stamp, by_partition, commit_offsets, committed_offsets, queues_of


class Progress:
    """A job's place in a topic. Made by `Client.progress`."""

    def __init__(self, router: Router, topic: TopicView, group: str, epoch: int) -> None:
        self._router = router
        self._view = topic
        self._sequence = 0
        # Queue → the number of the call whose offset stands in `committed`.
        self._numbers: dict[int, int] = {}
        self.topic = topic.name
        """The topic's name."""
        self.topic_id = topic.id
        """The topic's number; a new topic of this name has another number."""
        self.group = group
        """The name under which the offsets are kept."""
        self.epoch = epoch
        """The owner epoch of this object; it grows with each owner."""
        self.committed: dict[int, int] = {}
        """Queue → the next offset to read, as committed last; other queues are left out."""

    async def commit(self, offsets: Mapping[int, int], *, timeout: float | None = None) -> None:
        """Commit the job's offsets: on the disks of a majority on return.

        Safe to repeat. Of two calls at once the one that began later counts. Cancelling leaves some
        queues' offsets committed and others not.

        Args:
            offsets: queue → the next offset to read; it may go back.
            timeout: seconds for the whole call; None: the client's default.

        Raises:
            Rejected: `FENCED`, another driver took it; `OFFSET_OUT_OF_RANGE`, an offset is beyond
                the queue's end; `UNKNOWN_TOPIC`, the topic is gone; `BAD_ARGUMENT`, the topic has
                no such queue.
            Unavailable, OutcomeUnknown: the time ran out; a later commit overwrites it.
        """
        # Number and offsets are taken before the first await: other calls may begin during it.
        self._sequence = sequence = self._sequence + 1
        wanted = dict(offsets)
        await self._commit(wanted, sequence, timeout)
        for queue, offset in wanted.items():
            # A call that began later and ended sooner must not be overwritten.
            if sequence > self._numbers.get(queue, 0):
                self._numbers[queue] = sequence
                self.committed[queue] = offset

    async def take(self, timeout: float | None) -> None:
        """For `Client.progress`: claim every queue, and read the committed offsets."""
        left = seconds_left(self._router, timeout)
        claims = dict.fromkeys(range(len(self._view.groups)), CLAIM)
        await self._commit(claims, self._sequence, left())
        groups = queues_of(self._view)
        with after([self.group], "an earlier holder is out of group"):
            found = await committed_offsets(self._router, groups, self.group, left())
        self.committed = {number & QUEUE_MASK: offset for number, offset in found.items()}

    async def _commit(
        self, offsets: Mapping[int, int], sequence: int, timeout: float | None
    ) -> None:
        left = seconds_left(self._router, timeout)
        if offsets and max(offsets) >= len(self._view.groups):
            # The topic may have got more queues.
            view = await find_topic(self._router, self.topic, left())
            self._view = view if view.id == self.topic_id else self._view
        groups = queues_of(self._view, offsets)
        done: list[int] = []
        for group, numbers in by_partition(groups).items():
            part = {number: offsets[number & QUEUE_MASK] for number in numbers}
            stamp = Stamp(dict.fromkeys(numbers, self.epoch), sequence)
            with after(done, "the commit of queues"):
                fenced = await commit_offsets(
                    self._router, group, self.group, part, left(), stamp=stamp
                )
            done += [number & QUEUE_MASK for number in numbers]
            if fenced:
                message = (
                    f"group {self.group!r} on topic {self.topic!r} was taken over by a reader "
                    "that started later"
                )
                raise Rejected(Reason.FENCED, message)


async def take_progress(
    router: Router, topic: str, group: str, timeout: float | None = None
) -> Progress:
    """See `Client.progress`."""
    require_no_instance(group)
    left = seconds_left(router, timeout)
    view = await find_topic(router, topic, left())
    epoch = await draw_epoch(router, topic, group, left())
    progress = Progress(router, view, group, epoch)
    await progress.take(left())
    return progress
