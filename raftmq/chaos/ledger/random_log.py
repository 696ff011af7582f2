"""Random logs of a data group with consumer groups that pop; a machine and the ledger follow them.

    log = RandomLog(random.Random(7), [(Mode.POP, Policy())])
    assert not log.play(300).breaches

Consumers ask and settle at random, also by handle, repeat their calls, name tokens that are not
theirs; filters come, change and go while feeds are under way (`random_filters`); messages are
delayed, and transactions opened (`random_withheld`); others read by offset (`random_offsets`);
groups are deleted, and made again at once or later; time passes by leaps; at times another
replica takes over, restored from a snapshot. A twin with another history of timers follows
(`twins`). With a *crowd*, a hundred consumers wait for few messages.

Invariants:
- Equal seeds give equal logs.
"""

import random
import struct
from collections.abc import Iterable

from raftmq.batch import encode
from raftmq.chaos.ledger.followed_log import FollowedLog
from raftmq.chaos.ledger.log import PopLog
from raftmq.chaos.ledger.random_filters import RandomFilters
from raftmq.chaos.ledger.random_offsets import RandomOffsets
from raftmq.chaos.ledger.random_withheld import RandomWithheld
from raftmq.log.record import Kind
from raftmq.machine.machine import PartitionMachine
from raftmq.pop.actions import Action
from raftmq.pop.calls import (
    Ask,
    Call,
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
from raftmq.pop.leases import Handed
from raftmq.pop.policy import Mode, Policy
from raftmq.pop.spans import run

TOPIC = 1
QUEUES = (TOPIC << 16, TOPIC << 16 | 1)
CONSUMERS = (11, 12, 13)
LEAPS_MS = (*[0] * 40, *[1, 3, 20] * 20, 25 * 3600 * 1000)
"""Time between two steps; after the longest leap consumers are forgotten."""
BY_HANDLE = 1 / 8
"""Share of the settlements that are made by handle."""
AWAY = 1 / 2
"""Share of the deleted groups that are not made again at once."""
RETURNS = 1 / 12
"""Chance at a step that one of these is made again."""


class RandomLog(FollowedLog):
    """A log that grows by chance."""

    def __init__(
        self, rng: random.Random, modes: Iterable[tuple[Mode, Policy]], crowd: int = 0
    ) -> None:
        """`crowd`: consumers beside the few that settle; these ask and wait, mostly in vain."""
        seed = rng.getstate()[1][0]
        super().__init__(random.Random(f"twin {seed}"), modes, QUEUES)
        self.rng = rng
        self.crowd = crowd
        self.filtered = rng.choice([0, *self.modes])
        """The group that begins with a filter; 0: none does."""
        self.last: dict[tuple[int, int, bool], list[Settle]] = {}
        """By number of the group, consumer, and whether by handle: its settlements."""
        self.withheld = RandomWithheld(rng, self, QUEUES)
        """Calls about delayed messages and transactions."""
        # Parts that were added later draw for themselves, so that older seeds give equal logs.
        self.filters = RandomFilters(random.Random(f"filters {seed}"), self, TOPIC)
        """Filters that change."""
        self.offsets = RandomOffsets(random.Random(f"offsets {seed}"), self, QUEUES)
        """Calls of groups that read by offset."""
        self._other = random.Random(f"other {seed}")
        # Groups that were deleted and not made again.
        self._away: list[int] = []
        self._snapshot = self.machine.snapshot()
        self._sent: dict[int, int] = {}

    def play(self, steps: int) -> PopLog:
        """Take this many random steps."""
        if self.filtered:
            self.filters.set(self.filtered, 1)
        for number in self.modes:
            self.open(number)
        for _ in range(steps):
            self.now += self.rng.choice(LEAPS_MS)
            luck = self.rng.random()
            if self.crowd and 0.15 < luck < 0.85:
                self.commands(self.ask() for _ in range(self.rng.randint(1, 8)))
            elif luck < 0.2:
                self.send()
            elif luck < 0.4:
                self.withheld.step()
            elif luck < 0.97:
                self.commands(self.call() for _ in range(self.rng.randint(1, 3)))
            elif luck < 0.99:
                self.rebuild()
            else:
                self.reopen()
            self.withheld.release()
            self.feed()
            self.filters.step()
            self.offsets.step()
            if self._away and self._other.random() < RETURNS:
                self.open(self._away.pop(0))
        self.note_difference(self.twin.compare(self.machine))
        return self.ledger

    def ask(self) -> Call:
        """A consumer of the crowd asks; few requests of the crowd are ever met."""
        rng = self.rng
        consumer = 100 + rng.randrange(self.crowd)
        number = rng.choice([1, 1, 1, *self.modes])
        wait = rng.choice([20, 100, 100, 3000])
        return Ask(number, consumer, rng.choice([1, 3]), wait, 0, rng.random() < 0.5)

    def send(self) -> None:
        """Send a batch, or the last message of an earlier batch again."""
        rng, queue = self.rng, self.rng.choice(QUEUES)
        count, first = rng.randint(1, 12), self._sent.get(queue, 0)
        if rng.random() < 0.9:
            self._sent[queue] = first + count
        elif first:
            count, first = 1, first - 1
        keys = [rng.choice(["a", "", "c", None]) for _ in range(count)]
        batch = encode([b"x"] * count, keys=keys)
        payload = batch.to_bytes(queue=queue, producer=1, epoch=0, first_sequence=first)
        self.add(Kind.BATCH, payload)

    def feed(self) -> None:
        """Feed the groups as the leader does; some feeds are made at a later step."""
        for number, group in self.machine.pop_groups.fed.items():
            for queue, base in group.wants_feed(self.machine.ends):
                hashes = self.hashes[queue][base : base + 20]
                keys = struct.pack(f"<{len(hashes)}I", *hashes)
                indexes = self.indexes[queue][base : base + len(hashes)]
                wanted, mask = self.filters.mask(number, indexes, base)
                feed = Feed(number, queue, base, len(hashes), mask, keys, wanted)
                if self.rng.random() < 0.7 and not self.filters.is_held(feed):
                    self.commands([feed])

    def open(self, number: int) -> None:
        """Serve a consumer group."""
        mode, policy = self.modes[number]
        queues = [queue for queue in QUEUES if self.rng.random() < 0.2]
        starts = [self.rng.choice([-1, 3]) for _ in queues]
        self.commands([OpenGroup(number, TOPIC, f"g{number}", 1, mode, policy, queues, starts)])

    def reopen(self) -> None:
        """Delete a consumer group, and make it again: at once, or later and without its filter."""
        number = self.rng.choice(list(self.modes))
        self.commands([CloseGroups([number])])
        self.held[number].clear()
        self.last = {key: value for key, value in self.last.items() if key[0] != number}
        if self._other.random() >= AWAY:
            self.open(number)
        elif number not in self._away:
            self._away.append(number)
            self.filters.set(number, 0)
            self.commands([self.offsets.forget([f"g{number}"])])

    def rebuild(self) -> None:
        """Another replica takes over: restored from a snapshot, old or new, and caught up."""
        state = self.machine.snapshot()
        snapshot = state if self.rng.random() < 0.3 else self._snapshot
        other = PartitionMachine.restore(snapshot)
        for record in self.records[other.applied :]:
            other.apply(record)
        other.pop_groups.take_handed()
        other.pop_groups.take_traced()
        if other.snapshot() != state:
            self.ledger.note("R21", "a replica that was restored has another state")
        self.machine = other
        self._snapshot = self._snapshot if self.rng.random() < 0.5 else state

    def call(self) -> Call:
        """A random call of a consumer, an operator or a leader."""
        rng = self.rng
        number, consumer = rng.choice(list(self.modes)), rng.choice(CONSUMERS)
        luck = rng.random()
        if luck < 0.3:
            wait = rng.choice([0, 5, 100])
            count, invisible_ms = rng.choice([0, 1, 3, 20]), rng.choice([0, 10, 60])
            return Ask(number, consumer, count, wait, invisible_ms, rng.random() < 0.5)
        if luck < 0.8:
            return self.settle(number, consumer)
        if luck < 0.85:
            return Leave(number, consumer)
        if luck < 0.9:
            return self.change_dead(number)
        if luck < 0.92:
            queue = rng.choice(QUEUES)
            return Lose([queue], [rng.randint(0, self.machine.ends.get(queue, 0) + 1)])
        if luck < 0.94:
            queue = rng.choice(QUEUES)
            offset = rng.randint(-1, self.machine.ends.get(queue, 0) + 1)
            return ResetGroup(number, [queue], [offset])
        return Tick()

    def change_dead(self, number: int) -> ChangeDead:
        """An operator attends to dead letters: to whole ones, or to some messages of each."""
        rng, attached = self.rng, self.machine.pop_groups.attached.get(number)
        dead = {} if attached is None else attached.group.dead
        # An operator names letters from a list, and maybe one that does not exist.
        letters = rng.sample([*dead, 1 << 40], min(3, len(dead) + 1))
        is_purge = rng.random() < 0.3
        if rng.random() < 0.4:
            return ChangeDead(number, letters, is_purge)
        named = [dead[letter].messages if letter in dead else run(0, 9) for letter in letters]
        bases = [each.base + rng.choice([0, 0, 0, -1, 1]) for each in named]
        bits = [each.bits & rng.getrandbits(each.bits.bit_length()) for each in named]
        content = [each.to_bytes(each.bit_length() // 8 + 1, "little") for each in bits]
        return ChangeDead(number, letters, is_purge, bases, content)

    def settle(self, number: int, consumer: int) -> Settle:
        """A consumer settles, or repeats an earlier settlement."""
        rng, by_handle = self.rng, self._other.random() < BY_HANDLE
        before = self.last.setdefault((number, consumer, by_handle), [])
        if before and rng.random() < 0.15:
            return rng.choice(before[-2:])
        mine = [one for one in self.held[number][-12:] if one.consumer == consumer]
        some = mine if rng.random() < 0.95 else self.held[number][-5:]
        steps = [self.step(rng.choice(some)) for _ in range(rng.randint(1, 3))] if some else []
        sequence = before[-1].sequence + 1 if before else 1
        sequence += self._other.randint(0, 5) if by_handle else 0
        before.append(Settle(number, consumer, sequence, steps, by_handle))
        return before[-1]

    def step(self, one: Handed) -> Step:
        """A random step of a settlement, for some messages of a lease."""
        rng = self.rng
        action = rng.choice([*Action, Action.ACK, Action.ACK, Action.NACK])
        if action is Action.EXTEND:
            return Step(action, one.token, delay_ms=rng.choice([0, 5, 200]))
        base, bits = one.messages.base, one.messages.bits
        if rng.random() < 0.5:
            bits &= rng.getrandbits(bits.bit_length())
        content = bits.to_bytes(bits.bit_length() // 8 + 1, "little")
        delay = rng.choice([-1, -1, 0, 30]) if action is Action.NACK else -1
        return Step(action, one.token, base, content, delay, "poison")
