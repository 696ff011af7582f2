"""Committed offsets of consumer groups, and the right to commit: a part of a data group's machine.

A commit says for each queue where to go on. A plain commit may set any offset. It names its
*sender*, which numbers its commits, and the machine keeps the last number of each sender for each
queue: a client that lost an answer repeats the commit, and others may have committed meanwhile.

    commit 40, sender A, number 1    -> 40
    commit 60, sender B, number 1    -> 60
    commit 40, sender A, number 1    -> 60: a repeat changes nothing, and is answered as done

Where the queues of a consumer group are dealt out (`membership`), each commit names the *owner
epoch* under which its sender owns the queue, and a new owner *claims* its epoch before it reads how
far the old one came:

    commit 40, epoch 7    -> 40
    claim, epoch 9        -> 40 is what the new owner reads
    commit 55, epoch 7    -> fenced: the old owner was only slow
    commit 41, epoch 9    -> 41
    commit without epoch  -> refused: it names no owner

Within an epoch the owner numbers its commits. A commit that a later one overtook changes nothing;
so a committed offset goes back only if the owner wants that, not because a message was late.

The offsets of an instance of a broadcast group are kept for a time after the last commit
(`kept_ms`), as the instance may never come back.

When a consumer group is deleted, the leader names it here (`ForgetOffsets`), in the order in which
groups were deleted, a part in each record. Epochs are indexes of the catalog's log, like the
deletion: a member's commit under a lower epoch is one of the deleted group that comes late.

    deletion 50 of "billing"      -> nothing is committed, no queue has an owner
    commit 41, epoch 9            -> fenced, for a day
    commit 3, epoch 60            -> 3: another group with this name

The record may come late, as a data group may have had no leader. Queues that by then have an owner
from after the deletion belong to another group, and stay as they are.

Invariants:
- Under one epoch of a queue only one owner's commits count, in the order of their numbers.
- An epoch never goes back while the group's offsets are kept.
- A plain commit is carried out once, and not after a later one of its sender, as long as its sender
  and queue are among the last `NUMBERS_MAX`. A deletion of the group leaves this as it is.
- The time at which anything is forgotten depends on the log alone.
- A deletion is carried out once: a later record that names it again changes nothing, and neither
  does a part that comes again.
- A deletion takes nothing that was committed under a later epoch.

Left out: a commit without an epoch that comes for the first time after the deletion. It names no
owner, so it begins the group again; and it goes with the others if the deletion is carried out
late.
"""

from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from typing import Any

import msgspec

from raftmq.errors import Reason
from raftmq.results import Changed, Refused, Result

CLAIM = -1
"""An offset that leaves what is committed as it is: only the epoch counts."""
KEPT_MS_MAX = 90 * 24 * 3600 * 1000
"""Offsets with a lease are kept for three months at the most."""
FENCE_MS = 24 * 3600 * 1000
"""Members of a deleted group are fenced for a day: no request is under way for longer."""
FENCES_MAX = 65_536
"""Deleted groups whose members are fenced; those that were deleted first give way."""
NUMBERS_MAX = 65_536
"""Pairs of a sender and a queue whose last number is remembered: about 16 MB. Those that committed
longest ago give way: fewer commits than these pass between a commit and its repeat."""
_SPARE_TIMERS = 1024
"""Void timers that may stay beyond as many as those that count."""


class CommitOffsets(msgspec.Struct, frozen=True, array_like=True, tag="commit"):
    """A consumer group has read up to these offsets."""

    consumer_group: str
    """The consumer group's name."""
    queues: list[int]
    """Numbers of queues of this partition group."""
    offsets: list[int]
    """For each queue the next message to read; it may go back (a reset). `CLAIM`: no change."""
    epochs: list[int] = []
    """For each queue the epoch of its owner; empty: a plain commit."""
    sequence: int = 0
    """The owner's or sender's number of this commit, growing."""
    kept_ms: int = 0
    """How long after its last commit the group's offsets here are forgotten; 0: never."""
    is_reset: bool = False
    """True: a plain commit by an operator, which counts even if the queues have owners."""
    sender: int = 0
    """A random number that names the sender of a plain commit. 0, as older software wrote: a repeat
    is carried out again."""


class ForgetOffsets(msgspec.Struct, frozen=True, array_like=True, tag="forget_offsets"):
    """Consumer groups were deleted: forget what is kept under their names."""

    names: list[str]
    """Names of consumer groups and of instances."""
    deletions: list[int]
    """For each the index of its deletion in the catalog's log."""
    since: int
    """The deletions up to this index were carried out when the record was proposed; if later ones
    were carried out since, the record changes nothing."""
    until: int
    """With this record the deletions up to this index are carried out; `since`: more follow."""
    part: int = -1
    """How many parts after `since` come before this record; if the log has another number of them,
    the record changes nothing. -1: of older software, whose records were not numbered."""


class Fence(msgspec.Struct, frozen=True, array_like=True):
    """A fence against commits by members of a deleted consumer group."""

    deletion: int
    """Index of the deletion: the members' epochs are lower."""
    until: int
    """When the fence falls, in milliseconds of the log's time."""


class Offsets:
    """The committed offsets of one data group's machine."""

    def __init__(self, offsets_max: int) -> None:
        self._offsets_max = offsets_max
        self.committed: dict[str, dict[int, tuple[int, int]]] = {}
        """Consumer group → queue → (next offset to read, when it was committed in ms)."""
        self.epochs: dict[str, dict[int, tuple[int, int]]] = {}
        """Consumer group → queue → (the highest owner epoch seen, the last commit's number)."""
        self.leases: dict[str, tuple[int, int]] = {}
        """Consumer group → (how long its offsets are kept, until when), if not for ever."""
        self.forgotten = 0
        """Deletions of consumer groups up to this index of the catalog's log are carried out."""
        self.parts = 0
        """Records that carried out a part of the deletions after `forgotten`."""
        self._fences: dict[str, Fence] = {}
        # (sender, queue) → the number of its last commit; the latest commit is last.
        self._numbers: dict[tuple[int, int], int] = {}
        self._count = 0
        # (due, group): a group with a lease has one that is due no later than its lease runs out.
        self._timers: list[tuple[int, str]] = []
        self._timer: dict[str, int] = {}

    def commit(self, command: CommitOffsets, ends: Mapping[int, int], now: int) -> Result:
        """Carry out a command; with epochs the value is a list of the queues that are fenced."""
        overtaken = self._overtaken(command)
        # Before the checks: none may refuse the repeat of a commit that was carried out.
        if overtaken and overtaken.issuperset(command.queues):
            return Changed()
        refusal = self._check(command, ends)
        if refusal is not None:
            return refusal
        name, number = command.consumer_group, command.sequence
        fenced: list[int] = []
        of_group = self.committed.get(name, {})
        owned = self.epochs.get(name, {})
        before = len(of_group) + len(owned)
        fence = self._fences.get(name)
        deletion = 0 if fence is None else fence.deletion
        epochs = command.epochs or [0] * len(command.queues)
        for queue, offset, epoch in zip(command.queues, command.offsets, epochs, strict=True):
            if epoch:
                known = owned.get(queue, (0, 0))
                if epoch < max(known[0], deletion):
                    fenced.append(queue)
                    continue
                # A later commit of this owner came first: the offset must not go back.
                if (epoch, number) < known:
                    continue
                owned[queue] = (epoch, number)
            if offset != CLAIM and queue not in overtaken:
                of_group[queue] = (offset, now)
        if of_group:
            self.committed[name] = of_group
        if owned:
            self.epochs[name] = owned
        self._count += len(of_group) + len(owned) - before
        assert self._count <= self._offsets_max, "more offsets are kept than `_check` allowed"
        # A sender that owns none of the queues must not set how long the offsets are kept.
        is_fenced = bool(fenced) and len(fenced) == len(command.queues)
        if (of_group or owned) and not is_fenced:
            self._lease(command, now)
        self._note_number(command, overtaken)
        return Changed(fenced) if command.epochs else Changed()

    def _overtaken(self, command: CommitOffsets) -> set[int]:
        """Queues for which a plain commit, or a later one of its sender, was carried out."""
        if not command.sender or command.epochs:
            return set()
        known, sender, number = self._numbers, command.sender, command.sequence
        return {each for each in command.queues if known.get((sender, each), number - 1) >= number}

    def _note_number(self, command: CommitOffsets, overtaken: set[int]) -> None:
        if not command.sender or command.epochs:
            return
        numbers = self._numbers
        for queue in command.queues:
            if queue not in overtaken:
                key = (command.sender, queue)
                numbers.pop(key, None)
                numbers[key] = command.sequence
        while len(numbers) > NUMBERS_MAX:
            del numbers[next(iter(numbers))]

    def _check(self, command: CommitOffsets, ends: Mapping[int, int]) -> Refused | None:
        queues, name = command.queues, command.consumer_group
        if len(queues) != len(command.offsets):
            return Refused(Reason.BAD_ARGUMENT, "as many offsets as queues are needed")
        if command.epochs and (len(queues) != len(command.epochs) or min(command.epochs) < 1):
            return Refused(Reason.BAD_ARGUMENT, "an epoch from 1 on is needed for each queue")
        lowest = CLAIM if command.epochs else 0
        for queue, offset in zip(queues, command.offsets, strict=True):
            if not lowest <= offset <= ends.get(queue, 0):
                message = f"offset {offset} of queue {queue} is not within 0..{ends.get(queue, 0)}"
                return Refused(Reason.OFFSET_OUT_OF_RANGE, message)
        if not 0 <= command.kept_ms <= KEPT_MS_MAX:
            return Refused(Reason.BAD_ARGUMENT, f"offsets are kept for 0 to {KEPT_MS_MAX} ms")
        of_group, owned = self.committed.get(name, {}), self.epochs.get(name, {})
        if not command.epochs and not command.is_reset and not owned.keys().isdisjoint(queues):
            message = (
                f"the queues of consumer group {name!r} are dealt out to its members: "
                "commit as one of them, with queues='assigned'"
            )
            return Refused(Reason.FENCED, message)
        added = sum(queue not in of_group for queue in set(queues))
        if command.epochs:
            added += sum(queue not in owned for queue in set(queues))
        if self._count + added > self._offsets_max:
            message = f"{self._offsets_max} committed offsets are kept at most"
            return Refused(Reason.BAD_ARGUMENT, message)
        return None

    def _lease(self, command: CommitOffsets, now: int) -> None:
        name, before = command.consumer_group, self.leases.get(command.consumer_group)
        # A reset by an operator must not change how long the offsets are kept.
        kept_ms = before[0] if command.is_reset and before else command.kept_ms
        if kept_ms:
            self.leases[name] = (kept_ms, now + kept_ms)
            self._wake(name, now + kept_ms)
            assert self._timer[name] <= now + kept_ms, "a lease that nothing ends in time"
        elif before:
            del self.leases[name]

    def _wake(self, name: str, due: int) -> None:
        """Set a timer for a group's lease, unless an earlier one is set."""
        if self._timer.get(name, due + 1) > due:
            self._timer[name] = due
            heappush(self._timers, (due, name))

    def pass_time(self, now: int) -> None:
        """Forget the offsets whose lease has run out, and fences that fall."""
        self._drop_fences(now)
        timers = self._timers
        while timers and timers[0][0] <= now:
            due, name = heappop(timers)
            if self._timer.get(name) != due:
                continue
            del self._timer[name]
            lease = self.leases.get(name)
            if lease is not None and lease[1] > now:
                self._wake(name, lease[1])
            elif lease is not None:
                self._forget(name)

    def forget(self, command: ForgetOffsets, now: int) -> Result:
        """Carry out deletions; the value is the index up to which all are carried out."""
        is_numbered = command.part >= 0
        if command.since != self.forgotten or (is_numbered and command.part != self.parts):
            return Changed(self.forgotten)
        for name, deletion in zip(command.names, command.deletions, strict=False):
            # Queues with a newer owner belong to another group of this name: they must stay.
            newer = self._newer(name, deletion) if is_numbered else set()
            if newer:
                self._drop(name, self._queues(name) - newer)
            else:
                self._forget(name)
            # Fences fall in the order of the dict: a new one goes to the end.
            self._fences.pop(name, None)
            self._fences[name] = Fence(deletion, now + FENCE_MS)
        self._drop_fences(now)
        self.parts = 0 if command.until > self.forgotten else self.parts + is_numbered
        self.forgotten = max(self.forgotten, command.until)
        return Changed(self.forgotten)

    def has_older(self, name: str, deletion: int) -> bool:
        """Whether a deletion would remove anything that is kept under a name."""
        return not self._queues(name) <= self._newer(name, deletion)

    def _newer(self, name: str, deletion: int) -> set[int]:
        """Queues of a name whose owner came after a deletion."""
        return {
            queue for queue, (epoch, _) in self.epochs.get(name, {}).items() if epoch > deletion
        }

    def _queues(self, name: str) -> set[int]:
        return {*self.committed.get(name, ()), *self.epochs.get(name, ())}

    def _drop_fences(self, now: int) -> None:
        fences = self._fences
        while fences:
            name = next(iter(fences))
            if fences[name].until > now and len(fences) <= FENCES_MAX:
                return
            del fences[name]

    def rows(self, name: str) -> int:
        """Offsets and epochs that are kept under a name."""
        return len(self.committed.get(name, ())) + len(self.epochs.get(name, ()))

    def _forget(self, name: str) -> None:
        if self.leases.pop(name, None) is not None:
            self._timer.pop(name, None)
        self._count -= len(self.committed.pop(name, {})) + len(self.epochs.pop(name, {}))
        if len(self._timers) > 2 * len(self._timer) + _SPARE_TIMERS:
            self._timers = [(due, each) for each, due in self._timer.items()]
            heapify(self._timers)
        assert self._count >= 0, "more offsets are forgotten than were kept"

    def drop_queues(self, queues: set[int]) -> None:
        """The topic of these queues was deleted: forget their offsets and epochs."""
        for name in {**self.committed, **self.epochs}:
            self._drop(name, queues)
        for name in list(self.leases):
            if name not in self.committed and name not in self.epochs:
                del self.leases[name]

    def _drop(self, name: str, queues: set[int]) -> None:
        for table in (self.committed, self.epochs):
            of_group = table.get(name, {})
            kept = {queue: each for queue, each in of_group.items() if queue not in queues}
            self._count -= len(of_group) - len(kept)
            if kept:
                table[name] = kept
            else:
                table.pop(name, None)
        assert self._count >= 0, "more offsets are dropped than were kept"

    def dump(self) -> list[Any]:
        """The committed offsets as plain values; the rest is in `dump_owned`."""
        return _plain(self.committed)

    def dump_owned(self) -> list[Any]:
        """Epochs, leases, deletions and the numbers of senders as plain values."""
        leases = [[name, *lease] for name, lease in self.leases.items()]
        fences = [[name, each.deletion, each.until] for name, each in self._fences.items()]
        numbers = [[*key, number] for key, number in self._numbers.items()]
        return [_plain(self.epochs), leases, self.forgotten, fences, self.parts, numbers]

    def load(self, committed: list[Any], owned: list[Any] | None) -> None:
        """Take the state that `dump` and, in newer snapshots, `dump_owned` gave."""
        self.committed = _by_group(committed)
        epochs, leases, *deleted = owned or ([], [])
        self.epochs = _by_group(epochs)
        self.leases = {name: (kept_ms, until) for name, kept_ms, until in leases}
        for name, (_, until) in self.leases.items():
            self._wake(name, until)
        if deleted:
            self.forgotten, fences, *newer = deleted
            self.parts = newer[0] if newer else 0
            numbers = newer[1] if len(newer) > 1 else []
            self._numbers = {(sender, queue): number for sender, queue, number in numbers}
            self._fences = {name: Fence(deletion, until) for name, deletion, until in fences}
        tables = (self.committed, self.epochs)
        self._count = sum(len(each) for table in tables for each in table.values())


def _plain(table: dict[str, dict[int, tuple[int, int]]]) -> list[Any]:
    return [
        [group, list(of_group), [list(pair) for pair in of_group.values()]]
        for group, of_group in table.items()
    ]


def _by_group(groups: list[list[Any]]) -> dict[str, dict[int, tuple[int, int]]]:
    return {
        group: {queue: (pair[0], pair[1]) for queue, pair in zip(queues, pairs, strict=True)}
        for group, queues, pairs in groups
    }
