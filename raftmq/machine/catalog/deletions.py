"""Consumer groups that were deleted: a part of the catalog, and how it reaches the data groups.

A data group keeps committed offsets and owner epochs under a consumer group's *name*, and cannot
see by itself that the name is gone: a group that reads by offset needs no catalog entry. So a
deletion stays here, with the index of the record that made it, until each data group has taken it
over.

    delete "billing" (index 40)  -> kept here
    data group 1: forget "billing", up to 40;  data group 2 has no leader
    system group: 1 has come to 40, 2 to 0     -> kept
    data group 2: forget "billing", up to 40
    system group: all have come to 40          -> `PruneDeletions(40)`: only its index is kept

Invariants:
- Deletions are ordered by their index; a name has one at the most, the last.
- A deletion is carried out here only after every data group has carried it out.
- One that is asked for again deletes nothing that came after the first time: of deletions that are
  carried out the last 10,000 are known, and older requests are refused.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from raftmq.results import Changed, Result

DONE_MAX = 10_000
"""Deletions that are carried out and still known."""


class PruneDeletions(msgspec.Struct, frozen=True, array_like=True, tag="prune_deletions"):
    """Every data group has carried out the deletions up to an index."""

    until: int
    """The index of the last one."""


class Deletion(msgspec.Struct, frozen=True, array_like=True):
    """A consumer group that was deleted."""

    name: str
    """The group's name; a later group may have the name again."""
    index: int
    """Index of the catalog's record that deleted it. Owner epochs of the deleted group are lower,
    those of a later group with this name are higher."""
    has_instances: bool
    """True: it broadcast, so `name@instance` is gone, too."""


class Deletions:
    """All deletions that some data group may not have carried out."""

    def __init__(self) -> None:
        self.last = 0
        """Index of the last one, also if it is forgotten by now; 0: there was none."""
        self._of_name: dict[str, Deletion] = {}
        # Those that are carried out: name → index, the latest last; and up to where some are lost.
        self._done: dict[str, int] = {}
        self._lost = 0

    def __len__(self) -> int:
        return len(self._of_name)

    def after(self, index: int) -> Iterator[Deletion]:
        """Deletions above `index`, in order."""
        return (each for each in self._of_name.values() if each.index > index)

    def find(self, name: str) -> Deletion | None:
        """The deletion of a name; None: there is none that is not carried out everywhere."""
        return self._of_name.get(name)

    def add(self, deletion: Deletion) -> None:
        """One more; it takes the place of an earlier one of its name."""
        assert deletion.index >= self.last, f"{deletion.index} after {self.last}"
        self._of_name.pop(deletion.name, None)
        self._of_name[deletion.name] = deletion
        self.last = deletion.index

    def prune(self, until: int) -> Result:
        """Forget those up to an index; the value is how many those were."""
        before = len(self._of_name)
        for deletion in [d for d in self._of_name.values() if d.index <= until]:
            del self._of_name[deletion.name]
            self._done.pop(deletion.name, None)
            self._done[deletion.name] = deletion.index
        while len(self._done) > DONE_MAX:
            self._lost = self._done.pop(next(iter(self._done)))
        assert self._lost <= self.last, "a deletion is lost that was never made"
        return Changed(before - len(self._of_name))

    def since(self, name: str, index: int) -> int | None:
        """The index of the last deletion of a name if that came after another index, else 0; None:
        no longer known."""
        pending = self._of_name.get(name)
        last = self._done.get(name, 0) if pending is None else pending.index
        if last > index:
            return last
        return None if index < self._lost else 0

    def dump(self) -> list[Any]:
        """All of it as plain values."""
        return [self.last, list(self._of_name.values()), list(self._done.items()), self._lost]

    def load(self, state: list[Any]) -> None:
        """Take the state that `dump` gave."""
        self.last, deletions, *done = state
        if done:
            self._done, self._lost = dict(done[0]), done[1]
        for deletion in msgspec.convert(deletions, list[Deletion]):
            self._of_name[deletion.name] = deletion
