"""The leader's knowledge of one follower's log, and how fast it may send to it.

| state | the leader ... | leaves it when ... |
|---|---|---|
| PROBE | sends one append, then waits: it does not know where the logs agree | an append matches |
| REPLICATE | sends on without waiting, up to the in-flight limits | one is refused or lost |
| SNAPSHOT | sends nothing: the follower needs what the log no longer holds | it has caught up |

`match` and `next` are matchIndex and nextIndex of Raft figure 2.

Invariants:
- `match < next`.
- In REPLICATE, records in (match, next) are in flight; in PROBE `next` is a guess.

Sources: Raft §5.3; etcd-io/raft's tracker.Progress and tracker.Inflights; TCP's sliding window.
"""

from collections import deque
from enum import Enum


class ProgressState(Enum):
    """How the leader sends to a follower; see the table in the heading."""

    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


PROBE = ProgressState.PROBE
REPLICATE = ProgressState.REPLICATE
SNAPSHOT = ProgressState.SNAPSHOT


class Inflights:
    """The appends that were sent to a follower and not yet acknowledged. It is state.

    Each is remembered by the index of its last record, which rises, and its bytes. An
    acknowledgement of index i frees all that end at or below i, since a follower acknowledges
    prefixes. The window is full at `messages_max` messages, or at `bytes_max` bytes or more.
    """

    __slots__ = ("_queue", "bytes", "bytes_max", "messages_max")

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self._queue: deque[tuple[int, int]] = deque()
        self.bytes = 0
        self.messages_max = messages_max
        self.bytes_max = bytes_max

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, index: int, size_bytes: int) -> None:
        """Remember a sent message that ends at `index`. The window must not be full."""
        assert not self.is_full(), "an append was sent past the in-flight limit"
        assert not self._queue or self._queue[-1][0] < index, "in-flight indexes must rise"
        self._queue.append((index, size_bytes))
        self.bytes += size_bytes

    def free_to(self, index: int) -> None:
        """Forget the messages that end at or below `index`."""
        queue = self._queue
        while queue and queue[0][0] <= index:
            self.bytes -= queue.popleft()[1]
        assert queue or not self.bytes, f"an empty window of {self.bytes} bytes"

    def is_full(self) -> bool:
        """Whether no further records may be sent for now."""
        return len(self._queue) >= self.messages_max or self.bytes >= self.bytes_max

    def clear(self) -> None:
        """Forget all."""
        self._queue.clear()
        self.bytes = 0


class Progress:
    """A follower (or learner, or the leader itself) as the leader sees it. It is state."""

    __slots__ = (
        "inflights",
        "is_flow_paused",
        "is_learner",
        "is_recently_active",
        "match",
        "next",
        "pending_snapshot",
        "sent_commit",
        "state",
        "was_recently_active",
    )

    def __init__(
        self,
        *,
        match: int,
        next: int,  # noqa: A002 - the paper's word
        inflights: Inflights,
        is_learner: bool = False,
        is_recently_active: bool = False,
    ) -> None:
        self.match = match
        """Highest index known to be equal in both logs, and durable there."""
        self.next = next
        """Index of the next record to send."""
        self.sent_commit = 0
        """Highest commit index that was sent; avoids sending it twice."""
        self.state = PROBE
        self.pending_snapshot = 0
        """In SNAPSHOT: index of the snapshot that was sent; else 0."""
        self.is_recently_active = is_recently_active
        """Whether it answered since the last CheckQuorum."""
        self.was_recently_active = False
        """Whether it had answered between that one and the one before."""
        self.is_flow_paused = False
        """PROBE: the one append is out. REPLICATE: the window is full."""
        self.inflights = inflights
        self.is_learner = is_learner

    def copy(self) -> "Progress":
        """A second view that shares the window; a membership change swaps it in whole."""
        other = Progress(match=self.match, next=self.next, inflights=self.inflights)
        for name in Progress.__slots__:
            setattr(other, name, getattr(self, name))
        return other

    def restart(self, *, match: int, next: int) -> None:  # noqa: A002
        """Forget everything but the learner mark: a new term begins."""
        assert match < next, f"next {next} is not past match {match}"
        self.match = match
        self.next = next
        self.sent_commit = 0
        self.is_recently_active = self.was_recently_active = False
        self._enter(PROBE)

    def become_probe(self) -> None:
        """Send one append at a time again, from after the highest index surely matched, or after
        the snapshot just sent."""
        if self.state is SNAPSHOT:
            snapshot = self.pending_snapshot
            self._enter(PROBE)
            self.next = max(self.match + 1, snapshot + 1)
        else:
            self._enter(PROBE)
            self.next = self.match + 1
        self.sent_commit = min(self.sent_commit, self.next - 1)
        assert self.match < self.next, "a probe below what matches"

    def become_replicate(self) -> None:
        """The logs agree up to `match`: stream from there."""
        self._enter(REPLICATE)
        self.next = self.match + 1
        self.sent_commit = min(self.sent_commit, self.next - 1)

    def become_snapshot(self, index: int) -> None:
        """A snapshot at `index` is on its way: send nothing until it arrived."""
        assert self.state is not SNAPSHOT, "a second snapshot while one is on its way"
        self._enter(SNAPSHOT)
        self.pending_snapshot = index
        self.next = index + 1
        self.sent_commit = index

    def sent(self, count: int, size_bytes: int) -> None:
        """An append with `count` records of `size_bytes` left for this follower."""
        assert not self.is_flow_paused, "an append to a follower that must answer first"
        if self.state is REPLICATE:
            if count:
                self.next += count
                self.inflights.add(self.next - 1, size_bytes)
            # Past the window, even an empty append is a probe: one, then wait for an answer.
            self.is_flow_paused = self.inflights.is_full()
        else:
            assert self.state is PROBE, "an append was sent while a snapshot is pending"
            if count:
                self.is_flow_paused = True

    def may_bump_commit(self, commit: int) -> bool:
        """Whether sending `commit` could still move the follower's commit index."""
        return commit > self.sent_commit and self.sent_commit < self.next - 1

    def matched(self, index: int) -> bool:
        """The follower acknowledged `index`. False if it had acknowledged that index before."""
        if index <= self.match:
            return False
        self.match = index
        if self.next <= index:
            self.next = index + 1
        self.is_flow_paused = False
        assert self.match < self.next, "records that match are sent again"
        return True

    def rejected(self, index: int, hint: int) -> bool:
        """The follower refused an append after `index`; its log may agree up to `hint`.

        False if the rejection is stale: reordered, or answered twice; or if the follower lost
        acknowledged records. Then each further append would be refused at once, without end.
        """
        if index <= self.match:
            return False
        if self.state is REPLICATE:
            self.next = self.match + 1
            self.sent_commit = min(self.sent_commit, self.next - 1)
            return True
        # While probing, only the answer to the one append that is out can be genuine.
        if self.next - 1 != index:
            return False
        self.next = max(min(index, hint + 1), self.match + 1)
        self.sent_commit = min(self.sent_commit, self.next - 1)
        self.is_flow_paused = False
        # Below `next` now, so that probing ends: each refusal brings it closer to `match`.
        assert self.match < self.next <= max(index, self.match + 1), "a probe that does not go back"
        return True

    @property
    def is_paused(self) -> bool:
        """Whether nothing may be sent to it for now."""
        return self.is_flow_paused or self.state is SNAPSHOT

    def _enter(self, state: ProgressState) -> None:
        self.is_flow_paused = False
        self.pending_snapshot = 0
        self.state = state
        self.inflights.clear()
