"""Where a consumer stands in a queue: what it fetched, handed out, and is done with."""

from raftmq.batch import Batch
from raftmq.errors import RaftmqError
from raftmq.machine.queue_numbers import QUEUE_MASK


class Cursor:
    """The reading positions of one queue."""

    __slots__ = (
        "committed",
        "done",
        "epoch",
        "error",
        "fetched",
        "group",
        "handed",
        "is_paused",
        "queue_number",
        "sent",
        "strikes",
        "tail",
        "version",
    )

    def __init__(self, *, queue_number: int, group: int, offset: int) -> None:
        self.queue_number = queue_number
        """The cluster-wide number of the queue."""
        self.group = group
        """The queue's partition group."""
        self.epoch = 0
        """The epoch under which the consumer owns the queue; 0: the queue has no owner."""
        self.version = 0
        """Grows with each move: an answer to an earlier question is dropped."""
        self.fetched = offset
        """The next offset to fetch."""
        self.handed = offset
        """The offset after the last message that was handed out."""
        self.done = offset
        """The offset after the last message that the application is done with."""
        self.committed: int | None = None
        """The last committed offset; None: nothing was committed, or a commit has no answer yet."""
        self.sent = 0
        """The number of the last commit that was sent."""
        self.error: RaftmqError | None = None
        """Why reading has stopped; None: it goes on."""
        self.is_paused = False
        """True: nothing is fetched or handed out for now; see `Fetcher.pause`."""
        self.strikes = 0
        """How often in a row a leader's queue ended before `fetched`."""
        self.tail: Chunk | None = None
        """The queue's last chunk in the buffer."""

    @property
    def queue(self) -> int:
        """The queue within the topic, from 0."""
        return self.queue_number & QUEUE_MASK

    def move(self, offset: int) -> None:
        """Go on from `offset`."""
        self.version += 1
        self.fetched = self.handed = self.done = offset
        self.error = None
        self.strikes = 0
        self.tail = None

    def commit_sent(self, sequence: int) -> None:
        """A commit leaves: until its answer comes, the log may have it or not."""
        self.sent, self.committed = sequence, None

    def commit_answered(self, sequence: int, offset: int) -> None:
        """A commit was done; the answer to an overtaken commit tells nothing."""
        if sequence == self.sent:
            self.committed = offset

    def pass_over(self, offset: int) -> None:
        """Skip the offsets from `fetched` to before `offset`: no message there is wanted."""
        self.fetched = offset
        if self.tail is not None:
            self.tail.following = offset
        elif self.done == self.handed:
            self.handed = self.done = offset
        else:
            self.handed = offset


class Chunk:
    """Neighbouring messages of a batch in the buffer."""

    __slots__ = ("batch", "cursor", "following", "size", "start", "stop")

    def __init__(self, cursor: Cursor, batch: Batch, start: int, stop: int, size: int) -> None:
        self.cursor = cursor
        self.batch = batch
        self.start = start
        self.stop = stop
        self.size = size
        self.following = batch.base_offset + stop
        """The queue's `handed` offset once the whole chunk is handed out."""
