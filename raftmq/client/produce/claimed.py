"""A producer whose session outlives its process: a new process learns how far the old one came.

    async with mq.claimed_producer("orders", "import-7", label=3) as p:
        for queue, stored in p.stored.items():
            ...                              # stored.count messages, from offset stored.origin on
        await p.send(...)                    # the rest

Opening the producer claims the session: from then on messages of an earlier holder are refused
(`FENCED`), though that holder may not know yet that it was replaced. And the claim tells how many
messages the earlier holders of this label have stored in each queue. So work that is done in
pieces, each under a higher label, stores each message once, however often a process dies and
whatever the old process still does: the next holder reads the counts, and sends the missing rest.

*Work in parts.* Work that several such producers do side by side is cut into parts, and a message
must be in the same part whenever the work is done again. `claim_part` records in the cluster which
parts of a label were begun, and their number if the caller knows it; another number is refused.

Invariants:
- A message's sequence number in its queue counts the messages of this label; there is no gap.
- Nothing is sent before all queues are claimed: no other holder can add to the counts in `stored`.
- The queues are those that the topic had when they were claimed: a key has one queue.

Left out: going on in the same object after a batch was refused or lost. A new claim tells whether
the batch is stored.

Sources: Kafka's transactional ids (KIP-98), which fence by name; the epochs of
`raftmq.machine.producers`.
"""

from collections.abc import Mapping
from hashlib import blake2b
from typing import NamedTuple, Self

from raftmq.client.arguments import require
from raftmq.client.routing.requests import after, ask_leader, find_topic, seconds_left
from raftmq.client.routing.router import Router
from raftmq.client.supervisor import Supervisor
from raftmq.client.world import ClientWorld
from raftmq.errors import Reason, Rejected
from raftmq.machine.queue_numbers import QUEUE_BITS, QUEUE_MASK
from raftmq.wire.messages import TopicView
from raftmq.wire.numbers import LIST_MAX
from raftmq.wire.producing import ClaimSessions, SessionsClaimed, SessionView

from .producer import Producer
from .queue_sender import Claimed, QueueSender
from .settings import ProducerSettings


class StoredMessages(NamedTuple):
    """The messages that earlier holders of a label have stored in a queue."""

    count: int  # type: ignore[assignment]  # hides tuple.count, which has no use here
    """Number of messages; other producers' messages may stand between them."""
    origin: int
    """Offset of the first message; -1: the message is delayed and has no offset yet."""


class ClaimedProducer(Producer):
    """See `claimed`. Made by `Client.claimed_producer`; use it as `async with`.

    The producer sends as any other, but the first message that is refused for good, or whose
    outcome is unknown, ends its queue: later messages to that queue fail, too.
    """

    def __init__(
        self,
        topic: str,
        settings: ProducerSettings,
        session: str,
        label: int,
        *,
        router: Router,
        supervisor: Supervisor,
        world: ClientWorld,
    ) -> None:
        super().__init__(topic, settings, router=router, supervisor=supervisor, world=world)
        require(bool(session), "a session has a name")
        require(0 < label < 1 << 63, "a label is 1 to 2^63 - 1")
        self._label = label
        self._sessions: dict[int, SessionView] = {}
        self._claimed_view: TopicView | None = None
        self.id = producer_id(session)
        """The producer's id, which stands in the head of its batches."""
        self.session = session
        """The session's name."""

    async def __aenter__(self) -> Self:
        """Claim the session on all queues of the topic. Cancelling leaves each claimed or not.

        Raises:
            Rejected: `FENCED`, a higher label was claimed; `UNKNOWN_TOPIC`.
            Unavailable: a leader did not answer in time, and nothing is claimed; try again.
            OutcomeUnknown: some queues may be claimed, which ends an earlier holder; try again.
        """
        left = seconds_left(self._router, None)
        view = await find_topic(self._router, self.topic, left())
        groups: dict[int, list[int]] = {}
        for queue, group in enumerate(view.groups):
            groups.setdefault(group, []).append(view.id << QUEUE_BITS | queue)
        done: list[int] = []
        with after(done, "the claim of queues"):
            for group, queues in sorted(groups.items()):
                for start in range(0, len(queues), LIST_MAX):
                    part = queues[start : start + LIST_MAX]
                    request = ClaimSessions(group, self.id, part, self._label)
                    claimed = await _claim(self._router, request, left())
                    self._sessions.update(zip(part, claimed, strict=True))
                    done += [number & QUEUE_MASK for number in part]
            self._claimed_view = view
            await self._open(left())
        self._follow_topic()
        return self

    @property
    def stored(self) -> Mapping[int, StoredMessages]:
        """Queue within the topic → the messages of this label stored before the claim. Queues
        without any are left out."""
        return {
            number & QUEUE_MASK: StoredMessages(session.next_sequence, session.origin)
            for number, session in sorted(self._sessions.items())
            if session.next_sequence
        }

    @property
    def queues(self) -> int:
        """Number of the topic's queues at the claim."""
        return len(self._sessions)

    def _make_sender(self, queue_number: int, group: int) -> QueueSender:
        assert self._host is not None
        session = self._sessions.get(queue_number)
        if session is None:
            message = f"queue {queue_number:x} is not of the topic that was claimed"
            raise Rejected(Reason.UNKNOWN_TOPIC, message)
        claimed = Claimed(self.id, session.epoch, session.next_sequence)
        return QueueSender(self._host, queue_number=queue_number, group=group, claimed=claimed)

    def _follow_topic(self) -> None:
        """Keep the claimed queues: queues that the topic gets later belong to the next claim."""
        if self._queues is not None and self._claimed_view is not None:
            self._queues.view = self._claimed_view


async def claim_part(
    router: Router, topic: str, work: str, *, label: int, part: int, parts: int
) -> int:
    """Record that a part of a label's work begins; returns the highest part begun so far.

    One session holds the record, on the topic's first queue. A repeat and cancelling are safe.

    Args:
        router: to the cluster.
        topic: the topic's name.
        work: the name of the work, equal in every process that does a part of it.
        label: the piece of the work; it never decreases.
        part: from 1.
        parts: the number of parts; 0: the caller does not know.

    Raises:
        Rejected: `OTHER_PARTS`, the label was begun in another number of parts; `FENCED`, a higher
            label was claimed; `UNKNOWN_TOPIC`.
        Unavailable, OutcomeUnknown: a leader did not answer in time; try again.
    """
    require(bool(work), "work has a name")
    require(0 < label < 1 << 63, "a label is 1 to 2^63 - 1")
    require(0 < part < 1 << 63 and 0 <= parts < 1 << 63, "parts are counted from 1 to 2^63 - 1")
    left = seconds_left(router, None)
    view = await find_topic(router, topic, left())
    queue, group = view.id << QUEUE_BITS, view.groups[0]
    request = ClaimSessions(group, producer_id(work), [queue], label, part, parts)
    (session,) = await _claim(router, request, left())
    return session.part


async def _claim(router: Router, request: ClaimSessions, timeout: float) -> list[SessionView]:
    reply = await ask_leader(
        router, request, SessionsClaimed, timeout=timeout, queue_number=request.queues[0]
    )
    return reply.sessions


def producer_id(session: str) -> int:
    """The id of a session's producer: the same in every process, 1 to 2^63 - 1.

    >>> producer_id("import-7") == producer_id("import-7") != producer_id("import-8")
    True
    """
    digest = blake2b(session.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1 or 1
