"""A second, simple model of committed offsets: the offset of each group, and the right to commit.

The machine keeps timers and counts; the model looks through all groups at each record. For each
command the model works out the right answer and the right state, and compares.

| number | at each index |
|---|---|
| Q24 | what is committed under a name, and under which epochs, is what its commands say |

Refusals are compared without their reasons.

Left out: the bounds of all offsets, of fences, and of the numbers of plain commits.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from raftmq.machine.offsets import (
    CLAIM,
    FENCE_MS,
    KEPT_MS_MAX,
    CommitOffsets,
    ForgetOffsets,
    Offsets,
)
from raftmq.results import Changed, Refused, Result


@dataclass(slots=True)
class _Name:
    """The state under the name of a group or an instance."""

    offsets: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By queue: the next offset, and the time of that commit."""
    epochs: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By queue: the highest epoch, and the owner's last number."""
    kept_ms: int = 0
    """How long all is kept after the last commit; 0: for ever."""
    until: int = 0


class CommittedModel:
    """The offsets that groups have committed in a data group."""

    def __init__(self) -> None:
        self._names: dict[str, _Name] = {}
        # Name → the deletion before which epochs are too old, and until when this is kept.
        self._fences: dict[str, tuple[int, int]] = {}
        # (sender, queue) → the number of its last plain commit.
        self._numbers: dict[tuple[int, int], int] = {}
        self._forgotten = 0
        self.commands = 0
        """Commands that were compared."""

    def pass_time(self, now: int) -> None:
        """Forget names whose time is over, and old fences."""
        for name, one in list(self._names.items()):
            if one.kept_ms and one.until <= now:
                del self._names[name]
        self._fences = {name: one for name, one in self._fences.items() if one[1] > now}

    def follow_commit(
        self, command: CommitOffsets, result: Result, ends: Mapping[int, int], now: int
    ) -> Iterator[str]:
        """Follow a commit; yields what is wrong with its result."""
        self.commands += 1
        repeated = self._repeated(command)
        if repeated and repeated == set(command.queues):
            if result != Changed():
                yield f"{command} gave {result}, and is a repeat"
            return
        is_refused = self._is_refused(command, ends)
        if is_refused != isinstance(result, Refused):
            yield f"{command} gave {result}, and should be {'refused' if is_refused else 'done'}"
        if is_refused:
            return
        one = self._names.get(command.consumer_group, _Name())
        deletion = self._fences.get(command.consumer_group, (0, 0))[0]
        fenced = []
        for place, queue in enumerate(command.queues):
            if command.epochs:
                name = command.epochs[place], command.sequence
                known = one.epochs.get(queue, (0, 0))
                if name[0] < known[0] or name[0] < deletion:
                    fenced.append(queue)
                if name[0] < deletion or name < known:
                    continue
                one.epochs[queue] = name
            elif command.sender and queue not in repeated:
                self._numbers[command.sender, queue] = command.sequence
            if command.offsets[place] != CLAIM and queue not in repeated:
                one.offsets[queue] = command.offsets[place], now
        is_fenced = bool(fenced) and len(fenced) == len(command.queues)
        if (one.offsets or one.epochs) and not is_fenced:
            self._names[command.consumer_group] = one
            if not (command.is_reset and one.kept_ms):
                one.kept_ms = command.kept_ms
            one.until = now + one.kept_ms
        if isinstance(result, Changed) and (result.value or []) != fenced:
            yield f"{command} gave {result}, and the queues {fenced} are fenced"

    def _repeated(self, command: CommitOffsets) -> set[int]:
        """Queues for which a plain commit is a repeat, or comes after a later one of its sender."""
        if command.epochs or not command.sender:
            return set()
        last = {queue: self._numbers.get((command.sender, queue)) for queue in command.queues}
        return {queue for queue, n in last.items() if n is not None and n >= command.sequence}

    def _is_refused(self, command: CommitOffsets, ends: Mapping[int, int]) -> bool:
        lowest = CLAIM if command.epochs else 0
        one = self._names.get(command.consumer_group, _Name())
        is_owned = (
            not command.epochs and not command.is_reset and set(one.epochs) & set(command.queues)
        )
        return bool(
            len(command.queues) != len(command.offsets)
            or (command.epochs and len(command.epochs) != len(command.queues))
            or (command.epochs and min(command.epochs) < 1)
            or not all(
                lowest <= offset <= ends.get(queue, 0)
                for queue, offset in zip(command.queues, command.offsets, strict=False)
            )
            or not 0 <= command.kept_ms <= KEPT_MS_MAX
            or is_owned
        )

    def follow_forget(self, command: ForgetOffsets, result: Result, now: int) -> Iterator[str]:
        """Follow the deletion of groups; yields what is wrong with its result."""
        self.commands += 1
        # A leader that does not know the last deletion names an earlier one, and changes nothing.
        if command.since == self._forgotten:
            for name, deletion in zip(command.names, command.deletions, strict=True):
                self._names.pop(name, None)
                self._fences[name] = deletion, now + FENCE_MS
            self._forgotten = max(self._forgotten, command.until)
        if result != Changed(self._forgotten):
            yield f"{command} gave {result}, and deletions are done up to {self._forgotten}"

    def drop_queues(self, queues: set[int]) -> None:
        """Forget these queues, whose topic is gone."""
        for name, one in list(self._names.items()):
            for table in (one.offsets, one.epochs):
                for queue in queues & set(table):
                    del table[queue]
            if not one.offsets and not one.epochs:
                del self._names[name]

    def compare(self, real: Offsets) -> Iterator[str]:
        """Yields where the machine's state differs from the model's."""
        pairs = (
            ("offsets", real.committed, {n: one.offsets for n, one in self._names.items()}),
            ("epochs", real.epochs, {n: one.epochs for n, one in self._names.items()}),
        )
        for what, found, known in pairs:
            expected = {name: table for name, table in known.items() if table}
            if found != expected:
                yield f"{what} {found} stand, and {expected} should"
