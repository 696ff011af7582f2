"""Consumers that pop: they ack, fail, reject, give back, extend, and forget what they were handed.

| group | is | consumers |
|---|---|---|
| a | popping, all that comes | 3 |
| o | ordered by key, one message of a key in hand; with even seeds | 2 |
| r | ordered by key, any number of a key's messages in a lease; with odd seeds | 2 |
| q | ordered by queue | 2 |
| f | popping, what has the tag `red` | 2 |

Waits and leases are short, so that messages come again and become dead letters while faults last.
Some pops ask for shorter or longer leases than those before: no lease in hand gets shorter.
Some calls are cancelled in the middle; the consumer repeats the call, makes a different one, or is
left for another one. When all is sent, `is_draining` makes every consumer ack all messages, and an
*auditor* asks for the remaining work until none is left: that list ends the history.

A message with a key has the value (number, key) in the history, others a number: see
`raftmq.checkers.pop.calls`.

Invariants:
- A call in doubt after an error is `unknown`: some of its messages may be settled.

Sources: Jepsen's queue workloads; RocketMQ's POP issues, for what consumers do wrong.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any, Literal, NamedTuple, Protocol

import trio

from raftmq.chaos.workloads.audit import find_left, offset_of
from raftmq.chaos.workloads.cancelling import Cancelled, Impatience
from raftmq.chaos.workloads.streams import stream
from raftmq.checkers import PopRules, Report, check_pop
from raftmq.checkers.history import History, Recorder, Value
from raftmq.checkers.pop.calls import (
    BACKLOG,
    DEAD,
    FENCED,
    Got,
    Named,
    begin_pop,
    begin_settling,
    end_pop,
    end_settling,
)
from raftmq.checkers.pop.messages import Ordering
from raftmq.client import Client, DeadLetter, Settlement
from raftmq.client.pop.consumer import PopConsumer
from raftmq.client.pop.popped import PoppedMessage, PoppedMessages
from raftmq.errors import OutcomeUnknown, RaftmqError, Reason, Rejected, Unavailable

RED = "red"
"""The tag of every other message."""


class Kind(NamedTuple):
    """Settings of a consumer group."""

    consumers: int
    """Number of consumers."""
    order: Ordering = ""
    """The unit within which messages stay in order; empty: no order."""
    tags: str | None = None
    """Tag of the messages that the group takes; None: all messages."""

    @property
    def mode(self) -> Literal["pop", "ordered"]:
        """Mode of the group."""
        return "ordered" if self.order else "pop"


KINDS: Mapping[str, Kind] = {
    "a": Kind(3),
    "o": Kind(2, order="key"),
    "r": Kind(2, order="runs"),
    "q": Kind(2, order="queue"),
    "f": Kind(2, tags=RED),
}
"""By consumer group."""
FEW = ("a", "o", "r", "f")
"""Groups that suffice where time is short."""
REDRIVEN = "a"
"""The group whose dead letters an operator looks through."""
SCHEDULE_SECONDS = (0.3, 1.0)
ATTEMPTS_MAX = 3
INVISIBLE_SECONDS = (1.0, 2.0, 4.0)
"""Durations of leases: until then a message belongs to one consumer."""
OTHER_TIME_SHARE = 0.3
"""Share of the pops that ask for a time of their own, which later pops keep."""
HELD_SHARE = 0.15
"""Share of the batches that stay in hand while the consumer pops for the shortest time."""
BEYOND: Sequence[Mapping[str, float]] = (
    {"invisible": 0.001},
    {"invisible": 0.9},
    {"invisible": 13 * 3600.0},
    {"renew": 0.0},
    {"prefetch": -1},
    {"prefetch_bytes": 0},
)
"""Options of a consumer beyond their bounds: a lease of a millisecond is over before a message
comes, and messages would become dead letters that no application has seen."""
BEYOND_SHARE = 0.2
"""Share of the opened consumers before which the client asks for one of these."""
LEFT_SHARE = 0.2
"""Share of the consumers that are left after a cancelled call."""
SETTLE_SECONDS = 2.0
"""Timeout of settling."""
OPERATE_SECONDS = 4.0
"""Between two looks of an operator, on average."""
LOOK_SECONDS = 0.5
"""Between two looks of the auditor."""


def groups_of(seed: int, among: Sequence[str] = tuple(KINDS)) -> tuple[str, ...]:
    """The consumer groups of a run: one of the two that keep the order of keys."""
    return tuple(group for group in among if group != ("r", "o")[seed % 2])


class Habits(Protocol):
    """Effects of faults on consumers."""

    slowness: float
    """Extra seconds that a consumer needs for each batch."""
    repeats: int
    """Batches to be acked twice."""
    late_acks: int
    """Forgotten batches to be acked late."""


class Popping:
    """State that all clients of a run share."""

    def __init__(
        self,
        recorder: Recorder,
        habits: Habits,
        *,
        topic: str,
        number_of: Callable[[bytes], int],
        queue_name: Callable[[int], str],
        counts: Counter[str],
        groups: Sequence[str],
        now_ms: Callable[[], int] | None = None,
    ) -> None:
        self.recorder = recorder
        self.habits = habits
        self.topic = topic
        self.number_of = number_of
        """The number in a message's body."""
        self.queue_name = queue_name
        """Name of a queue in the history."""
        self.counts = counts
        """Delivered, settled, refused and so on."""
        self.groups = groups
        """The consumer groups of this run, a part of `KINDS`."""
        self.now_ms = now_ms
        """The clients' wall clock; None: how late answers come is not measured."""
        self.late_ms = 0
        """The longest time from making an answer to its arrival; right while clocks are right."""
        self.is_draining = False
        """True: everything is acked."""
        self.drained: set[str] = set()
        """Groups that have nothing left to do."""

    @property
    def is_drained(self) -> bool:
        """True if nothing is left to do."""
        return len(self.drained) == len(self.groups)

    async def prepare(self, mq: Client) -> None:
        """Create the groups."""
        for group in self.groups:
            kind = KINDS[group]
            await mq.admin.create_consumer_group(
                group,
                kind.mode,
                schedule=SCHEDULE_SECONDS,
                attempts_max=ATTEMPTS_MAX,
                order="queue" if kind.order == "queue" else "key",
                run=1 if kind.order == "key" else None,
            )
            if kind.tags:
                await mq.admin.subscribe(self.topic, group, kind.tags)

    async def consume(self, mq: Client, process: int, random: Random, group: str) -> None:
        """Be one consumer, until nothing is left; a cancelled one leaves calls without an end.

        Args:
            mq: its connection.
            process: its number in the history, never used before.
            random: for all that it chooses.
            group: the consumer group.

        Raises:
            Unavailable, OutcomeUnknown: no node could be reached.
        """
        mode = KINDS[group].mode
        impatience = Impatience(Random(random.getrandbits(64)), self.counts)
        while group not in self.drained:
            if random.random() < BEYOND_SHARE:
                await self._go_beyond(mq, group, random)
            prefetch = random.choice([0, 5, None])
            invisible = random.choice(INVISIBLE_SECONDS)
            async with mq.consumer(
                self.topic, group=group, mode=mode, prefetch=prefetch, invisible=invisible
            ) as consumer:
                await _Consuming(self, group, consumer, process, random, impatience).run()

    async def _go_beyond(self, mq: Client, group: str, random: Random) -> None:
        """Open a consumer with an option out of bounds: the refusal must change nothing."""
        options: Mapping[str, Any] = random.choice(BEYOND)
        try:
            async with mq.consumer(self.topic, group=group, mode=KINDS[group].mode, **options):
                raise AssertionError(f"a consumer was opened with {dict(options)}")
        except Rejected as error:
            if error.reason is not Reason.BAD_ARGUMENT:
                raise
            self.counts["options refused"] += 1

    async def audit(self, mq: Client, process: int) -> None:
        """Ask for the remaining work until none is left, and write down the last answer.

        Raises:
            Unavailable, OutcomeUnknown: no node could be reached.
        """
        while True:
            left = await find_left(mq, self.topic)
            if all(one.is_empty for one in left.values()) and set(left) == set(self.groups):
                break
            await trio.sleep(LOOK_SECONDS)
        for group in sorted(self.groups):
            dead = self.recorder.invoke(process, DEAD, group)
            backlog = self.recorder.invoke(process, BACKLOG, group)
            one = (await find_left(mq, self.topic))[group]
            letters = [
                (f"{group} {self.queue_name(queue)}", (letter, attempt, reason), offset)
                for queue, offset, letter, attempt, reason in one.dead
            ]
            self.recorder.ok_many(dead, letters)
            books = [(f"{group} {self.queue_name(q)}", of, None) for q, of in one.books.items()]
            self.recorder.ok_many(backlog, books)
            self.counts["dead"] += len(one.dead)
            self.drained.add(group)

    async def operate(self, mq: Client, process: int, random: Random) -> None:
        """Look through dead letters from time to time: redrive some, purge a few.

        Raises:
            Unavailable, OutcomeUnknown: no node could be reached.
        """
        while not self.is_draining:
            await trio.sleep(random.expovariate(1 / OPERATE_SECONDS))
            letters = await mq.admin.dead_letters(self.topic, REDRIVEN)
            some = [_part(letter, random) for letter in letters if random.random() < 0.3]
            if not some or self.is_draining:
                continue
            function = random.choices(["redrive", "purge"], [3, 1])[0]
            named: list[tuple[str | None, Value]] = [
                (f"{REDRIVEN} {self.queue_name(letter.queue)}", (letter.letter, offset))
                for letter in some
                for offset in map(offset_of, letter.ids)
            ]
            operation = self.recorder.invoke_many(process, function, named)
            try:
                if function == "redrive":
                    await mq.admin.redrive(some)
                else:
                    await mq.admin.purge(some)
            except (Unavailable, OutcomeUnknown):
                self.recorder.unknown(operation)
            else:
                self.counts[f"{function} done"] += len(named)
                self.recorder.ok(operation)


def _part(letter: DeadLetter, random: Random) -> DeadLetter:
    """A part of a letter: of several messages at least one, or the only one."""
    if len(letter.ids) == 1:
        return letter
    return letter.part(random.sample(letter.ids, random.randint(1, len(letter.ids))))


class _Consuming:
    """One process of a consumer group."""

    def __init__(
        self,
        shared: Popping,
        group: str,
        consumer: PopConsumer,
        process: int,
        random: Random,
        impatience: Impatience,
    ) -> None:
        self._shared = shared
        self._recorder = shared.recorder
        self._counts = shared.counts
        self._group = group
        self._consumer = consumer
        self._process = process
        self._random = random
        self._impatience = impatience
        # The times that pops ask for are drawn apart.
        self._times = stream(random, "invisible")
        # True: it was cancelled, and another consumer takes its place.
        self._is_left = False
        # A batch that was not settled when it should have been.
        self._kept: PoppedMessages | None = None

    async def run(self) -> None:
        """Pop and settle until nothing is left, or this consumer is left for another one."""
        while self._group not in self._shared.drained and not self._is_left:
            self._impatience.is_over = self._shared.is_draining
            messages = await self._pop()
            if messages is None:
                continue
            if self._shared.habits.slowness:
                await trio.sleep(self._shared.habits.slowness)
            if self._shared.is_draining:
                await self._ack_all(messages)
            elif self._times.random() < HELD_SHARE:
                await self._hold(messages)
            else:
                await self._work(messages)

    async def _hold(self, messages: PoppedMessages) -> None:
        """Keep a batch in hand while others come for a shorter time, and settle it then."""
        others = await self._pop(INVISIBLE_SECONDS[0])
        if others is not None:
            await self._ack_all(others)
        await trio.sleep(self._times.uniform(0, 1.5 * INVISIBLE_SECONDS[0]))
        self._counts["held over a pop"] += 1
        await self._ack_all(messages)

    async def _pop(self, invisible: float | None = None) -> PoppedMessages | None:
        """Pop for that time; None: for the time of before, or one that is drawn."""
        count = self._random.choice([1, 5, 30])
        if self._times.random() < OTHER_TIME_SHARE:
            invisible = invisible or self._times.choice(INVISIBLE_SECONDS)
        self._counts["pops for a time"] += invisible is not None
        try:
            messages = await pop_written(
                self._consumer,
                count,
                self._recorder,
                self._process,
                self._group,
                self._got,
                self._impatience,
                invisible=invisible,
            )
        except Cancelled:
            self._is_left = self._random.random() < LEFT_SHARE
            return None
        self._counts["delivered"] += len(messages or ())
        self._counts["again"] += sum(each.attempt > 1 for each in messages or ())
        return messages

    async def _work(self, messages: PoppedMessages) -> None:
        """Treat a batch as any application may: settle, extend, wait, forget."""
        habits, luck = self._shared.habits, self._random.random()
        if habits.late_acks and self._kept is not None:
            habits.late_acks -= 1
            kept, self._kept = self._kept, None
            await self._ack_all(kept)
        if luck < 0.05:
            # The batch is forgotten: its leases run out.
            self._kept = messages
            return
        if luck < 0.10:
            await trio.sleep(self._random.uniform(0.5, 3.0))
        if luck < 0.15:
            await self._extend(messages[0])
        if luck < 0.6:
            await self._ack_all(messages)
        else:
            for message in messages:
                await self._settle_one(message)
        if habits.repeats:
            habits.repeats -= 1
            await self._ack_all(messages)

    async def _ack_all(self, messages: PoppedMessages) -> None:
        named = [self._named(each) for each in messages]
        operation = begin_settling(self._recorder, self._process, "ack", self._group, named)
        try:
            settlement = await self._impatience.call(
                partial(self._consumer.ack, messages, timeout=SETTLE_SECONDS)
            )
        except Cancelled:
            self._recorder.unknown(operation)
            self._is_left = self._random.random() < LEFT_SHARE
            if self._random.random() < 0.5:
                await self._ack_all(messages)
            return
        except (Unavailable, OutcomeUnknown):
            # Some messages may be settled: several leaders may hold them.
            self._counts["unknown"] += 1
            self._recorder.unknown(operation)
            return
        self._end(operation, named, messages, settlement)

    async def _settle_one(self, message: PoppedMessage) -> None:
        # All tries have one delay: a nack joins another under way, whatever its own delay.
        delay = self._random.choice([None, 0.0, 0.5])
        while await self._is_cancelled(message, delay) and self._random.random() < 0.5:
            pass

    async def _is_cancelled(self, message: PoppedMessage, delay: float | None) -> bool:
        """Settle a message in some way; True: the call was cancelled."""
        random = self._random
        functions = ["ack", "nack", "give_back", "reject", "forget"]
        function = random.choices(functions, [70, 18, 5, 4, 3])[0]
        if function == "forget":
            return False
        argument: Value = -1
        if function == "nack" and delay is not None:
            argument = round(delay * 1000)
        elif function == "reject":
            argument = "poison"
        named = [self._named(message)]
        operation = begin_settling(
            self._recorder, self._process, function, self._group, named, argument
        )
        try:
            await self._impatience.call(_settling(message, function, delay))
        except (RaftmqError, Cancelled) as error:
            self._failed(operation, named, error)
            return isinstance(error, Cancelled)
        self._counts[f"{function} done"] += 1
        end_settling(self._recorder, operation, self._group, [(named[0], 1)])
        return False

    async def _extend(self, message: PoppedMessage) -> None:
        seconds = self._random.choice([1.0, 3.0])
        named, milliseconds = [self._named(message)], round(seconds * 1000)
        operation = begin_settling(
            self._recorder, self._process, "extend", self._group, named, milliseconds
        )
        try:
            await self._impatience.call(partial(message.extend, seconds, timeout=SETTLE_SECONDS))
        except (RaftmqError, Cancelled) as error:
            self._failed(operation, named, error)
        else:
            self._counts["extended"] += 1
            end_settling(self._recorder, operation, self._group, [(named[0], milliseconds)])

    def _end(
        self,
        operation: int,
        named: Sequence[Named],
        messages: PoppedMessages,
        settlement: Settlement,
    ) -> None:
        fenced = set(settlement.fenced)
        results = [
            (one, FENCED if (each.id, each.token) in fenced else 1)
            for one, each in zip(named, messages, strict=True)
        ]
        self._counts["fenced"] += len(fenced)
        self._counts["ack done"] += len(named) - len(fenced)
        end_settling(self._recorder, operation, self._group, results)

    def _failed(self, operation: int, named: list[Named], error: RaftmqError | Cancelled) -> None:
        match error:
            case Cancelled():
                self._recorder.unknown(operation)
            case Rejected(reason=Reason.FENCED):
                self._counts["fenced"] += 1
                end_settling(self._recorder, operation, self._group, [(named[0], FENCED)])
            case Unavailable():
                self._counts["unavailable"] += 1
                self._recorder.fail(operation)
            case OutcomeUnknown():
                self._counts["unknown"] += 1
                self._recorder.unknown(operation)
            case _:
                raise error

    def _got(self, message: PoppedMessage) -> Got:
        shared = self._shared
        if shared.now_ms is not None:
            # A client counts a lease from the arrival of the answer, its leader from the making.
            late_ms = round(shared.now_ms() + 1000 * message.remaining) - message.deadline
            shared.late_ms = max(shared.late_ms, late_ms)
        value = written(shared.number_of(message.body), message.key)
        return got_of(message, shared.queue_name(message.queue), value)

    def _named(self, message: PoppedMessage) -> Named:
        return Named(self._shared.queue_name(message.queue), message.offset, message.token)


def _settling(
    message: PoppedMessage, function: str, delay: float | None
) -> Callable[[], Awaitable[None]]:
    match function:
        case "ack":
            return partial(message.ack, timeout=SETTLE_SECONDS)
        case "nack":
            return partial(message.nack, delay, timeout=SETTLE_SECONDS)
        case "give_back":
            return partial(message.give_back, timeout=SETTLE_SECONDS)
        case _:
            return partial(message.reject, "poison", timeout=SETTLE_SECONDS)


async def pop_written(
    consumer: PopConsumer,
    count: int,
    recorder: Recorder,
    process: int,
    group: str,
    got: Callable[[PoppedMessage], Got],
    impatience: Impatience,
    *,
    invisible: float | None = None,
) -> PoppedMessages | None:
    """Pop up to `count` messages, and write it down; None: nothing came. `invisible` as for `pop`.

    Raises:
        Cancelled: see `Impatience.call`.
    """
    operation = begin_pop(recorder, process, group)
    try:
        messages = await impatience.call(
            partial(consumer.pop, count, wait=0.5, invisible=invisible)
        )
    except Cancelled:
        # The next pop returns the messages that this call took, or they go back with its consumer.
        recorder.unknown(operation)
        raise
    except Unavailable:
        recorder.fail(operation)
        return None
    except OutcomeUnknown:
        # It is in doubt whether messages popped ahead have the asked time; the next pop goes on.
        recorder.unknown(operation)
        return None
    end_pop(recorder, operation, group, [got(each) for each in messages])
    return messages if len(messages) else None


def got_of(message: PoppedMessage, queue: str, value: Value) -> Got:
    """The history's entry for a popped message."""
    remaining_ms = round(1000 * message.remaining)
    return Got(queue, message.offset, value, message.token, message.attempt, remaining_ms)


def written(number: int, key: str | None) -> Value:
    """A message's value in the history."""
    return (number, key) if key else number


def is_red(value: Value) -> bool:
    """True if a message has the tag `RED`."""
    number = value[0] if isinstance(value, tuple) else value
    assert isinstance(number, int)
    return tag_of(number) == RED


def tag_of(number: int) -> str | None:
    """A message's tag."""
    return RED if number % 2 else None


def judge_pop(
    history: History,
    *,
    groups: Sequence[str],
    clock_ms_max: int | None,
    is_drained: bool,
    handing_ms_max: int = 0,
    late_ms_max: int | None = None,
) -> list[Report]:
    """Judge each group by what it promises.

    Args:
        history, groups: what clients did, and the consumer groups of the run.
        is_drained: False: no auditor saw the end of the work, which was reported as such.
        clock_ms_max, handing_ms_max, late_ms_max: see `PopRules`.
    """
    reports = []
    for group in groups:
        rules = PopRules(
            attempts_max=ATTEMPTS_MAX,
            schedule_ms=tuple(round(1000 * seconds) for seconds in SCHEDULE_SECONDS),
            clock_ms_max=clock_ms_max,
            handing_ms_max=handing_ms_max,
            late_ms_max=late_ms_max,
            order=KINDS[group].order,
            is_wanted=is_red if KINDS[group].tags else None,
        )
        report = check_pop(history, rules, group=group)
        if is_drained or report.anomalies:
            reports.append(report)
    return reports
