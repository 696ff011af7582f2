"""A consumer group that pops: leases with deadlines, retries in place, dead letters. No rebalance.

Consumers ask for messages by *credit*. What is there is handed out at once; credit that is left
stands until its time is over, and is served in the very record that brings something: a batch, a
retry that falls due, a lease that runs out. So a delivery costs no record of its own, and nobody
owns a queue: a consumer that hangs holds up what it has in hand and nothing else.

| call | effect on messages |
|---|---|
| `ask` | fresh or ready → leased |
| `ack` | leased → acked |
| `nack` | leased → waiting (by the schedule, or as long as told), or dead after the last attempt |
| `reject` | leased → dead |
| `give_back` | leased → ready; the attempt does not count |
| `extend` | the lease runs longer |
| `pass_time` | leases that ran out: as nack; retries that fell due: waiting → ready |
| `redrive`, `purge` | dead → ready as new; dead → gone |
| `trim` | any → lost: retention took it, and it is counted |

Invariants:
- Conservation: each message that was ever handed out is in exactly one of leased, waiting, ready,
  dead, acked, purged, lost: `audit` says so.
- While a lease runs nobody else is handed its messages, and only its consumer and token settle
  them.
- An acked message is never handed out again.

Left out: order by key, broadcast; filters.

Sources: RabbitMQ's rabbit_fifo (hand-out inside the apply of any command, while there is credit);
RocketMQ's POP (no rebalance); Kafka's share groups (KIP-932), which replicate no acquisition.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

import msgspec

from raftmq.errors import Reason

from .backlog import Backlog
from .leases import Lease, Leases
from .results import Changed, Refused, Result
from .spans import Span

SCHEDULE_MS = tuple(
    1000 * seconds
    for seconds in (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
)
"""RocketMQ's levels of delay for a message that failed once, twice, …"""

EXPIRIES_MAX = 10_000
"""Leases taken back in one step: a million that run out at once must not stop the loop."""


class Policy(msgspec.Struct, frozen=True):
    """What becomes of messages that fail."""

    schedule_ms: tuple[int, ...] = SCHEDULE_MS
    """How long a message waits after its first failure, the second, …; the last one repeats."""
    attempts_max: int = 17
    """A message that fails for so many times is a dead letter."""

    def delay_ms(self, attempt: int) -> int:
        """How long a message waits that has failed `attempt` times."""
        return self.schedule_ms[min(attempt, len(self.schedule_ms)) - 1]


class Handed(NamedTuple):
    """Messages that a consumer has from now on."""

    consumer: int
    """Whose they are."""
    token: int
    """What it must name to settle them."""
    queue: int
    """The queue's number."""
    messages: Span
    """Which, and for which time."""
    deadline: int
    """Until when, in milliseconds."""


class DeadLetter(NamedTuple):
    """Messages that are not handed out any more."""

    queue: int
    """The queue's number."""
    messages: Span
    """Which, and how often they were tried."""
    reason: str
    """Why: in the words of the consumer, or `expired` or `failed`."""
    at: int
    """Since when, in milliseconds."""


class _Credit:
    """What a consumer may be handed, and how."""

    __slots__ = ("count", "invisible_ms", "until")

    def __init__(self, count: int, invisible_ms: int, until: int) -> None:
        self.count = count
        self.invisible_ms = invisible_ms
        self.until = until


class PopGroup:
    """One consumer group's state in one partition group."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        """What becomes of messages that fail."""
        self.backlogs: dict[int, Backlog] = {}
        """By queue."""
        self.dead: dict[int, DeadLetter] = {}
        """Dead letters, by a number that grows."""
        self.buried = 0
        """Dead letters so far: the number of the newest."""
        self.purged = 0
        """Messages of dead letters that were thrown away."""
        self._leases = Leases()
        # (due, queue, base, messages): no two begin at one place, so messages are not compared.
        self._waiting: list[tuple[int, int, int, Span]] = []
        self._credits: dict[int, _Credit] = {}
        # Consumers whose turn comes, and queues that may have something: each in order of turns.
        self._hungry: deque[int] = deque()
        self._open: dict[int, None] = {}

    # What the queue does

    def follow(self, queue: int, start: int) -> None:
        """Read a queue from an offset on. Nothing changes if the group reads it already."""
        if queue not in self.backlogs:
            self.backlogs[queue] = Backlog(start)
            self._open[queue] = None

    def came(self, queue: int) -> None:
        """A queue has new messages."""
        if queue in self.backlogs:
            self._open[queue] = None

    def trim(self, queue: int, earliest: int) -> None:
        """Retention took what stands before an offset of a queue."""
        backlog = self.backlogs.get(queue)
        if backlog is None:
            return
        backlog.trim(earliest)
        backlog.lost += self._leases.drop_before(queue, earliest)
        waiting = self._waiting
        self._waiting = [each for each in waiting if each[1] != queue]
        for due, at, _, messages in waiting:
            if at == queue:
                gone, kept = messages.before(earliest)
                backlog.lost += gone.size if gone is not None else 0
                if kept is not None:
                    self._waiting.append((due, at, kept.base, kept))
        heapify(self._waiting)

    # What consumers do

    def ask(self, consumer: int, count: int, *, invisible_ms: int, until: int) -> None:
        """A consumer wants up to `count` messages until a time; its last wish is void."""
        if consumer not in self._credits:
            self._hungry.append(consumer)
        self._credits[consumer] = _Credit(count, invisible_ms, until)

    def hand_out(
        self, ends: Mapping[int, int], now: int, next_token: Callable[[], int]
    ) -> list[Handed]:
        """Give hungry consumers what there is; consumers and queues take turns."""
        handed: list[Handed] = []
        while self._hungry and self._open:
            consumer = self._hungry.popleft()
            credit = self._credits[consumer]
            if credit.count <= 0 or credit.until <= now:
                del self._credits[consumer]
                continue
            queue = next(iter(self._open))
            del self._open[queue]
            backlog, end = self.backlogs[queue], ends.get(queue, 0)
            messages = backlog.take(credit.count, end)
            if messages is None:
                self._hungry.appendleft(consumer)
                continue
            if backlog.has_some(end):
                self._open[queue] = None
            token, deadline = next_token(), now + credit.invisible_ms
            self._leases.open(token, Lease(queue, messages, consumer, deadline))
            handed.append(Handed(consumer, token, queue, messages, deadline))
            credit.count -= messages.size
            self._hungry.append(consumer)
        return handed

    def ack(self, consumer: int, token: int, messages: Span, now: int) -> Result:
        """These messages of a lease are done with."""
        return self._settle(consumer, token, messages, now, self._acked)

    def nack(
        self, consumer: int, token: int, messages: Span, now: int, *, delay_ms: int | None = None
    ) -> Result:
        """These messages of a lease failed: hand them out again, later; None: by the schedule."""

        def failed(queue: int, taken: Span) -> None:
            self._failed(queue, taken, "failed", now, delay_ms)

        return self._settle(consumer, token, messages, now, failed)

    def reject(self, consumer: int, token: int, messages: Span, now: int, *, reason: str) -> Result:
        """These messages of a lease can never be done: they are dead letters at once."""

        def rejected(queue: int, taken: Span) -> None:
            self._bury(queue, taken, reason, now)

        return self._settle(consumer, token, messages, now, rejected)

    def give_back(self, consumer: int, token: int, messages: Span, now: int) -> Result:
        """These messages of a lease were not begun with: whoever comes may have them."""

        def given(queue: int, taken: Span) -> None:
            self._give_back(queue, taken._replace(attempt=taken.attempt - 1))

        return self._settle(consumer, token, messages, now, given)

    def extend(self, consumer: int, token: int, now: int, *, invisible_ms: int) -> Result:
        """A lease runs for so long from now on; the result is its new deadline."""
        lease = self._leases.find(token, consumer, now)
        if lease is None:
            return _fenced(token)
        self._leases.extend(token, lease, now + invisible_ms)
        return Changed(lease.deadline)

    def leave(self, consumer: int) -> None:
        """A consumer wants no more. What it has in hand stays so until it is settled."""
        if self._credits.pop(consumer, None) is not None:
            self._hungry.remove(consumer)

    def held_by(self, consumer: int, now: int) -> Iterator[Handed]:
        """What a consumer has in hand: to be told again after a change of leader."""
        for token, lease in self._leases:
            if lease.consumer == consumer and lease.deadline > now:
                yield Handed(consumer, token, lease.queue, lease.held, lease.deadline)

    # What time does

    @property
    def next_timer(self) -> int | None:
        """When `pass_time` has something to do; None: never, as things are."""
        timers = [self._leases.next_deadline, self._waiting[0][0] if self._waiting else None]
        return min((timer for timer in timers if timer is not None), default=None)

    def pass_time(self, now: int) -> bool:
        """Take back leases that ran out, wake retries that fell due, up to a bound; True if there
        is more to do."""
        for queue, messages in self._leases.take_expired(now, EXPIRIES_MAX):
            self._failed(queue, messages, "expired", now, None)
        for _ in range(EXPIRIES_MAX):
            if not self._waiting or self._waiting[0][0] > now:
                break
            _, queue, _, messages = heappop(self._waiting)
            self._give_back(queue, messages)
        timer = self.next_timer
        return timer is not None and timer <= now

    # What operators do

    def redrive(self, number: int) -> Result:
        """Hand the messages of a dead letter out again, as if for the first time."""
        letter = self.dead.pop(number, None)
        if letter is None:
            return _no_letter(number)
        self._give_back(letter.queue, letter.messages._replace(attempt=0))
        return Changed(letter.messages.size)

    def purge(self, number: int) -> Result:
        """Throw the messages of a dead letter away."""
        letter = self.dead.pop(number, None)
        if letter is None:
            return _no_letter(number)
        self.purged += letter.messages.size
        return Changed(letter.messages.size)

    def audit(self) -> dict[str, int]:
        """How many messages are in each state. Those handed out ever are all there, each once."""
        counts = Counter[str](purged=self.purged)
        for _, lease in self._leases:
            counts["leased"] += lease.held.size
        counts["waiting"] = sum(messages.size for *_, messages in self._waiting)
        counts["dead"] = sum(letter.messages.size for letter in self.dead.values())
        for backlog in self.backlogs.values():
            counts["ready"] += backlog.ready
            counts["acked"] += backlog.acked
            counts["lost"] += backlog.lost
        begun = sum(backlog.next - backlog.begun for backlog in self.backlogs.values())
        assert counts.total() == begun, f"{dict(counts)} do not add up to {begun}"
        return dict(counts)

    def dump(self) -> list[Any]:
        """All of it as plain values."""
        return [
            [list(self.policy.schedule_ms), self.policy.attempts_max],
            [[queue, *backlog.dump()] for queue, backlog in self.backlogs.items()],
            self._leases.dump(),
            [[due, queue, *messages] for due, queue, _, messages in sorted(self._waiting)],
            [[number, x.queue, *x.messages, x.reason, x.at] for number, x in self.dead.items()],
            [[consumer, x.count, x.invisible_ms, x.until] for consumer, x in self._credits.items()],
            [list(self._hungry), list(self._open), self.buried, self.purged],
        ]

    @classmethod
    def load(cls, values: list[Any]) -> "PopGroup":
        """The reverse of `dump`."""
        policy, backlogs, leases, waiting, dead, wishes, rest = values
        group = cls(Policy(tuple(policy[0]), policy[1]))
        group.backlogs = {queue: Backlog.load(state) for queue, *state in backlogs}
        group._leases.load(leases)
        group._waiting = [
            (due, queue, base, Span(base, bits, attempt))
            for due, queue, base, bits, attempt in waiting
        ]
        group.dead = {
            number: DeadLetter(queue, Span(base, bits, attempt), reason, at)
            for number, queue, base, bits, attempt, reason, at in dead
        }
        group._credits = {consumer: _Credit(*credit) for consumer, *credit in wishes}
        hungry, is_open, group.buried, group.purged = rest
        group._hungry, group._open = deque(hungry), dict.fromkeys(is_open)
        return group

    # -- inside ----------------------------------------------------------------------------------

    def _settle(
        self,
        consumer: int,
        token: int,
        messages: Span,
        now: int,
        settled: Callable[[int, Span], None],
    ) -> Result:
        lease = self._leases.find(token, consumer, now)
        if lease is None:
            return _fenced(token)
        taken = self._leases.take(token, lease, messages)
        if taken is None:
            return _fenced(token)
        settled(lease.queue, taken)
        return Changed(taken.size)

    def _acked(self, queue: int, messages: Span) -> None:
        self.backlogs[queue].acked += messages.size

    def _failed(
        self, queue: int, messages: Span, reason: str, now: int, delay_ms: int | None
    ) -> None:
        if messages.attempt >= self.policy.attempts_max:
            self._bury(queue, messages, reason, now)
            return
        delay_ms = self.policy.delay_ms(messages.attempt) if delay_ms is None else delay_ms
        if delay_ms <= 0:
            self._give_back(queue, messages)
        else:
            heappush(self._waiting, (now + delay_ms, queue, messages.base, messages))

    def _give_back(self, queue: int, messages: Span) -> None:
        self.backlogs[queue].give_back(messages)
        self._open[queue] = None

    def _bury(self, queue: int, messages: Span, reason: str, now: int) -> None:
        self.buried += 1
        self.dead[self.buried] = DeadLetter(queue, messages, reason, now)


def _fenced(token: int) -> Refused:
    message = f"lease {token} is not yours any more: its time ran out, or it is settled"
    return Refused(Reason.FENCED, message)


def _no_letter(number: int) -> Refused:
    return Refused(Reason.BAD_ARGUMENT, f"there is no dead letter {number}: list them")
