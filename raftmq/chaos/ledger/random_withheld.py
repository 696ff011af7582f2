"""Random calls of clients and leaders about delayed messages and transactions, in a random log.

Clients delay messages, some of them twice, and take them back in time or too late; open
transactions, with and without inputs, add to them in time or too late, and end them in both ways,
again and again. Leaders release messages that are due, or repeat an earlier release, and carry
messages that wait to the end of the log.
"""

import random
from collections.abc import Sequence

from raftmq.batch import encode
from raftmq.chaos.ledger.followed_log import FollowedLog
from raftmq.log.record import Kind
from raftmq.machine.delay_queue import Key
from raftmq.machine.delays import NEVER, Cancel
from raftmq.machine.releases import copy, indexes_of, release
from raftmq.machine.transactions import Begin, End, Input, Outcome
from raftmq.results import Appended, Delayed

PRODUCER = 2
"""Producer of delayed messages; each transaction is a producer of its own."""
FIRST = 1000
"""The number of the first transaction."""
DELAYS_MS = (-5, 0, 1, 5, 30, 200, 100_000)
RECENT = 12
"""Number of latest calls from which one is repeated, or made too late."""


class RandomWithheld:
    """The part of a random log that is about messages which are seen later."""

    def __init__(self, rng: random.Random, log: FollowedLog, queues: Sequence[int]) -> None:
        self._rng = rng
        self._log = log
        self._queues = queues
        # (producer, queue) → the next sequence.
        self._sequences: dict[tuple[int, int], int] = {}
        self._batches: list[bytes] = []
        # (queue, due, number) of messages that wait, or did.
        self._delayed: list[tuple[int, int, int]] = []
        self._transactions: list[int] = []
        self._releases: list[bytes] = []
        self._bodies = 0

    def step(self) -> None:
        """Make one random call."""
        rng = self._rng
        luck = rng.random()
        if luck < 0.35:
            due = [self._log.now + rng.choice(DELAYS_MS) for _ in range(rng.randint(1, 5))]
            self._send(PRODUCER, [max(one, 1) for one in due])
        elif luck < 0.4 and self._batches:
            self._log.add(Kind.BATCH, rng.choice(self._batches[-RECENT:]))
        elif luck < 0.55:
            self._log.commands([self._cancel() for _ in range(rng.randint(1, 2))])
        elif luck < 0.65 or not self._transactions:
            self._transactions.append(FIRST + len(self._transactions))
            self._log.commands([self._begin(self._transactions[-1])])
        elif luck < 0.8:
            self._send(self._recent(), [NEVER] * rng.randint(1, 3))
        elif luck < 0.95:
            outcomes = [Outcome.COMMITTED, Outcome.COMMITTED, Outcome.ROLLED_BACK]
            calls = [End(self._recent(), rng.choice(outcomes)) for _ in range(rng.randint(1, 2))]
            self._log.commands(calls)
        else:
            self._carry()

    def _recent(self) -> int:
        # A few transactions were never begun.
        return self._rng.choice([*self._transactions[-RECENT:], FIRST - 1])

    def _send(self, producer: int, dues: list[int]) -> None:
        rng, queue = self._rng, self._rng.choice(self._queues)
        first = self._sequences.get((producer, queue), 0)
        bodies = [b"%d" % (self._bodies + place) for place in range(len(dues))]
        self._bodies += len(dues)
        keys = [rng.choice(["a", "b", None]) for _ in dues]
        batch = encode(bodies, keys=keys, deliver_at_ms=dues)
        payload = batch.to_bytes(queue=queue, producer=producer, epoch=0, first_sequence=first)
        (result,) = self._log.add(Kind.BATCH, payload)
        if isinstance(result, Appended | Delayed) and not result.duplicate:
            self._sequences[producer, queue] = first + len(dues)
            self._batches.append(payload)
        if isinstance(result, Delayed):
            named = enumerate(dues, result.number)
            self._delayed += [(queue, max(due, self._log.now), number) for number, due in named]

    def _cancel(self) -> Cancel:
        rng = self._rng
        some = rng.sample(self._delayed[-3 * RECENT :], min(len(self._delayed), rng.randint(0, 3)))
        queues, dues, numbers = zip(*some, strict=True) if some else ((), (), ())
        return Cancel(list(queues), list(dues), list(numbers))

    def _begin(self, number: int) -> Begin:
        rng = self._rng
        held = [(at, one) for at, some in self._log.held.items() for one in some[-3:]]
        if not held or rng.random() < 0.6:
            return Begin(number, "shop", f"order {number}")
        inputs = []
        for at, one in rng.sample(held, min(len(held), rng.randint(1, 2))):
            bits = one.messages.bits
            content = bits.to_bytes(bits.bit_length() // 8 + 1, "little")
            inputs.append(Input(at, one.consumer, one.token, one.messages.base, content))
        return Begin(number, "", "hand-off", inputs)

    # Leaders

    def release(self) -> None:
        """Release messages that are due, or repeat a release, as an old leader may."""
        rng, delays = self._rng, self._log.machine.delays
        for queue in delays.due_queues(len(self._queues)):
            if rng.random() < 0.6:
                rows = delays.due(queue, rng.choice([1, 3, 100]))
                self._releases.append(release(queue, rows, self._log.records_at(indexes_of(rows))))
                self._log.add(Kind.BATCH, self._releases[-1])
        if self._releases and rng.random() < 0.02:
            self._log.add(Kind.BATCH, rng.choice(self._releases[-RECENT:]))

    def _carry(self) -> None:
        machine, queue = self._log.machine, self._rng.choice(self._queues)
        before = self._rng.randint(0, machine.applied)
        rows = machine.delays.standing_before(before, queue=queue, after=Key(0, 0), limit=20)
        if rows.dues:
            self._log.commands([copy(queue, rows, self._log.records_at(indexes_of(rows)))])
