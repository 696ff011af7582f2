"""A consumer group and its snapshot twin against a model that keeps a word for each message.

The model does not predict the consumer that gets a message. It judges each hand-out (`judge`), and
after each it checks that no message was kept back from a waiting consumer
(`nothing_is_kept_back`). It predicts everything else, counts and timers too.

The events of messages are noted as they are reported, and must agree with the model at each step.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import cbor2
import msgspec

from raftmq.chaos.ledger.twins import woken_in_vain
from raftmq.errors import Reason
from raftmq.log.traces import BEFORE, FROM, EventBuilder, EventRow, find, rows_of
from raftmq.pop import groups, keyed, windows
from raftmq.pop.groups import PopGroup
from raftmq.pop.keyed import KeyedBacklog
from raftmq.pop.leases import Handed
from raftmq.pop.message_events import follow
from raftmq.pop.policy import RUN_MAX, Mode, Order, Policy
from raftmq.pop.spans import span
from raftmq.results import Changed, Refused

QUEUES = (65536, 65537, 65538)
CONSUMERS = (1, 2, 3)
VERBS = ("ack", "ack", "ack", "nack", "nack now", "reject", "give_back")


@dataclass(frozen=True)
class Kind:
    """The kind of a group."""

    order: Order | None = None
    is_filtered: bool = False
    is_blocking: bool = False
    run: int = 1
    is_changing: bool = False
    """Operators reset queues, and let dead letters block or not."""

    def group(self) -> PopGroup:
        policy = Policy((10, 50), 3, 100, self.order or Order.KEY, self.is_blocking, self.run)
        return PopGroup(policy, Mode.ORDERED if self.order else Mode.POP, self.is_filtered)

    @property
    def is_fed(self) -> bool:
        return self.is_filtered or self.order is Order.KEY


KINDS = {
    "plain": Kind(),
    "filtered": Kind(is_filtered=True),
    "keyed": Kind(Order.KEY),
    "keyed, filtered, blocking": Kind(Order.KEY, is_filtered=True, is_blocking=True),
    "runs": Kind(Order.KEY, run=RUN_MAX),
    "runs of 2": Kind(Order.KEY, run=2),
    "runs, filtered, blocking": Kind(Order.KEY, is_filtered=True, is_blocking=True, run=RUN_MAX),
    "serial": Kind(Order.QUEUE),
    "serial, filtered, blocking": Kind(Order.QUEUE, is_filtered=True, is_blocking=True),
    "plain, changing": Kind(is_changing=True),
    "keyed, changing": Kind(Order.KEY, is_changing=True),
    "runs, changing": Kind(Order.KEY, run=RUN_MAX, is_changing=True),
    "runs of 2, filtered, changing": Kind(Order.KEY, is_filtered=True, run=2, is_changing=True),
    "serial, changing": Kind(Order.QUEUE, is_changing=True),
}


@dataclass
class Message:
    """One message of a queue as the model sees it."""

    queue: int
    offset: int
    key: int
    matches: bool
    word: str
    """unknown, fresh, passed, leased, waiting, ready, dead, acked, lost, purged or skipped."""
    born: int
    """The index of the last record before it."""
    token: int = 0
    attempt: int = 0
    due: int = 0
    traced: str = "fresh"
    """The state that its events say."""
    events: list[EventRow] = field(default_factory=list)
    """The events of this message that the group reported."""
    is_late: bool = False
    """It was a dead letter that held up no other message: its turn is past."""
    is_parked: bool = False
    """It is a dead letter that holds up the messages after it."""
    is_jumped: bool = False
    """A reset jumped over it: no count has it."""


@dataclass
class Duel:
    """The group, its twin and the model, with the same calls."""

    kind: Kind
    begun: int = 0
    now: int = 1000
    messages: dict[tuple[int, int], Message] = field(default_factory=dict)
    handed: list[Handed] = field(default_factory=list)
    deadlines: dict[int, int] = field(default_factory=dict)
    credits: dict[int, tuple[int, int, int, bool]] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    """Words that some message had some time."""
    builder: EventBuilder = field(default_factory=EventBuilder)
    """All events, as a segment keeps them."""
    checks: int = 0
    """How often the events were looked at: for them the index of a record."""

    def __post_init__(self) -> None:
        self.is_blocking = self.kind.is_blocking
        # Messages that were settled and go out again: counts of settled messages stay.
        self.settled_before: dict[int, Counter[str]] = {queue: Counter() for queue in QUEUES}
        self.ends = dict.fromkeys(QUEUES, self.begun)
        self.known = dict.fromkeys(QUEUES, self.begun)
        self.earliest = dict.fromkeys(QUEUES, 0)
        self.first = self.kind.group()
        self.twin = self.kind.group()
        self.token = 1 << 20
        for queue in QUEUES:
            self.tell("follow", queue, self.begun)

    def tell(self, verb: str, *arguments: Any, **named: Any) -> Any:
        """Call a method of both; they answer alike."""
        answers = [getattr(one, verb)(*arguments, **named) for one in (self.first, self.twin)]
        assert answers[0] == answers[1], (verb, answers)
        return answers[0]

    def rebuild(self) -> None:
        """The twin is made again from a snapshot, which it would have written itself; before that a
        timer wakes it for nothing."""
        if self.twin.next_timer is None or self.twin.next_timer > self.now:
            assert not woken_in_vain(self.twin, self.ends, self.now)
        state = self.first.dump(self.now)
        assert self.twin.dump(self.now) == state
        self.twin = PopGroup.load(cbor2.loads(cbor2.dumps(state)))
        assert self.twin.dump(self.now) == state

    # Steps of the duel

    def append(self, queue: int, keys: list[int], matches: list[bool]) -> None:
        word = "unknown" if self.kind.is_fed else "fresh"
        for key, match in zip(keys, matches, strict=True):
            offset = self.ends[queue]
            self.ends[queue] += 1
            each = Message(queue, offset, key, match, word, born=self.checks)
            self.messages[queue, offset] = each
        self.tell("came", queue)
        self.serve()

    def feed_elsewhere(self, queue: int, ahead: int) -> None:
        """A feed at the wrong place, by a leader that lost track, changes nothing."""
        base = self.known[queue] + ahead
        assert self.tell("feed", queue, base, 3, mask=None, keys=b"") == 0

    def feed(self, queue: int, size: int) -> None:
        base = self.known[queue]
        told = [self.messages[queue, base + n] for n in range(min(size, self.ends[queue] - base))]
        mask = sum(each.matches << n for n, each in enumerate(told))
        keys = b"".join(each.key.to_bytes(4, "little") for each in told)
        filtered = mask if self.kind.is_filtered else None
        room = max(self.bound("MAX") - self.width(queue), 0)
        fed = self.tell("feed", queue, base, len(told), mask=filtered, keys=keys)
        if not told or not self.kind.is_fed:
            assert fed == 0
            return
        assert fed == min(len(told), room)
        self.known[queue] += fed
        for each in told[:fed]:
            each.word = "fresh" if each.matches or not self.kind.is_filtered else "passed"
        self.serve()

    def ask(
        self, consumer: int, size: int, invisible: int, wait: int, *, is_kept: bool = False
    ) -> None:
        until = self.now + wait
        named = {"invisible_ms": invisible, "until": until, "is_kept": is_kept, "now": self.now}
        self.tell("ask", consumer, size, **named)
        most = min(size, groups.CREDIT_MAX)
        self.credits[consumer] = (most, until, invisible or 100, is_kept)
        self.serve()

    def leave(self, consumer: int) -> None:
        self.tell("leave", consumer)
        self.credits.pop(consumer, None)

    def settle(self, one: Handed, bits: int, verb: str) -> None:
        """Settle some of the messages of a hand-out, which may be over long ago."""
        named = span(one.messages.base, bits)
        assert named is not None
        runs = self.deadlines[one.token] > self.now
        lease = [each for each in self.all("leased") if each.token == one.token and runs]
        held = [each for each in lease if each.offset in set(named.offsets())]
        arguments = (one.consumer, one.token, named, self.now)
        if verb == "reject":
            result = self.tell("reject", *arguments, reason="poison")
        elif verb == "nack now":
            result = self.tell("nack", *arguments, delay_ms=0)
        else:
            result = self.tell(verb, *arguments)
        if not held:
            assert isinstance(result, Refused)
            assert result.reason is Reason.FENCED
            return
        which = sum(1 << each.offset - named.base for each in held)
        told = (
            len(held)
            if which == named.bits
            else which.to_bytes(-(-which.bit_length() // 8), "little")
        )
        assert result == Changed(told)
        self.settled(lease, held, verb)
        self.serve()

    def settled(self, lease: list[Message], held: list[Message], verb: str) -> None:
        if verb == "ack":
            for each in held:
                each.word = "acked"
            return
        after = []
        first: dict[int, Message] = {}
        for each in held:
            first.setdefault(self.turn(each), each)
        if self.kind.order is Order.QUEUE or self.kind.run > 1:
            after = [
                each
                for each in lease
                if (head := first.get(self.turn(each))) and head.offset < each.offset
            ]
            if verb not in ("reject", "give_back"):
                held = [each for each in held if each is first[self.turn(each)]]
        for each in held:
            if verb == "reject":
                self.bury(each)
            elif verb == "give_back":
                self.not_begun(each)
            else:
                # In runs a message does not wait for its delay, but for earlier ones in hand.
                is_late = self.kind.run > 1 and any(
                    other.offset < each.offset and other not in held
                    for other in lease
                    if other.key and other.key == each.key and other.word == "leased"
                )
                self.failed(each, 0 if verb == "nack now" or is_late else None)
        for each in after:
            if each not in held:
                self.not_begun(each)

    def turn(self, each: Message) -> int:
        """Messages with one number go out in order."""
        if self.kind.order is Order.QUEUE:
            return -1
        return each.key or -2 - each.offset

    def not_begun(self, each: Message) -> None:
        each.attempt -= 1
        # In runs a message that never failed is as if it had never gone out.
        is_fresh = self.kind.run > 1 and each.key and not each.attempt
        each.word = "fresh" if is_fresh else "ready"

    def failed(self, each: Message, delay: int | None = None) -> None:
        if each.attempt >= 3:
            self.bury(each)
            return
        delay = (10, 50)[each.attempt - 1] if delay is None else delay
        each.word = "waiting" if delay else "ready"
        each.due = self.now + delay

    def bury(self, each: Message) -> None:
        each.word = "dead"
        each.is_parked = self.is_blocking and self.kind.order is not None

    def settle_foreign(self, one: Handed, consumer: int) -> None:
        consumer = consumer if consumer != one.consumer else 99
        result = self.tell("ack", consumer, one.token, one.messages, self.now)
        assert isinstance(result, Refused)

    def extend(self, one: Handed, invisible: int) -> None:
        runs = self.deadlines[one.token] > self.now
        runs = runs and any(each.token == one.token for each in self.all("leased"))
        result = self.tell("extend", one.consumer, one.token, self.now, invisible_ms=invisible)
        assert result == Changed(self.now + invisible) if runs else isinstance(result, Refused)
        if runs:
            self.deadlines[one.token] = self.now + invisible
        self.check()

    def clock_moves(self, by: int) -> None:
        """Time passes unnoticed: expired leases are not taken back yet."""
        self.now += by

    def pass_time(self, by: int) -> None:
        self.now += by
        while self.tell("pass_time", self.now):
            assert groups.EXPIRIES_MAX < 100, "a duel is not that big"
        for token in {each.token for each in self.all("leased")}:
            if self.deadlines[token] <= self.now:
                lease = [each for each in self.all("leased") if each.token == token]
                self.settled(lease, lease, "expire")
        for each in self.all("waiting"):
            if each.due <= self.now:
                each.word = "ready"
        self.serve()

    def trim(self, queue: int, size: int) -> None:
        kept = [each.offset for each in self.messages.values() if each.queue == queue]
        gone = [each.offset for each in self.all("lost") if each.queue == queue]
        begin = max(gone, default=min(kept, default=0) - 1) + 1
        earliest = min(begin + size, self.ends[queue])
        self.tell("trim", queue, earliest)
        self.known[queue] = max(self.known[queue], earliest)
        self.earliest[queue] = max(self.earliest[queue], earliest)
        for each in self.all("unknown", "fresh", "leased", "waiting", "ready"):
            if each.queue == queue and each.offset < earliest:
                each.word = "lost"
        self.serve()

    def attend(self, verb: str, pick: int, part: int | None) -> None:
        """Redrive or purge a dead letter: all of it, or the messages whose bits are set in `part`,
        of which the lowest stands for the message before the letter's first one."""
        dead = self.first.dead
        if not dead:
            assert isinstance(self.tell(verb, 1 << 30, None), Refused)
            return
        number = sorted(dead)[pick % len(dead)]
        letter = dead[number]
        mine = [self.messages[letter.queue, offset] for offset in letter.messages.offsets()]
        assert {each.is_parked for each in mine} == {letter.is_parked}
        named = None if part is None else span(letter.messages.base - 1, part)
        meant = list(letter.messages.offsets())
        if named is not None:
            meant = sorted({*meant} & {*named.offsets()})
        here = [
            offset for offset in meant if verb == "purge" or offset >= self.earliest[letter.queue]
        ]
        result = self.tell(verb, number, named)
        if not meant:
            assert isinstance(result, Refused)
            return
        assert result == Changed(len(here))
        left = dead[number].messages.size if number in dead else 0
        assert left == letter.messages.size - len(meant)
        for offset in meant:
            each = self.messages[letter.queue, offset]
            assert each.word == "dead"
            each.attempt = 0
            each.is_late, each.is_parked = not letter.is_parked, False
            if verb == "purge":
                each.word = "purged"
            elif offset not in here:
                each.word = "lost"
            else:
                each.word = "fresh" if self.kind.order is Order.KEY else "ready"
        self.serve()

    def alter(self) -> None:
        """From now on dead letters block, or no longer do."""
        self.is_blocking = not self.is_blocking
        for one in (self.first, self.twin):
            one.policy = msgspec.structs.replace(one.policy, is_blocking=self.is_blocking)
        self.check()

    def reset(self, queue: int, offset: int) -> None:
        """A queue goes on from an offset that retention kept, forward or back."""
        offset = min(max(offset, self.begun, self.earliest[queue]), self.ends[queue])
        following = self.first.backlogs[queue].next
        self.tell("reset", {queue: offset})
        for each in [each for each in self.messages.values() if each.queue == queue]:
            is_counted = each.offset < following and not each.is_jumped
            is_settled = each.word in {"acked", "passed", "lost", "purged"}
            each.is_parked = False
            if each.offset >= offset:
                self.settled_before[queue][each.word] += is_counted and is_settled
                each.word = "unknown" if self.kind.is_fed else "fresh"
                each.is_late = each.is_jumped = False
                each.token = each.attempt = each.due = 0
            elif not is_settled and each.word != "dead":
                each.word, each.is_jumped = "skipped", True
            elif not is_counted:
                each.is_jumped = True
        self.known[queue] = offset
        self.serve()

    # Checks

    def all(self, *words: str) -> list[Message]:
        return [each for each in self.messages.values() if each.word in words]

    def serve(self) -> None:
        """Hand out, and judge it."""
        self.serve_some()
        while self.first._cut_at is not None:
            assert (self.first.next_timer or 0) <= self.now
            self.serve_some()
        if any(size > 0 and until > self.now for size, until, _, _ in self.credits.values()):
            self.nothing_is_kept_back()
        self.check()

    def serve_some(self) -> None:
        start = self.token
        pair = (self.first, self.twin)
        found = [one.hand_out(self.ends, self.now, count(start).__next__) for one in pair]
        assert found[0] == found[1]
        self.token += len(found[0])
        for one in found[0]:
            self.judge(one)
        for consumer in {one.consumer for one in found[0]}:
            size, _, _, is_kept = self.credits[consumer]
            if not is_kept or not size:
                del self.credits[consumer]

    def judge(self, one: Handed) -> None:
        size, until, invisible, is_kept = self.credits[one.consumer]
        assert one.messages.size <= size
        assert until > self.now
        assert one.deadline == self.now + invisible
        self.credits[one.consumer] = (size - one.messages.size, until, invisible, is_kept)
        lease = [self.messages[one.queue, offset] for offset in one.messages.offsets()]
        for each in lease:
            assert each.word in {"fresh", "ready"}
            assert one.messages.attempt == each.attempt + 1
        if self.kind.order is not None:
            self.judge_order(one.queue, lease)
        for each in lease:
            each.word, each.token, each.attempt = "leased", one.token, each.attempt + 1
        self.handed.append(one)
        self.deadlines[one.token] = one.deadline

    def judge_order(self, queue: int, lease: list[Message]) -> None:
        others = [each for each in self.in_the_way() if each.queue == queue and each not in lease]
        if self.kind.order is Order.QUEUE:
            assert not [each for each in others if each.word == "leased"]
            assert not [each for each in others if each.offset < lease[-1].offset]
            return
        keys = Counter(each.key for each in lease if each.key)
        assert not keys or max(keys.values()) <= self.kind.run
        # A message that failed stands in line with those that did not.
        words = ("fresh",) if self.kind.run == 1 else ("fresh", "ready")
        for each in lease:
            for other in others:
                if each.key and other.key == each.key:
                    # A parked message holds up those after it alone.
                    is_behind = self.kind.run > 1 and other.word == "dead"
                    assert other.word in words or is_behind, (each, other)
                    assert other.offset > each.offset or each.is_late or other.is_late

    def in_the_way(self) -> Iterator[Message]:
        """Messages that are not settled."""
        for each in self.messages.values():
            if each.is_parked or each.word in {"fresh", "ready", "leased", "waiting"}:
                yield each

    def nothing_is_kept_back(self) -> None:
        """A pop is waiting for messages: so none could be handed out."""
        there = self.all("fresh", "ready")
        if self.kind.order is None:
            assert not there
            return
        by_turn: dict[tuple[int, int], list[Message]] = {}
        for each in self.in_the_way():
            key = each.key if self.kind.order is Order.KEY else -1
            by_turn.setdefault((each.queue, key), []).append(each)
        for (queue, key), waiting in by_turn.items():
            if self.is_held_up(queue):
                continue
            if key == 0:
                assert all(each.word not in {"fresh", "ready"} for each in waiting)
            elif key == -1:
                is_out = any(each.word == "leased" for each in waiting)
                first = min(waiting, key=lambda each: each.offset)
                assert is_out or first.word not in {"fresh", "ready"}
            else:
                assert not all(each.word in {"fresh", "ready"} for each in waiting)
                # A parked or waiting message holds up only the messages after it.
                first = min(waiting, key=lambda each: each.offset)
                is_out = any(each.word == "leased" for each in waiting)
                # A message whose turn is past waits for the turn of others, and not for parked ones
                # after it.
                is_out |= first.is_late and any(each.word == "waiting" for each in waiting)
                is_right = is_out or first.word not in {"fresh", "ready"}
                assert self.kind.run == 1 or is_right

    def is_held_up(self, queue: int) -> bool:
        """Held messages fill the window: nothing fresh is looked at."""
        found = self.first.backlogs[queue]
        return isinstance(found, KeyedBacklog) and found._chained >= keyed.HELD_MAX

    def check(self) -> None:
        """Compare counts, timers and known messages."""
        self.trace()
        audit = self.tell("audit")
        totals: Counter[str] = Counter()
        for queue in QUEUES:
            following = self.first.backlogs[queue].next
            mine = [each for each in self.messages.values() if each.queue == queue]
            words = Counter(
                "held" if each.word == "fresh" or self.stands_in_line(each) else each.word
                for each in mine
                if each.offset < following and not each.is_jumped
            )
            words += self.settled_before[queue]
            assert not words["unknown"]
            self.seen.update(each.word for each in mine)
            found = self.tell("counts", queue)._asdict()
            assert {word: size for word, size in found.items() if size} == dict(words)
            totals.update(words)
            assert self.tell("known", queue) == (
                self.known[queue] if self.kind.is_fed else following
            )
        assert {word: size for word, size in audit.items() if size} == dict(totals)
        timers = [self.deadlines[each.token] for each in self.all("leased")]
        timers += [each.due for each in self.all("waiting")]
        assert self.first.next_timer == self.twin.next_timer == min(timers, default=None)
        wants = []
        if self.kind.is_fed:
            wants = [(queue, self.known[queue]) for queue in QUEUES if self.is_underfed(queue)]
        assert self.tell("wants_feed", self.ends) == wants

    def stands_in_line(self, each: Message) -> bool:
        """Whether a message that failed waits for earlier ones of its key."""
        found = self.first.backlogs[each.queue]
        return isinstance(found, KeyedBacklog) and each.offset in found._tried

    def trace(self) -> None:
        """Events say in which state each message is."""
        told, twins = self.first.events, self.twin.events
        assert told == twins
        self.first.events, self.twin.events = [], []
        self.checks += 1
        self.builder.add(self.checks, 7, told)
        for kind, queue, base, bits, attempt, consumer, token, detail in told:
            meant: Iterable[int]
            if bits == BEFORE:
                meant = range(self.begun, base)
            elif bits == FROM:
                meant = range(base, self.ends[queue])
            else:
                meant = [base + n for n in range(bits.bit_length()) if bits >> n & 1]
            for each in [self.messages[queue, offset] for offset in meant]:
                each.traced = follow(each.traced, kind, detail=detail, at=self.now)
                row = EventRow(self.checks, 7, kind, attempt, consumer, token, detail)
                each.events.append(row)
        for each in self.messages.values():
            word = "fresh" if each.word == "unknown" else each.word
            # A dead letter that was redriven goes through its key's chain again.
            is_again = word == "fresh" and self.kind.order is Order.KEY and each.traced == "ready"
            assert each.traced == word or is_again, each

    def find_events(self) -> None:
        """The rows of a segment give each message the events that the group reported."""
        section = memoryview(self.builder.section())
        for (queue, offset), each in self.messages.items():
            after = max(each.born, offset % 2 * self.checks // 2)
            found = list(find(rows_of(section, queue), queue=queue, offset=offset, after=after))
            later = [row for row in each.events if row.index > after]
            assert found == later, each
            if offset % 16 == 0:
                unsealed = self.builder.snapshot()
                parts = [find(one, queue=queue, offset=offset, after=after) for one in unsealed]
                assert [row for part in parts for row in part] == found

    def is_underfed(self, queue: int) -> bool:
        return self.known[queue] < self.ends[queue] and self.width(queue) < self.bound("MIN")

    def width(self, queue: int) -> int:
        """Number of messages that are known and were not looked at."""
        return self.known[queue] - self.first.backlogs[queue].next

    def bound(self, which: str) -> int:
        """Most messages known of a queue, and the number that is enough."""
        is_crowded = sum(map(self.width, QUEUES)) >= windows.FED_MAX
        bound: int = getattr(windows, f"{'CROWDED' if is_crowded else 'WINDOW'}_{which}")
        return bound
