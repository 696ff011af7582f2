"""A topic's queues as one producer sees them: which a message goes to, and the lane on its way.

| a message | goes to |
|---|---|
| with `queue=` | that one |
| with a key | the one of the key's hash |
| else | the queue whose turn it is |

The turn stays with a queue until its batch goes out, so that what is sent meanwhile shares that
batch. It passes over queues that wait for a leader while another one does not.

Sources: Kafka's sticky partitioner (KIP-480), and why it must look at what is stuck (KIP-794).
"""

from collections.abc import Callable

from raftmq.batch import queue_of
from raftmq.errors import Reason, Rejected
from raftmq.wire.messages import TopicView

from .lane import Lane
from .message import QUEUE_BITS


class Queues:
    """The queues of a topic, for one producer."""

    def __init__(self, view: TopicView, first: int, make_lane: Callable[[int, int], Lane]) -> None:
        self.view = view
        """The topic as it is now: it may get more queues."""
        self.lanes: dict[int, Lane] = {}
        """The lanes in use, by queue."""
        self._turn = first
        # From a queue's cluster-wide number and its partition group.
        self._make_lane = make_lane

    def __len__(self) -> int:
        """How many queues the topic has."""
        return len(self.view.groups)

    def pick(self, key: str | bytes | None, queue: int | None) -> int:
        """The queue for a message.

        Raises:
            Rejected: there is no such queue, or this is no key.
        """
        if queue is not None:
            if not 0 <= queue < len(self):
                message = f"topic {self.view.name!r} has queues 0 to {len(self) - 1}, no {queue}"
                raise Rejected(Reason.BAD_ARGUMENT, message)
            return queue
        if key is None:
            return self.gathering()
        try:
            return queue_of(key, len(self))
        except (TypeError, UnicodeEncodeError) as error:
            raise Rejected(Reason.BAD_ARGUMENT, f"a key is text or bytes: {error}") from None

    def gathering(self, n: int = 0) -> int:
        """The queue whose turn it is; for the n-th more batch of a call, the n-th after it."""
        for _ in range(len(self)):
            lane = self.lanes.get(self._turn % len(self))
            if lane is None or not lane.is_recovering:
                break
            self._turn += 1
        return (self._turn + n) % len(self)

    def take_turn(self, lane: Lane) -> None:
        """A lane's batch is full or goes out: if the turn was its own, it is the next one's."""
        if lane.queue_number & ((1 << QUEUE_BITS) - 1) == self._turn % len(self):
            self._turn += 1

    def lane(self, queue: int) -> Lane:
        """The lane to a queue."""
        lane = self.lanes.get(queue)
        if lane is None:
            number = self.view.id << QUEUE_BITS | queue
            lane = self.lanes[queue] = self._make_lane(number, self.view.groups[queue])
        return lane
