"""The ledger of consumer groups that pop, from the committed log: every hand-out, every result.

    ledger = PopLog()
    for record in records:                       # from the first one on
        results = machine.apply(record)
        ledger.follow(record, results, machine.pop_groups.take_handed(), machine)
    print(ledger.breaches)

Each record is read a second time, by `model`, and compared with what the machine made of it.

| number | at each index |
|---|---|
| Q8 | each message is in one state; the machine counts as many in each as there are |
| Q9, Q10 | what is handed out is neither acked nor in a hand |
| Q12 | its attempt is one more than the last one |
| Q14 | settling gives what the model says; a repeat gives the first results |
| Q16 | what waits is not handed out; what could be handed out is, if a consumer wants it |
| Q18 | a batch that a producer sends twice has one place |
| Q19 | order by key and by queue |
| Q20 to Q22 | delayed messages and transactions: see `withheld` |
| Q23 | what goes out matches, by feeds under the filter that holds: see `told` |
| Q24 | committed offsets are what commits, claims and deletions give: see `committed` |

`PopLog.why_strange` asks whether what a client saw is in the log at all.

Invariants:
- Breaches are found at the record that makes them; after a breach its group is not judged further.

Left out: whether the leader told groups the truth about filters and keys; consumers that are
forgotten because there are too many of them.

Sources: the invariants Q8 to Q19 of this project; TigerBeetle's state checker.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from raftmq.batch import Batch, peek
from raftmq.chaos.ledger.committed import CommittedModel
from raftmq.chaos.ledger.model import CreditModel, PopModel, PopQueue
from raftmq.chaos.ledger.told import ToldModel
from raftmq.chaos.ledger.withheld import Fact, Input, WithheldModel
from raftmq.checkers.pop.calls import Delivery as Seen
from raftmq.log.record import Kind, Record
from raftmq.machine.commands import decode_commands
from raftmq.machine.delays import Cancel, Carry
from raftmq.machine.machine import Command, DropQueues, PartitionMachine
from raftmq.machine.offsets import CommitOffsets, ForgetOffsets
from raftmq.machine.pop_groups import NACK_MS_MAX, Delivery
from raftmq.machine.producers import RESERVED
from raftmq.machine.queue_numbers import QUEUE_BITS
from raftmq.machine.settlements import IDLE_MS_MAX
from raftmq.machine.subscriptions import Resubscribe
from raftmq.machine.transactions import Begin, End
from raftmq.pop.actions import OVER_LIMIT, Action
from raftmq.pop.calls import (
    Ask,
    ChangeDead,
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
from raftmq.pop.groups import CREDIT_MAX, PopGroup
from raftmq.pop.leases import SLOT_BITS
from raftmq.pop.policy import INVISIBLE_MS_MAX
from raftmq.pop.spans import span
from raftmq.results import Appended, Changed, Refused, Result

_WORDS = {
    Action.ACK: "ack",
    Action.NACK: "nack",
    Action.REJECT: "reject",
    Action.GIVE_BACK: "give_back",
}


class PopBreach(NamedTuple):
    """One place where the machine did what it must not."""

    number: str
    """Number of the invariant."""
    index: int  # type: ignore[assignment]  # hides tuple.index
    """Index of the record."""
    fact: str

    def __str__(self) -> str:
        return f"index {self.index}: {self.fact}"


class PopLog:
    """A data group's log, read along."""

    def __init__(self) -> None:
        self.breaches: list[PopBreach] = []
        """In the order of the log."""
        self.groups: dict[int, PopModel] = {}
        """By number of the attachment."""
        self.handed: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
        """(number, token) → (queue, offset, attempt) of each message handed out with it."""
        self.withheld = WithheldModel()
        """Delayed messages, and those of transactions."""
        self.told = ToldModel()
        """The matches that feeds named to groups with a filter."""
        self.committed = CommittedModel()
        """Committed offsets of groups that read by offset."""
        self.records = 0
        """Records that were followed."""
        self._topics: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self._earliest: dict[int, int] = {}
        self._batches: dict[int, list[tuple[int, int, bytes]]] = {}
        self._keys: dict[int, dict[int, str | None]] = {}
        self._sent: dict[tuple[int, int, int, int], int] = {}
        self._broken: set[int] = set()
        self._is_withheld_broken = False
        # The number of a consumer's last settlement, its results, and since when.
        self._sessions: dict[tuple[int, int, bool], tuple[int, list[int | bytes], int]] = {}
        # Requests of administration that were carried out.
        self._done: set[int] = set()
        # Groups whose dead letters were redriven or purged by the record.
        self._attended: set[int] = set()
        # (group, queue) → the first offset that the machine had not looked at so far.
        self._next: dict[tuple[int, int], int] = {}
        self._index = 0
        self._token = 0

    def follow(
        self,
        record: Record,
        results: Sequence[Result],
        handed: Sequence[Delivery],
        machine: PartitionMachine,
    ) -> None:
        """Follow one more record, with the machine's results and hand-outs, and the machine."""
        self._index, now = record.index, record.timestamp
        self.records += 1
        for group in self.groups.values():
            group.pass_time(now)
        self.withheld.pass_time(now, self._held_until)
        self.committed.pass_time(now)
        momentary: list[tuple[int, int]] = []
        if record.kind == Kind.BATCH:
            for result in results:
                payload = bytes(record.payload)
                self._note_withheld(self.withheld.follow_batch(payload, record.index, result))
                if isinstance(result, Appended) and not result.duplicate:
                    self._append(result, payload)
        elif record.kind == Kind.COMMANDS:
            commands = decode_commands(bytes(record.payload), list[Command])
            if not isinstance(commands, Refused):
                for command, result in zip(commands, results, strict=True):
                    momentary += self._run(command, result, now)
        self._hand_out(handed, now)
        # The credit of a request that does not wait ends with its record, met or not.
        for number, consumer in momentary:
            self.groups[number].credits.pop(consumer, None)
        self._compare(machine)

    # The record

    def _append(self, result: Appended, payload: bytes) -> None:
        queue, base, count = result.queue, result.base_offset, result.count
        self._ends[queue] = base + count
        self._batches.setdefault(queue, []).append((base, count, payload))
        self._note_sent(queue, base, payload)
        for number, group in self.groups.items():
            if self._topics[number] == queue >> QUEUE_BITS:
                of_queue = group.queues.get(queue)
                if of_queue is None:
                    of_queue = group.queues[queue] = self._queue(queue, 0, 0)
                of_queue.end = base + count

    def _note_sent(self, queue: int, base: int, payload: bytes) -> None:
        head = peek(payload)
        if head.producer >= RESERVED:
            return
        for place in range(head.count):
            name = queue, head.producer, head.epoch, head.first_sequence + place
            before = self._sent.setdefault(name, base + place)
            if before != base + place:
                fact = f"message {name} stands at offset {before} and at {base + place}"
                self._breach("Q18", 0, fact)

    def _queue(self, queue: int, begun: int, end: int) -> PopQueue:
        return PopQueue(begun, end, partial(self._key, queue))

    def _key(self, queue: int, offset: int) -> str | None:
        """A message's ordering key, out of its batch."""
        known = self._keys.setdefault(queue, {})
        if offset not in known:
            for base, count, payload in self._batches[queue]:
                if base <= offset < base + count:
                    keys = Batch.decode(payload).keys
                    known |= dict(zip(range(base, base + count), keys, strict=True))
        return known[offset]

    def _run(self, command: Command, result: Result, now: int) -> list[tuple[int, int]]:
        """Carry out a command; returns each (group, consumer) whose credit ends with the record."""
        match command:
            case OpenGroup():
                self._open(command)
            case CloseGroups(numbers=numbers):
                for number in numbers:
                    self._close(number)
            case Ask() if isinstance(result, Changed):
                return self._ask(command, now)
            case Settle():
                self._settle(command, result, now)
            case Leave(number=number, consumer=consumer):
                if number in self.groups:
                    self.groups[number].credits.pop(consumer, None)
            case Feed() if isinstance(result, Changed):
                self._feed(command, result.value)
            case Resubscribe():
                self._resubscribe(command)
            case CommitOffsets():
                facts = self.committed.follow_commit(command, result, self._ends, now)
                self._note_committed(facts)
            case ForgetOffsets():
                self._note_committed(self.committed.follow_forget(command, result, now))
            case Lose():
                self._lose(command)
            case ChangeDead() | ResetGroup():
                self._administer(command, result)
            case DropQueues(queues=queues):
                self._drop(set(queues))
                self.withheld.drop_queues(set(queues))
                self.committed.drop_queues(set(queues))
            case Cancel():
                self._note_withheld(self.withheld.follow_cancel(command, result))
            case Carry():
                self._note_withheld(self.withheld.follow_carry(command, result))
            case Begin():
                self._note_withheld(self.withheld.follow_begin(command, result, self._held_until))
            case End():
                self._end(command, result, now)
            case Ask() | Feed() | Tick() | _:
                pass
        return []

    def _resubscribe(self, command: Resubscribe) -> None:
        """When a group's first filter comes, or its filter goes, earlier feeds are void for all
        messages that the machine had not looked at."""
        for number in self.told.resubscribe(command):
            for queue, of_queue in self.groups[number].queues.items():
                of_queue.forget_passed(self._next.get((number, queue), of_queue.begun))

    def _note_committed(self, facts: Iterable[str]) -> None:
        for fact in facts:
            self._breach("Q24", 0, fact)

    # Delayed messages and transactions

    def _note_withheld(self, facts: Iterable[Fact]) -> None:
        """Note the first breach that `withheld` finds; later ones may only follow from it."""
        if self._is_withheld_broken:
            return
        for number, fact in facts:
            self._is_withheld_broken = True
            self._breach(number, 0, fact)
            return

    def _held_until(self, held: Input) -> int | None:
        group = self.groups.get(held.number)
        return None if group is None else group.held_until(held.consumer, held.token, held.offsets)

    def _end(self, command: End, result: Result, now: int) -> None:
        """Follow the end of a transaction; the commit of a hand-off acks its inputs."""
        found = self.withheld.follow_end(command, result, self._index, self._held_until)
        facts = []
        for each in found:
            if isinstance(each, Input):
                group = self.groups[each.number]
                group.settle(each.consumer, each.token, list(each.offsets), now, "ack", -1)
            else:
                facts.append(each)
        self._note_withheld(facts)

    def _open(self, command: OpenGroup) -> None:
        self.told.open(command.number, command.topic, command.consumer_group)
        group = self.groups.get(command.number)
        if group is not None:
            if command.version > group.version:
                group.version, group.policy = command.version, command.policy
            return
        group = PopModel(command.mode, command.policy, command.version)
        self.groups[command.number], self._topics[command.number] = group, command.topic
        starts = dict(zip(command.queues, command.starts, strict=False))
        for queue, end in self._ends.items():
            if queue >> QUEUE_BITS == command.topic:
                # No group can begin with messages that retention took.
                start = max(starts.get(queue, 0), self._earliest.get(queue, 0))
                begun = end if starts.get(queue, 0) < 0 else min(start, end)
                group.queues[queue] = self._queue(queue, begun, end)

    def _close(self, number: int) -> None:
        self.groups.pop(number, None)
        self.told.close(number)
        self._topics.pop(number, None)
        self._broken.discard(number)
        self._sessions = {key: one for key, one in self._sessions.items() if key[0] != number}

    def _drop(self, queues: set[int]) -> None:
        topics = {queue >> QUEUE_BITS for queue in queues}
        for number in [n for n, topic in self._topics.items() if topic in topics]:
            self._close(number)
        for queue in queues:
            self._ends.pop(queue, None)
            self._earliest.pop(queue, None)
            self._batches.pop(queue, None)
            self._keys.pop(queue, None)
        self._sent = {name: at for name, at in self._sent.items() if name[0] not in queues}

    def _ask(self, command: Ask, now: int) -> list[tuple[int, int]]:
        group = self.groups[command.number]
        if command.count:
            invisible_ms = command.invisible_ms or group.policy.invisible_ms
            size, until = min(command.count, CREDIT_MAX), now + max(command.wait_ms, 1)
            group.credits[command.consumer] = CreditModel(
                size, invisible_ms, until, command.is_kept
            )
        if command.count and command.wait_ms:
            return []
        return [(command.number, command.consumer)]

    def _settle(self, command: Settle, result: Result, now: int) -> None:
        group = self.groups.get(command.number)
        if group is None:
            return
        key = command.number, command.consumer, command.by_handle
        sequence, results, since = self._sessions.pop(key, (0, [], now))
        if command.sequence > sequence:
            results = [_step(group, command.consumer, step, now) for step in command.steps]
            since = now
        self._sessions[key] = max(command.sequence, sequence), results, since
        self._forget_sessions(now)
        if command.sequence >= sequence and result != Changed(results):
            fact = f"group {command.number}: {command} gave {result} and should give {results}"
            self._breach("Q14", command.number, fact)
        if command.sequence < sequence and isinstance(result, Changed):
            fact = f"group {command.number}: {command} was carried out after number {sequence}"
            self._breach("Q14", command.number, fact)

    def _forget_sessions(self, now: int) -> None:
        """Forget consumers that settled nothing new for too long, in the order of their calls."""
        for key, (_, _, since) in list(self._sessions.items()):
            if since >= now - IDLE_MS_MAX:
                return
            del self._sessions[key]

    def _feed(self, command: Feed, count: int) -> None:
        for fact in self.told.feed(command, count):
            self._breach("Q23", command.number, f"group {command.number}: {fact}")
        group, mask = self.groups[command.number], command.mask
        bits = -1 if mask is None else int.from_bytes(mask, "little")
        for place in range(count):
            offset = command.base + place
            if not bits >> place & 1:
                group.tell(group.queues[command.queue], offset)

    def _lose(self, command: Lose) -> None:
        for queue, earliest in zip(command.queues, command.earliest, strict=False):
            if self._earliest.get(queue, 0) < earliest <= self._ends.get(queue, 0):
                self._earliest[queue] = earliest
                for group in self.groups.values():
                    if queue in group.queues:
                        group.lose(group.queues[queue], earliest)

    def _administer(self, command: ChangeDead | ResetGroup, result: Result) -> None:
        if command.request in self._done:
            return
        if command.request and isinstance(result, Changed):
            self._done.add(command.request)
        if isinstance(command, ChangeDead):
            self._change_dead(command)
        else:
            self._reset(command)

    def _change_dead(self, command: ChangeDead) -> None:
        group = self.groups.get(command.number)
        letters, bases, bits = command.letters, command.bases, command.bits
        are_whole = not bases and not bits
        if group is None or not (are_whole or len(letters) == len(bases) == len(bits)):
            return
        for of_queue in group.queues.values():
            dead = [(at, entry) for at, entry in of_queue.entries.items() if entry.word == "dead"]
            for at, entry in dead:
                places = [n for n, letter in enumerate(letters) if letter == entry.letter]
                if (are_whole and places) or any(_names(bases[n], bits[n], at) for n in places):
                    group.change_dead(of_queue, at, is_purge=command.is_purge)
        self._attended.add(command.number)

    def _reset(self, command: ResetGroup) -> None:
        group = self.groups.get(command.number)
        for queue, offset in zip(command.queues, command.offsets, strict=False):
            if group is not None and queue in group.queues:
                end, earliest = self._ends[queue], self._earliest.get(queue, 0)
                at = end if offset < 0 else min(max(offset, earliest), end)
                group.reset(group.queues[queue], at)

    # The machine's hand-outs and state

    def _hand_out(self, handed: Sequence[Delivery], now: int) -> None:
        given: dict[tuple[int, int], int] = {}
        for number, one in handed:
            if number in self._broken:
                continue
            for fact in self._why_not(number, one.token, one.consumer, given, one.messages.size):
                self._breach(fact[:3].strip(), number, f"group {number}: {fact}")
            group = self.groups.get(number)
            if group is None or number in self._broken:
                continue
            queue, offsets = group.queues[one.queue], list(one.messages.offsets())
            fresh = [offset for offset in offsets if offset not in queue.entries]
            for fact in self.told.why_not(number, one.queue, fresh):
                self._breach("Q23", number, f"group {number}: {one}: {fact}")
            for fact in group.why_not(queue, offsets):
                self._breach(fact[:3].strip(), number, f"group {number}: {one}: {fact}")
            until = now + min(group.credits[one.consumer].invisible_ms, INVISIBLE_MS_MAX)
            for offset in offsets:
                queue.lease(offset, token=one.token, consumer=one.consumer, until=until)
            attempts = {queue.entries[offset].attempt for offset in offsets}
            if attempts != {one.messages.attempt}:
                fact = f"Q12 group {number}: {one} should have the attempt {attempts}"
                self._breach("Q12", number, fact)
            if one.deadline != until:
                self._breach("Q10", number, f"Q10 group {number}: {one} should end at {until}")
            self.handed[number, one.token] = [
                (one.queue, offset, one.messages.attempt) for offset in offsets
            ]
        for (number, consumer), size in given.items():
            given_to = self.groups[number].credits if number in self.groups else {}
            credit = given_to.pop(consumer, None)
            if credit is not None and credit.is_kept and size < credit.size:
                given_to[consumer] = credit._replace(size=credit.size - size)

    def _why_not(
        self, number: int, token: int, consumer: int, given: dict[tuple[int, int], int], size: int
    ) -> Iterator[str]:
        """Why this hand-out must not be, whatever messages it holds."""
        if token >> SLOT_BITS != self._index or token <= self._token:
            yield f"Q14 token {token} after {self._token} is not new"
        self._token = max(self._token, token)
        group = self.groups.get(number)
        credit = None if group is None else group.credits.get(consumer)
        given[number, consumer] = given.get((number, consumer), 0) + size
        if credit is None:
            yield f"Q8 consumer {consumer} is handed {size} messages and had not asked"
        elif given[number, consumer] > credit.size:
            yield f"Q8 consumer {consumer} is handed {given[number, consumer]} of {credit}"

    def _compare(self, machine: PartitionMachine) -> None:
        opened = {number: one.count for number, one in machine.transactions.open.items()}
        self._note_withheld(self.withheld.compare(machine.delays.count, opened))
        self._note_committed(self.committed.compare(machine.offsets))
        if set(machine.pop_groups.attached) != set(self.groups):
            attached, known = sorted(machine.pop_groups.attached), sorted(self.groups)
            self._breach("Q8", 0, f"the machine serves {attached}, and should serve {known}")
            return
        for number, group in self.groups.items():
            if number in self._broken:
                continue
            real = machine.pop_groups.attached[number].group
            # For a group that is fed, the machine may not know yet which messages may go out.
            if not real.is_fed and group.hungry():
                fact = f"group {number}: {group.credits} stand, and there are messages"
                self._breach("Q16", number, fact)
            self._take_letters(group, real)
            if number in self._attended:
                self._compare_letters(number, group, real)
            for queue, of_queue in group.queues.items():
                self._compare_queue(number, queue, of_queue, real)
        self._attended.clear()

    def _compare_queue(self, number: int, queue: int, model: PopQueue, real: PopGroup) -> None:
        counts = real.counts(queue)
        if model.was_reset:
            # Only the machine knows how many messages it had looked at and passed over.
            model.counts["passed"], model.was_reset = counts.passed, False
        found, counted = counts._asdict(), dict(model.counts)
        wrong = [
            f"{word} {found[word]} instead of {counted.get(word, 0)}"
            for word in ("leased", "waiting", "dead", "acked", "lost", "purged")
            if found[word] != counted.get(word, 0)
        ]
        following = self._next[number, queue] = real.backlogs[queue].next
        left = model.end - following + counts.ready + counts.held + counts.passed
        if left != model.fresh + counted.get("ready", 0) + counted.get("passed", 0):
            wrong.append(f"{left} to be handed out instead of {model.fresh} + {counted}")
        if wrong:
            self._breach("Q8", number, f"group {number}, queue {queue}: {'; '.join(wrong)}")

    def _take_letters(self, group: PopModel, real: PopGroup) -> None:
        """Dead letters get their numbers from the machine; each dead message is in one."""
        if real.buried == group.letters:
            return
        for letter in range(group.letters + 1, real.buried + 1):
            dead = real.dead.get(letter)
            for offset in dead.messages.offsets() if dead is not None else ():
                assert dead is not None
                entry = group.queues[dead.queue].entries.get(offset)
                if entry is not None:
                    entry.letter = letter
        group.letters = real.buried

    def _compare_letters(self, number: int, group: PopModel, real: PopGroup) -> None:
        """Each letter lacks the messages that left it, and no others."""
        letters = {
            (letter, dead.queue, offset)
            for letter, dead in real.dead.items()
            for offset in dead.messages.offsets()
        }
        expected = {
            (entry.letter, queue, offset)
            for queue, of_queue in group.queues.items()
            for offset, entry in of_queue.entries.items()
            if entry.word == "dead"
        }
        if letters != expected:
            wrong = sorted(letters ^ expected)[:3]
            fact = f"group {number}: (letter, queue, offset) {wrong} is dead, or should be"
            self._breach("Q13", number, fact)

    def _breach(self, number: str, group: int, fact: str) -> None:
        self.breaches.append(PopBreach(number, self._index, fact))
        if group:
            self._broken.add(group)

    def note(self, number: str, fact: str) -> None:
        """Note a breach that the caller saw, at the record that was followed last."""
        self._breach(number, 0, fact)

    # Clients

    def why_strange(self, number: int, queue: int, seen: Seen) -> str:
        """Why a client cannot have seen this, if the log is right; empty: it can."""
        handed = self.handed.get((number, seen.token))
        if handed is None:
            return f"{seen} is in no record of the log"
        if (queue, seen.offset, seen.attempt) not in handed:
            return f"{seen}: offset {seen.offset} of queue {queue} is not what its record hands out"
        return ""


def _step(group: PopModel, consumer: int, step: Step, now: int) -> int | bytes:
    if step.action == Action.EXTEND:
        if not 0 < step.delay_ms <= INVISIBLE_MS_MAX:
            return OVER_LIMIT
        return group.extend(consumer, step.token, now, step.delay_ms)
    messages = span(step.base, int.from_bytes(step.bits, "little"))
    if messages is None or step.delay_ms > NACK_MS_MAX or step.action not in _WORDS:
        return OVER_LIMIT
    word = _WORDS[Action(step.action)]
    offsets = list(messages.offsets())
    return group.settle(consumer, step.token, offsets, now, word, step.delay_ms)


def _names(base: int, bits: bytes, offset: int) -> bool:
    """Whether a command names a message."""
    return offset >= base and bool(int.from_bytes(bits, "little") >> offset - base & 1)
