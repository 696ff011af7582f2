"""The consumer groups of a data group that pop, as its machine serves them.

    record ──> time passes: leases run out, retries fall due
           ──> the record itself: a batch, requests, settlements
           ──> waiting consumers are served ──> `handed`, for the leader to send

So a delivery costs no record of its own. Every replica does the same; only the leader sends.

Invariants:
- Groups are served in the order of their numbers, not in that of events: a replica that was
  restored from a snapshot hands out under the same tokens.
- A token is the index of the record that handed out and a slot within it, over all groups.
- An idle group costs nothing: a heap finds the timers.
- A timer in the heap may be earlier than its group's own one, and differs between replicas: the
  timer touches the group only if the group's own one is due. So a stale timer has no visible
  effect.

Sources: rabbit_fifo (credit inside the machine).
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from heapq import heappop, heappush
from typing import Any, NamedTuple, assert_never

from raftmq.errors import Reason
from raftmq.log.traces import MessageEvent
from raftmq.machine.queue_numbers import QUEUE_BITS
from raftmq.pop.actions import FENCED, OVER_LIMIT, REASON_CHARACTERS_MAX, Action
from raftmq.pop.calls import (
    Ask,
    Call,
    ChangeDead,
    Claim,
    CloseGroups,
    Feed,
    Leave,
    Lose,
    OpenGroup,
    ResetGroup,
    Settle,
    Step,
    Tick,
)
from raftmq.pop.credit import RUNNING_MAX
from raftmq.pop.groups import HANDED_MAX, PopGroup
from raftmq.pop.leases import SLOT_BITS, Handed
from raftmq.pop.policy import INVISIBLE_MS_MAX
from raftmq.pop.spans import Span, span
from raftmq.results import Changed, Refused, Result

from .claims import Claims
from .queue_ends import QueueEnds
from .repeats import Repeats
from .settlements import Settlements, Settling
from .subscriptions import Subscriptions

SHOWN_MAX = 1024
"""Queues in which a group is shown when it begins: each takes an event and a backlog."""
LEASES_MAX = 4 * HANDED_MAX
"""Leases that one record opens, over all groups: the next record serves the other consumers."""
ASKED_MAX = 100_000
"""Messages of one request: bounds what one record hands out."""
WAIT_MS_MAX = 10 * 60 * 1000
"""No credit stands for longer: its consumer asks again."""
NACK_MS_MAX = 7 * 24 * 3600 * 1000
"""No failed message waits for longer."""
REDRIVE_VERSION = 3
"""The version of records from which on redriven messages do not wait for parked ones after them."""


class Delivery(NamedTuple):
    """Messages that a consumer of an attachment has from now on."""

    number: int
    """The attachment's number."""
    handed: Handed
    """The messages, with their consumer and lease."""


class InHand(NamedTuple):
    """Messages that a consumer of an attachment says it has in hand."""

    number: int
    """The attachment's number."""
    consumer: int
    """The consumer that has the messages."""
    token: int
    """The lease's token."""
    messages: Span
    """Which messages."""


class Traced(NamedTuple):
    """The events of one record, on messages of an attachment."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which is unused here
    """The record's Raft index."""
    number: int
    """The attachment's number."""
    events: list[MessageEvent]
    """The events, in order."""


class Attached:
    """One attachment of a consumer group to a topic."""

    __slots__ = ("group", "name", "topic", "version")

    def __init__(self, topic: int, name: str, version: int, group: PopGroup) -> None:
        self.topic = topic
        """The topic's number."""
        self.name = name
        """The consumer group's name."""
        self.version = version
        """The policy's version."""
        self.group = group
        """The state of the group's messages."""


class PopGroups:
    """All attachments of one data group's machine."""

    def __init__(self, subscriptions: Subscriptions) -> None:
        """`subscriptions`: which groups have filters, as this log has them."""
        self.attached: dict[int, Attached] = {}
        """Attachments by number."""
        self.fed: dict[int, PopGroup] = {}
        """Groups that need each message described before it goes out (`Feed`)."""
        self._subscriptions = subscriptions
        self.earliest: dict[int, int] = {}
        """Queue → the first offset that is kept, as of the last `Lose`."""
        self.claims = Claims()
        """Work that consumers have claimed."""
        self.handed: list[Delivery] = []
        """Messages handed out since the shell last took them."""
        self.traced: list[Traced] = []
        """Events of messages since the shell last took them."""
        self._of_topic: dict[int, dict[int, PopGroup]] = {}
        # Topic and consumer group → attachments; one that is deleted may still be here beside
        # its successor.
        self._numbers: dict[tuple[int, str], dict[int, None]] = {}
        self._settlements = Settlements()
        self._repeats = Repeats()
        self._timers: list[tuple[int, int]] = []
        # Number → which of its timers counts; others in the heap are void.
        self._timer: dict[int, int] = {}
        self._touched: set[int] = set()
        # The version of the record that is being applied.
        self._version = 0
        # (group, consumer) of requests that do not wait: their credit ends with their record.
        self._momentary: list[tuple[PopGroup, int]] = []

    # Around a record

    def begin(self, now: int, version: int) -> None:
        """Let time pass, before the record of this time and version is applied."""
        assert not self._touched, "groups that `finish` has not served"
        self._version = version
        self.claims.pass_time(now)
        timers = self._timers
        due: list[int] = []
        while timers and timers[0][0] <= now:
            at, number = heappop(timers)
            if self._timer.get(number) == at:
                del self._timer[number]
                due.append(number)
        for number in due:
            group = self.attached[number].group
            timer = group.next_timer
            if timer is not None and timer <= now:
                # Work over the bound is left to the next record.
                group.pass_time(now)
                self._touched.add(number)
            else:
                # A lease was settled since. A restored replica has no such timer, and does not
                # touch the group: this replica must not touch it either.
                self._note_timer(number, timer)

    def came(self, queue: int, base: int, count: int, keys: bytes) -> None:
        """A batch was placed in a queue; `keys` are its key hashes, empty if none has a key.

        A group without a filter that knows all messages before the batch needs no `Feed`.
        """
        for number, group in self._of_topic.get(queue >> QUEUE_BITS, {}).items():
            # A queue that is new since the group began is read from its first message.
            group.follow(queue, 0)
            if group.is_fed and not group.is_filtered and group.known(queue) == base:
                group.feed(queue, base, count, mask=None, keys=keys)
            group.came(queue)
            self._touched.add(number)

    def resubscribed(self, topic: int, name: str) -> None:
        """A consumer group's filter was set, replaced or removed."""
        is_filtered = bool(self._subscriptions.of(topic, name))
        for number in self._numbers.get((topic, name), ()):
            group = self.attached[number].group
            group.set_filtered(is_filtered)
            self._note_fed(number, group)
            self._touched.add(number)

    def finish(self, ends: Mapping[int, int], now: int, index: int) -> list[Delivery]:
        """Serve waiting consumers, after the record at `index`; what was handed out."""
        touched, self._touched = self._touched, set()
        next_token = _tokens(index)
        found: list[Delivery] = []
        for number in sorted(touched):
            attached = self.attached.get(number)
            if attached is None:
                continue
            room = LEASES_MAX - len(found)
            handed = attached.group.hand_out(ends, now, next_token, room)
            found += [Delivery(number, each) for each in handed]
            if attached.group.events:
                self.traced.append(Traced(index, number, attached.group.events))
                attached.group.events = []
            self._note_timer(number, attached.group.next_timer)
        assert len(found) <= LEASES_MAX, "one record opens too many leases"
        for group, consumer in self._momentary:
            group.leave(consumer)
        self._momentary.clear()
        self.handed += found
        return found

    def _note_timer(self, number: int, timer: int | None) -> None:
        if timer is not None and timer < self._timer.get(number, timer + 1):
            self._timer[number] = timer
            heappush(self._timers, (timer, number))

    @property
    def is_idle(self) -> bool:
        """True if no batch and no time can change anything here."""
        return not self.attached

    @property
    def next_timer(self) -> int | None:
        """When `begin` has something to do; None: never, unless a record changes that."""
        timers = self._timers
        while timers and self._timer.get(timers[0][1]) != timers[0][0]:
            heappop(timers)
        return timers[0][0] if timers else None

    def in_flight(self, topic: int, now: int) -> int:
        """Messages of a topic in the hands of all consumers, and those that they may be handed
        without asking again."""
        return sum(group.in_flight(now) for group in self._of_topic.get(topic, {}).values())

    def take_handed(self) -> list[Delivery]:
        """Messages handed out since the last call."""
        handed, self.handed = self.handed, []
        return handed

    def take_traced(self) -> list[Traced]:
        """Events of messages since the last call."""
        traced, self.traced = self.traced, []
        return traced

    # Commands

    def run(self, call: Call, ends: QueueEnds, now: int) -> Result:
        """Carry out a command of the record of this time."""
        match call:
            case OpenGroup():
                return self._open(call, ends)
            case CloseGroups(numbers=numbers):
                self._close(numbers)
                return Changed()
            case Feed():
                return self._feed(call)
            case Ask():
                return self._ask(call, now)
            case Settle():
                return self._settle(call, now)
            case Leave(number=number, consumer=consumer):
                attached = self.attached.get(number)
                if attached is not None:
                    attached.group.leave(consumer)
                return Changed()
            case Tick():
                # The record's time has done the work: see `begin`.
                return Changed()
            case Lose():
                return self._lose(call, ends)
            case ChangeDead():
                return self._repeats.once(call.request, partial(self._change_dead, call))
            case ResetGroup():
                return self._repeats.once(call.request, partial(self._reset, call, ends))
            case Claim():
                return self._claim(call, now)
            case _:
                assert_never(call)

    def held_until(self, what: InHand, now: int) -> int | None:
        """When the lease on all of these messages ends; None: not all are in that hand."""
        attached = self.attached.get(what.number)
        if attached is None:
            return None
        return attached.group.held_until(what.consumer, what.token, what.messages, now)

    def ack(self, what: InHand, now: int) -> None:
        """Acknowledge these messages, all of which must be in that hand."""
        self.attached[what.number].group.ack(what.consumer, what.token, what.messages, now)
        self._touched.add(what.number)

    def drop_queues(self, queues: set[int]) -> None:
        """The topics of these queues were deleted: close their attachments."""
        topics = {queue >> QUEUE_BITS for queue in queues}
        self._close([n for n, attached in self.attached.items() if attached.topic in topics])
        for queue in queues:
            self.earliest.pop(queue, None)

    def _open(self, call: OpenGroup, ends: QueueEnds) -> Result:
        attached = self.attached.get(call.number)
        if attached is not None:
            # An earlier leader's command may come late, with the policy of its time.
            if call.version > attached.version:
                attached.version, attached.group.policy = call.version, call.policy
            return Changed()
        is_filtered = bool(self._subscriptions.of(call.topic, call.consumer_group))
        group = PopGroup(call.policy, call.mode, is_filtered)
        self._attach(call.number, Attached(call.topic, call.consumer_group, call.version, group))
        # There may be 65,536 queues: most begin at 0, and others at their end.
        begins = dict.fromkeys(ends.of_topic(call.topic), 0)
        trimmed = [queue for queue in begins if queue in self.earliest]
        for queue in trimmed:
            begins[queue] = self._kept(queue, 0, ends[queue])
        for queue, start in zip(call.queues, call.starts, strict=False):
            if queue in begins:
                end = ends[queue]
                begins[queue] = end if start < 0 else self._kept(queue, start, end)
        group.begin(begins)
        # So that the backlogs know what is kept, as those of older attachments do, and events show
        # the group in each queue: of very many queues, in those that retention has trimmed.
        for queue in begins if len(begins) <= SHOWN_MAX else trimmed:
            group.trim(queue, self.earliest.get(queue, 0))
        # Trimmed messages are traced under this record, not under the next one of the group.
        self._touched.add(call.number)
        return Changed()

    def _attach(self, number: int, attached: Attached) -> None:
        assert number not in self.attached, f"attachment {number} has leases already"
        self.attached[number] = attached
        self._of_topic.setdefault(attached.topic, {})[number] = attached.group
        self._numbers.setdefault((attached.topic, attached.name), {})[number] = None
        self._note_fed(number, attached.group)

    def _note_fed(self, number: int, group: PopGroup) -> None:
        self.fed.pop(number, None)
        if group.is_fed:
            self.fed[number] = group

    def _close(self, numbers: Iterable[int]) -> None:
        closed = [number for number in dict.fromkeys(numbers) if number in self.attached]
        for number in closed:
            attached = self.attached.pop(number)
            of_topic = self._of_topic[attached.topic]
            del of_topic[number]
            self.fed.pop(number, None)
            if not of_topic:
                del self._of_topic[attached.topic]
            name = attached.topic, attached.name
            del self._numbers[name][number]
            if not self._numbers[name]:
                del self._numbers[name]
            self._timer.pop(number, None)
        if closed:
            # There may be 65,536 consumers and a million claims: one pass for all attachments.
            gone = set(closed)
            assert bool(self._of_topic) == bool(self.attached), "attachments of no topic"
            self.claims.close(gone)
            self._settlements.close(gone)

    def _feed(self, call: Feed) -> Result:
        attached = self.attached.get(call.number)
        if attached is None:
            return _unknown(call.number)
        wanted = self._subscriptions.number_of(attached.topic, attached.name)
        if call.subscription not in (-1, wanted):
            # The feed is older than the latest change of the filter: the leader makes another one.
            return Changed(0)
        mask = None if call.mask is None else int.from_bytes(call.mask, "little")
        fed = attached.group.feed(call.queue, call.base, call.count, mask=mask, keys=call.keys)
        self._touched.add(call.number)
        return Changed(fed)

    def _ask(self, call: Ask, now: int) -> Result:
        attached = self.attached.get(call.number)
        if attached is None:
            return _unknown(call.number)
        if not 0 <= call.count <= ASKED_MAX or not 0 <= call.wait_ms <= WAIT_MS_MAX:
            message = f"a request is for 0..{ASKED_MAX} messages and 0..{WAIT_MS_MAX} ms"
            return Refused(Reason.BAD_ARGUMENT, message)
        if not 0 <= call.invisible_ms <= INVISIBLE_MS_MAX:
            return Refused(Reason.BAD_ARGUMENT, f"a lease runs for at most {INVISIBLE_MS_MAX} ms")
        group = attached.group
        invisible_ms = call.invisible_ms or group.policy.invisible_ms
        if call.count and not group.credits.has_room(call.consumer, now):
            message = (
                f"{RUNNING_MAX} consumers of group {attached.name!r} wait for messages already: "
                "let fewer consumers take more messages each"
            )
            return Refused(Reason.TOO_LARGE, message)
        if call.count:
            # Credit that ends at once would not even be served by its own record.
            until = now + max(call.wait_ms, 1)
            group.ask(
                call.consumer,
                call.count,
                invisible_ms=invisible_ms,
                until=until,
                is_kept=call.is_kept,
                now=now,
            )
        # `finish` ends the credit once this record was served, an earlier request's included.
        if not call.count or not call.wait_ms:
            self._momentary.append((group, call.consumer))
        self._touched.add(call.number)
        return Changed()

    def _settle(self, call: Settle, now: int) -> Result:
        attached = self.attached.get(call.number)
        if attached is None:
            return _unknown(call.number)
        group = attached.group

        def settle() -> list[int | bytes]:
            self._touched.add(call.number)
            return [_step(group, call.consumer, step, now) for step in call.steps]

        by = Settling(call.number, call.consumer, call.by_handle)
        return self._settlements.once(by, call.sequence, settle, now=now)

    def _lose(self, call: Lose, ends: Mapping[int, int]) -> Result:
        for queue, earliest in zip(call.queues, call.earliest, strict=False):
            # Consecutive leaders may report the same loss; the earlier report may arrive late.
            if not self.earliest.get(queue, 0) < earliest <= ends.get(queue, 0):
                continue
            self.earliest[queue] = earliest
            for number, group in self._of_topic.get(queue >> QUEUE_BITS, {}).items():
                group.trim(queue, earliest)
                self._touched.add(number)
        return Changed()

    def _change_dead(self, call: ChangeDead) -> Result:
        attached = self.attached.get(call.number)
        if attached is None:
            return _unknown(call.number)
        redrive = partial(attached.group.redrive, is_old=self._version < REDRIVE_VERSION)
        change: Callable[..., Result] = attached.group.purge if call.is_purge else redrive
        if not call.bases and not call.bits:
            done = [change(letter) for letter in call.letters]
        elif len(call.letters) == len(call.bases) == len(call.bits):
            parts = zip(call.letters, map(_named, call.bases, call.bits), strict=True)
            done = [change(letter, part) for letter, part in parts if part is not None]
        else:
            message = "a base and bits are needed for each dead letter, or for none"
            return Refused(Reason.BAD_ARGUMENT, message)
        self._touched.add(call.number)
        return Changed(sum(result.value for result in done if isinstance(result, Changed)))

    def _reset(self, call: ResetGroup, ends: Mapping[int, int]) -> Result:
        attached = self.attached.get(call.number)
        if attached is None:
            return _unknown(call.number)
        offsets: dict[int, int] = {}
        for queue, offset in zip(call.queues, call.offsets, strict=False):
            # Logs may hold a reset that names a queue twice: each counts, in its turn.
            if queue in offsets:
                attached.group.reset(offsets)
                offsets = {}
            # A request may name any queue.
            if queue >> QUEUE_BITS == attached.topic and queue in ends:
                offsets[queue] = self._kept(queue, offset, ends[queue])
        attached.group.reset(offsets)
        self._touched.add(call.number)
        return Changed()

    def _kept(self, queue: int, offset: int, end: int) -> int:
        """Where a group begins, for an offset that a command names, -1: the end. Messages that
        retention removed while the command was on its way never were the group's."""
        return end if offset < 0 else min(max(offset, self.earliest.get(queue, 0)), end)

    def _claim(self, call: Claim, now: int) -> Result:
        if call.number not in self.attached:
            return _unknown(call.number)
        if not call.ttl_ms:
            return self.claims.release(call.number, call.key, call.claimant)
        return self.claims.claim(call.number, call.key, call.claimant, ttl_ms=call.ttl_ms, now=now)

    # As plain values

    def dump(self, now: int) -> list[Any]:
        """The whole state after a record of this time, alike on every replica."""
        assert not self._touched, "groups that `finish` has not served"
        assert not self._momentary, "credit that should have ended with its record"
        return [
            [
                [number, x.topic, x.name, x.version, x.group.dump(now)]
                for number, x in self.attached.items()
            ],
            list(self.earliest.items()),
            self._settlements.dump(),
            self.claims.dump(),
            self._repeats.dump(),
        ]

    def load(self, state: list[Any]) -> None:
        """Take the state that `dump` gave."""
        attached, earliest, settlements, claims, *done = state
        self._repeats.load(done[0] if done else [])
        self.claims.load(claims)
        for number, topic, name, version, dumped in attached:
            group = PopGroup.load(dumped)
            self._attach(number, Attached(topic, name, version, group))
            self._note_timer(number, group.next_timer)
        self.earliest = dict(earliest)
        self._settlements.load(settlements)


def _tokens(index: int) -> Callable[[], int]:
    """The tokens of a record, one after the other."""
    token = (index << SLOT_BITS) - 1

    def following() -> int:
        nonlocal token
        token += 1
        assert token >> SLOT_BITS == index, "more hand-outs in one record than tokens"
        return token

    return following


def _step(group: PopGroup, consumer: int, step: Step, now: int) -> int | bytes:
    """Carry out one step of a settlement; its result, see `spans.told`."""
    if step.action == Action.EXTEND:
        if not 0 < step.delay_ms <= INVISIBLE_MS_MAX:
            return OVER_LIMIT
        extended = group.extend(consumer, step.token, now, invisible_ms=step.delay_ms)
        return extended.value - now if isinstance(extended, Changed) else FENCED
    messages = _named(step.base, step.bits)
    if messages is None or step.delay_ms > NACK_MS_MAX:
        return OVER_LIMIT
    token = step.token
    match step.action:
        case Action.ACK:
            result = group.ack(consumer, token, messages, now)
        case Action.NACK:
            delay_ms = None if step.delay_ms < 0 else step.delay_ms
            result = group.nack(consumer, token, messages, now, delay_ms=delay_ms)
        case Action.REJECT:
            reason = step.reason[:REASON_CHARACTERS_MAX]
            result = group.reject(consumer, token, messages, now, reason=reason)
        case Action.GIVE_BACK:
            result = group.give_back(consumer, token, messages, now)
        case _:
            return OVER_LIMIT
    return result.value if isinstance(result, Changed) else FENCED


def _named(base: int, bits: bytes) -> Span | None:
    """The messages that a command names; None: none."""
    return span(base, int.from_bytes(bits, "little"))


def _unknown(number: int) -> Refused:
    message = f"attachment {number} of a consumer group is not served here: it was deleted"
    return Refused(Reason.UNKNOWN_GROUP, message)
