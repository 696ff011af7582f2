"""Random calls of groups that read by offset, in a random log: commits, claims, deletions.

| name | is |
|---|---|
| `p` | a group whose readers commit where they like, and number it or not |
| `m` | a group with members: owners with epochs, some of them late, some overtaken |
| `b@one` | an instance of a broadcast group, whose offsets are kept for a time |

Groups are deleted, by a leader that knows the last deletion and by a leader that does not, and
begin again. All draws come from a `Random` of its own, so the other parts of the log do not change.
"""

from collections.abc import Sequence
from random import Random

from raftmq.chaos.ledger.followed_log import FollowedLog
from raftmq.machine.offsets import CLAIM, CommitOffsets, ForgetOffsets

NAMES = ("p", "m", "b@one")
SHARE = 0.12
"""Chance of a call of this kind between two other calls."""
KEPT_MS = (30, 2000)
SENDERS = (901, 902)
"""The senders that number plain commits; the others do not."""


class RandomOffsets:
    """The part of a random log that is about committed offsets."""

    def __init__(self, rng: Random, log: FollowedLog, queues: Sequence[int]) -> None:
        self._rng = rng
        self._log = log
        self._queues = queues
        # The catalog's log, whose indexes epochs and deletions are.
        self._catalog = 1
        self._epochs = dict.fromkeys(queues, 1)
        self._sequence = 0
        # Sender of plain commits → the number of its last one.
        self._numbers = dict.fromkeys(SENDERS, 0)
        self._last: list[CommitOffsets | ForgetOffsets] = []

    def step(self) -> None:
        """Make one call, or mostly none."""
        rng = self._rng
        if rng.random() >= SHARE:
            return
        luck = rng.random()
        if luck < 0.1 and self._last:
            # A request that was held up on the network, or sent twice.
            command = rng.choice(self._last[-6:])
        elif luck < 0.15:
            command = self.forget(rng.sample(NAMES, rng.randint(1, 2)))
        elif luck < 0.3:
            command = self._claim()
        elif luck < 0.6:
            command = self._commit_owned()
        else:
            command = self._commit(rng.choice(NAMES))
        self._last.append(command)
        self._log.commands([command])

    def forget(self, names: Sequence[str]) -> ForgetOffsets:
        """The command that tells a data group of deleted groups."""
        done = self._log.machine.offsets.forgotten
        deletions = [self._next() for _ in names]
        # A leader that was overtaken does not know the last deletion.
        since = done if self._rng.random() < 0.8 else max(done - 1, 0)
        return ForgetOffsets(list(names), deletions, since, deletions[-1])

    def _next(self) -> int:
        self._catalog += self._rng.randint(1, 3)
        return self._catalog

    def _some(self) -> list[int]:
        return self._rng.sample(self._queues, self._rng.randint(1, len(self._queues)))

    def _offset(self, queue: int) -> int:
        return self._rng.randint(
            0, self._log.machine.ends.get(queue, 0) + (self._rng.random() < 0.1)
        )

    def _claim(self) -> CommitOffsets:
        some = self._some()
        for queue in some:
            self._epochs[queue] = self._next()
        self._sequence = 0
        epochs = [self._epochs[queue] for queue in some]
        return CommitOffsets("m", some, [CLAIM] * len(some), epochs)

    def _commit_owned(self) -> CommitOffsets:
        rng, some = self._rng, self._some()
        self._sequence += 1
        # An owner that lost its queue, and a commit that was overtaken.
        late = rng.choice([0, 0, 0, 1])
        epochs = [max(self._epochs[queue] - late, 1) for queue in some]
        sequence = max(self._sequence - rng.choice([0, 0, 0, 2]), 1)
        return CommitOffsets("m", some, [self._offset(queue) for queue in some], epochs, sequence)

    def _commit(self, name: str) -> CommitOffsets:
        some = self._some()
        kept_ms = self._rng.choice(KEPT_MS) if "@" in name else 0
        is_reset = self._rng.random() < 0.2
        offsets = [self._offset(queue) for queue in some]
        sender = self._rng.choice([0, *SENDERS])
        if not sender:
            return CommitOffsets(name, some, offsets, kept_ms=kept_ms, is_reset=is_reset)
        self._numbers[sender] += 1
        # A commit that was overtaken, maybe for a part of its queues.
        number = self._numbers[sender] - self._rng.choice([0, 0, 0, 2])
        return CommitOffsets(name, some, offsets, [], number, kept_ms, is_reset, sender)
