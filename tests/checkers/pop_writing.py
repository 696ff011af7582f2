"""Consumer groups that pop: short ways to write their histories down, and random right ones.

`PopModel` is a broker in one dictionary: each message of each queue with one word for where it is.
`random_pop_run` lets producers and consumers use it, with answers that come late or never, and
consumers that die; `bug` names a way in which the model is wrong.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from raftmq.checkers import History, Recorder
from raftmq.checkers.history import Value
from raftmq.checkers.pop.calls import Got, Named, begin_pop, begin_settling, end_pop, end_settling
from raftmq.checkers.pop.messages import Ordering

GROUP = "g"


class Time:
    """A clock that a test sets in milliseconds; reading it gives nanoseconds."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now * 1_000_000


class PopScript:
    """A recorder of operations that are over as soon as they begin, a millisecond each."""

    def __init__(self) -> None:
        self.time = Time()
        self.recorder = Recorder(self.time)

    def sent(self, value: Value, offset: int, queue: str = "t/0") -> None:
        operation = self.recorder.invoke(0, "send", queue, value)
        self.recorder.ok(operation, offset=offset)
        self.time.now += 1

    def send_failed(self, value: Value, queue: str = "t/0") -> None:
        self.recorder.fail(self.recorder.invoke(0, "send", queue, value))

    def popped(
        self,
        process: int,
        value: Value,
        offset: int,
        token: int,
        attempt: int = 1,
        remaining: int = 1000,
        queue: str = "t/0",
    ) -> None:
        self.popped_many(process, Got(queue, offset, value, token, attempt, remaining))

    def popped_many(self, process: int, *got: Got) -> None:
        operation = begin_pop(self.recorder, process, GROUP)
        end_pop(self.recorder, operation, GROUP, got)
        self.time.now += 1

    def begun(
        self, process: int, function: str, offset: int, token: int, argument: Value = -1
    ) -> int:
        named = [Named("t/0", offset, token)]
        return begin_settling(self.recorder, process, function, GROUP, named, argument)

    def settled(
        self,
        process: int,
        function: str,
        offset: int,
        token: int,
        argument: Value = -1,
        result: int = 1,
    ) -> None:
        operation = self.begun(process, function, offset, token, argument)
        end_settling(self.recorder, operation, GROUP, [(Named("t/0", offset, token), result)])
        self.time.now += 1

    def acked(self, process: int, offset: int, token: int) -> None:
        self.settled(process, "ack", offset, token)

    def listed(self, *dead: tuple[int, tuple[int, int, str]]) -> None:
        operation = self.recorder.invoke(9, "dead", GROUP)
        rows = [(f"{GROUP} t/0", letter, offset) for offset, letter in dead]
        self.recorder.ok_many(operation, rows)

    def booked(self, *books: int) -> None:
        operation = self.recorder.invoke(9, "backlog", GROUP)
        self.recorder.ok_many(operation, [(f"{GROUP} t/0", books, None)])

    def ended(self, acked: int, dead: int = 0, **others: int) -> None:
        """The backlog of a group that has nothing left to do."""
        end = acked + dead + sum(others.values())
        names = ("leased", "waiting", "ready")
        self.booked(end, end, *(others.get(name, 0) for name in names), dead, acked, 0, 0)

    def history(self) -> History:
        return self.recorder.history()


# A right broker


@dataclass
class Held:
    """One message of the model."""

    value: Value
    where: str = "fresh"
    """fresh, leased, waiting, ready, dead, acked"""
    attempt: int = 0
    token: int = 0
    until: int = 0
    """End of the lease, or of the wait."""
    consumer: int = -1
    reason: str = ""
    letter: int = 0

    @property
    def key(self) -> Value:
        return self.value[1] if isinstance(self.value, tuple) else None


@dataclass
class PopModel:
    """A broker that does it right, or has one `bug`."""

    rng: random.Random
    time: Time
    queues: int = 2
    attempts_max: int = 3
    schedule: tuple[int, ...] = (30, 80)
    order: Ordering = ""
    bug: str = ""
    logs: dict[str, list[Held]] = field(default_factory=dict)
    token: int = 1 << 20
    letters: int = 0

    def __post_init__(self) -> None:
        self.logs = {f"t/{number}": [] for number in range(self.queues)}

    def send(self, queue: str, value: Value) -> int:
        log = self.logs[queue]
        if self.bug == "loses a send" and self.rng.random() < 0.1:
            log = [*log]
        log.append(Held(value))
        if self.bug == "stores twice" and self.rng.random() < 0.1:
            log.append(Held(value))
        return len(log) - 1

    def pop(self, consumer: int, count: int, invisible: int) -> list[tuple[str, int, Held]]:
        self.pass_time()
        got: list[tuple[str, int, Held]] = []
        for queue, log in sorted(self.logs.items(), key=lambda _: self.rng.random()):
            free = self._free(log)
            # One lease, one attempt.
            same = [log[offset].attempt == log[free[0]].attempt for offset in free]
            alike = same.index(False) if False in same else len(free)
            free = free[: min(count, alike)]
            count -= len(free)
            if free:
                self.token += 1 if self.bug != "one token for all" else 0
            if self.bug == "tokens by chance":
                self.token = self.rng.randrange(1 << 40)
            for offset in free:
                held = log[offset]
                if not (self.bug == "forgets attempts" and held.attempt > 0):
                    held.attempt += 1
                held.where, held.token, held.consumer = "leased", self.token, consumer
                held.until = self.time.now + invisible
                got.append((queue, offset, held))
        return got

    def _free(self, log: list[Held]) -> list[int]:
        if self.order == "queue":
            return self._free_run(log)
        free, keys = [], set()
        for offset, held in enumerate(log):
            is_over = held.where in ("acked", "dead")
            is_blocked = held.key is not None and held.key in keys
            is_late = self.bug == "overtakes" and held.where == "waiting"
            is_out = held.where in ("leased", "waiting")
            if (self.order == "key" and not is_over and not is_late) or (
                self.order == "runs" and is_out
            ):
                keys.add(held.key)
            luck = self.rng.random() if self.bug else 1
            is_double = self.bug == "two leases" and held.where == "leased" and luck < 0.05
            is_again = self.bug == "acked comes again" and held.where == "acked" and luck < 0.02
            if (held.where in ("fresh", "ready") and not is_blocked) or is_double or is_again:
                free.append(offset)
        return free

    def _free_run(self, log: list[Held]) -> list[int]:
        free: list[int] = []
        for offset, held in enumerate(log):
            if held.where in ("leased", "waiting"):
                break
            if held.where in ("fresh", "ready"):
                free.append(offset)
        return free

    def settle(self, consumer: int, function: str, named: Named, argument: Value) -> int:
        self.pass_time()
        log = self.logs[named.queue]
        held = log[named.offset]
        is_held = held.where == "leased" and held.consumer == consumer
        is_held = is_held and held.token == named.token
        if self.bug == "settles by offset" and held.where == "leased":
            is_held = True
        if self.bug == "believes all acks" and function == "ack":
            is_held = True
        if self.bug == "refuses by chance" and self.rng.random() < 0.05:
            is_held = False
        if not is_held:
            return -1
        if function == "ack":
            held.where = "acked" if self.bug != "forgets acks" else held.where
        elif function == "nack":
            assert isinstance(argument, int)
            self._fail(held, "failed", argument if argument >= 0 else None)
            self._give_back_rest(log, named.offset, named.token)
        elif function == "reject":
            self._bury(held, str(argument))
            self._give_back_rest(log, named.offset, named.token)
        elif function == "give_back":
            held.where = "ready"
            held.attempt -= self.bug != "counts what is given back"
            self._give_back_rest(log, named.offset, named.token)
        elif function == "extend":
            assert isinstance(argument, int)
            for one in log:
                if one.where == "leased" and one.token == named.token:
                    one.until = self.time.now + argument
            return argument
        return 1

    def _give_back_rest(self, log: list[Held], offset: int, token: int) -> None:
        """Give back the later messages of the lease that are in order with one, uncounted."""
        for held in log[offset + 1 :]:
            is_behind = self.order == "queue" or (
                self.order == "runs" and held.key is not None and held.key == log[offset].key
            )
            if is_behind and held.where == "leased" and held.token == token:
                held.where = "ready"
                held.attempt -= 1

    def _fail(self, held: Held, reason: str, delay: int | None) -> None:
        last = self.attempts_max - (self.bug == "buries early")
        if held.attempt >= last and self.bug != "never buries":
            self._bury(held, reason)
            return
        wait = self.schedule[min(held.attempt, len(self.schedule)) - 1]
        held.where, held.until = "waiting", self.time.now + (wait if delay is None else delay)
        if self.bug == "does not wait":
            held.until = 0
        if self.bug == "loses retries" and self.rng.random() < 0.3:
            held.where = "acked"

    def _bury(self, held: Held, reason: str) -> None:
        self.letters += 1
        held.where, held.reason, held.letter = "dead", reason, self.letters
        if self.bug == "revives the dead":
            held.where = "ready"

    def pass_time(self) -> None:
        now = self.time.now
        for log in self.logs.values():
            for offset, held in enumerate(log):
                if held.where == "leased" and held.until <= now:
                    self._fail(held, "expired", None)
                    if self.order == "runs":
                        self._give_back_rest(log, offset, held.token)
                if held.where == "waiting" and held.until <= now:
                    held.where = "ready"

    def redrive(self, queue: str, offset: int) -> None:
        held = self.logs[queue][offset]
        if held.where == "dead":
            held.where, held.attempt = "ready", 0

    # The end

    def write_books(self, recorder: Recorder) -> None:
        self.pass_time()
        dead = recorder.invoke(99, "dead", GROUP)
        rows = [
            (f"{GROUP} {queue}", (held.letter, held.attempt, held.reason), offset)
            for queue, log in self.logs.items()
            for offset, held in enumerate(log)
            if held.where == "dead"
        ]
        recorder.ok_many(dead, rows)
        backlog = recorder.invoke(99, "backlog", GROUP)
        recorder.ok_many(
            backlog,
            [(f"{GROUP} {queue}", self.books(log), None) for queue, log in self.logs.items()],
        )

    def books(self, log: list[Held]) -> tuple[int, ...]:
        where = [held.where for held in log]
        words = ("leased", "waiting", "ready", "dead", "acked")
        handed = [offset for offset, one in enumerate(where) if one != "fresh"]
        count = {word: where.count(word) for word in words}
        following = handed[-1] + 1 if handed else 0
        # An ordered group has passed over some that were never handed out.
        count["ready"] += where[:following].count("fresh")
        if self.bug == "miscounts":
            count["acked"] += 1
        return (len(log), following, *(count[word] for word in words), 0, 0)


# Producers and consumers


@dataclass
class Consumer:
    """One process, and its messages in hand."""

    process: int
    held: list[Got] = field(default_factory=list)
    ahead: list[tuple[Got, int]] = field(default_factory=list)
    """Messages taken ahead, each with the end of its lease."""


class Run:
    """Producers and consumers of a model; calm: none dies, and no pop's answer is lost or late."""

    def __init__(
        self, rng: random.Random, model: PopModel, *, is_ahead: bool, is_calm: bool
    ) -> None:
        self.rng, self.model, self.is_ahead, self.is_calm = rng, model, is_ahead, is_calm
        self.time = model.time
        self.recorder = Recorder(model.time)
        self.consumers = [Consumer(process) for process in range(10, 13)]
        self.fresh = 20
        self.doing: list[Callable[[], None]] = []

    def play(self, steps: int) -> History:
        rng = self.rng
        for _ in range(steps):
            self.time.now += rng.randrange(6)
            if self.doing and rng.random() < 0.6:
                self.doing.pop(rng.randrange(len(self.doing)))()
            elif rng.random() < 0.35:
                self.send()
            else:
                self.consume(rng.choice(self.consumers))
        self.drain()
        return self.recorder.history()

    def send(self) -> None:
        rng, recorder = self.rng, self.recorder
        queue = rng.choice(list(self.model.logs))
        number = recorder.unique_value()
        value: Value = (number, f"k{rng.randrange(3)}") if rng.random() < 0.7 else number
        operation = recorder.invoke(rng.randrange(3), "send", queue, value)
        luck = rng.random()

        def happen() -> None:
            if luck < 0.05:
                recorder.fail(operation)
                return
            offset = self.model.send(queue, value) if luck > 0.1 else -1
            if luck < 0.2:
                self.doing.append(lambda: recorder.unknown(operation))
            else:
                self.doing.append(lambda: recorder.ok(operation, offset=offset))

        self.doing.append(happen)

    def consume(self, consumer: Consumer) -> None:
        luck = self.rng.random()
        if luck < 0.03 and not self.is_calm:
            self.consumers.remove(consumer)
            self.fresh += 1
            self.consumers.append(Consumer(self.fresh))
        elif luck < 0.5 or not consumer.held:
            self.pop(consumer)
        else:
            self.settle(consumer)

    def pop(self, consumer: Consumer) -> None:
        rng, recorder = self.rng, self.recorder
        if self.is_ahead and rng.random() < 0.5:
            self.take_ahead(consumer)
            return
        operation = begin_pop(recorder, consumer.process, GROUP)
        got: list[tuple[Got, int]] = []

        def happen() -> None:
            if self.is_ahead:
                got.extend(consumer.ahead)
                consumer.ahead.clear()
            else:
                got.extend(self.handed(consumer))
            if self.is_calm:
                finish()
            elif rng.random() < 0.05:
                recorder.unknown(operation)
            else:
                self.doing.append(finish)

        def finish() -> None:
            now = self.time.now
            given = [one._replace(remaining_ms=until - now) for one, until in got if until > now]
            consumer.held.extend(given)
            end_pop(recorder, operation, GROUP, given)

        self.doing.append(happen)

    def handed(self, consumer: Consumer) -> list[tuple[Got, int]]:
        rng = self.rng
        handed = self.model.pop(consumer.process, rng.randint(1, 5), rng.choice([20, 100, 400]))
        return [
            (Got(queue, offset, held.value, held.token, held.attempt, 0), held.until)
            for queue, offset, held in handed
        ]

    def take_ahead(self, consumer: Consumer) -> None:
        given, lost = set[int](), set[int]()
        for one, until in self.handed(consumer):
            # In order by queue, the later messages of its lease go with it.
            if self.rng.random() < 0.2 or one.token in given:
                given.add(one.token)
                named = Named(one.queue, one.offset, one.token)
                self.model.settle(consumer.process, "give_back", named, -1)
            elif self.rng.random() < 0.05 or one.token in lost:
                lost.add(one.token)
            else:
                consumer.ahead.append((one, until))

    def settle(self, consumer: Consumer) -> None:
        rng, recorder = self.rng, self.recorder
        functions = ["ack"] * 6 + ["nack", "nack", "reject", "give_back", "extend"]
        function = rng.choice(functions)
        some = rng.sample(consumer.held, rng.randint(1, min(3, len(consumer.held))))
        if function == "extend":
            some = some[:1]
        elif rng.random() < 0.9:
            consumer.held = [one for one in consumer.held if one not in some]
        arguments: dict[str, Value] = {
            "nack": rng.choice([-1, 0, 25]), "reject": "poison", "extend": rng.choice([10, 200]),
        }  # fmt: skip
        argument = arguments.get(function, -1)
        named = [Named(one.queue, one.offset, one.token) for one in some]
        process = consumer.process if rng.random() < 0.97 else 77
        operation = begin_settling(recorder, process, function, GROUP, named, argument)

        def happen() -> None:
            luck = rng.random()
            results = [
                (one, self.model.settle(process, function, one, argument))
                for one in named
                if luck > 0.05
            ]
            if luck < 0.1:
                recorder.unknown(operation)
            else:
                self.doing.append(lambda: end_settling(recorder, operation, GROUP, results))

        self.doing.append(happen)

    def drain(self) -> None:
        """Everything that is under way ends, and one consumer settles what is left."""
        while self.doing:
            self.doing.pop(0)()
        if self.rng.random() < 0.2:
            self.redrive()
        last, empty = Consumer(9), 0
        while empty < 5:
            self.time.now += 120
            operation = begin_pop(self.recorder, last.process, GROUP)
            handed = self.handed(last)
            given = [one._replace(remaining_ms=until - self.time.now) for one, until in handed]
            end_pop(self.recorder, operation, GROUP, given)
            empty = 0 if given else empty + 1
            for one in given:
                named = Named(one.queue, one.offset, one.token)
                ack = begin_settling(self.recorder, last.process, "ack", GROUP, [named])
                result = self.model.settle(last.process, "ack", named, -1)
                end_settling(self.recorder, ack, GROUP, [(named, result)])
        self.model.write_books(self.recorder)

    def redrive(self) -> None:
        for queue, log in self.model.logs.items():
            for offset, held in enumerate(log):
                if held.where == "dead":
                    key, letter = f"{GROUP} {queue}", (held.letter, offset)
                    operation = self.recorder.invoke(98, "redrive", key, letter)
                    self.model.redrive(queue, offset)
                    self.recorder.ok(operation)


def random_pop_run(
    rng: random.Random,
    *,
    steps: int = 250,
    is_ahead: bool = True,
    is_calm: bool = False,
    order: Ordering = "",
    bug: str = "",
) -> History:
    """A history of a broker that is right, or has a bug."""
    model = PopModel(rng, Time(), order=order, bug=bug)
    return Run(rng, model, is_ahead=is_ahead, is_calm=is_calm).play(steps)
