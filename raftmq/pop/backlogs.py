"""The backlogs of a group by queue, each made when it is first needed.

A topic may have 65,536 queues, and a group begins with all of them in one record. So a queue from
which nothing was taken yet is only a number here: the offset at which the group begins to read it.

Invariants:
- Whether a backlog is made changes only the time that a call takes, not what goes out nor a
  snapshot.
- The order is that in which the queues were followed, on every replica.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any
from weakref import WeakMethod

from .backlog import Backlog

FED_QUEUES_MAX = 512
"""Queues of a group that are fed at a time."""


class Backlogs(MutableMapping[int, Backlog]):
    """Queue → the messages of the queue that are not settled."""

    __slots__ = ("_begun", "_group_make", "_made")

    def __init__(self, make: Callable[[int], Backlog]) -> None:
        """`make`, a method of the group, gives the backlog of a queue that is read from an offset
        on."""
        # A group that refers to itself would stay in memory until Python looks for cycles.
        self._group_make = WeakMethod(make)
        self._begun: dict[int, int] = {}
        self._made: dict[int, Backlog] = {}

    def __getitem__(self, queue: int) -> Backlog:
        found = self._made.get(queue)
        if found is None:
            found = self._made[queue] = self._make(queue)
        return found

    def __setitem__(self, queue: int, backlog: Backlog) -> None:
        self._begun.setdefault(queue, backlog.begun)
        self._made[queue] = backlog

    def __delitem__(self, queue: int) -> None:
        del self._begun[queue]
        self._made.pop(queue, None)

    def __contains__(self, queue: object) -> bool:
        return queue in self._begun

    def __iter__(self) -> Iterator[int]:
        return iter(self._begun)

    def __len__(self) -> int:
        return len(self._begun)

    def _make(self, queue: int) -> Backlog:
        make = self._group_make()
        assert make is not None, "the group is gone"
        return make(self._begun[queue])

    def begin(self, starts: Mapping[int, int]) -> None:
        """Read queues from these offsets on; none of them is read already."""
        assert self._begun.keys().isdisjoint(starts), "a queue begins twice"
        self._begun.update(starts)

    def made(self) -> Iterator[tuple[int, Backlog]]:
        """The queues whose backlogs are made, in the order of all."""
        return ((queue, self._made[queue]) for queue in self._begun if queue in self._made)

    def look(self, queue: int) -> Backlog:
        """The backlog of a queue, to be read only: one that is not made yet is not kept."""
        return self._made.get(queue) or self._make(queue)

    def feeds(self, underfed: dict[int, None], ends: Mapping[int, int]) -> list[tuple[int, int]]:
        """Of a group that is fed: the queues that need feeding, each with the offset to feed from,
        at most the first `FED_QUEUES_MAX` of `underfed` by number. Others leave `underfed`."""
        found: list[tuple[int, int]] = []
        for queue in sorted(underfed):
            if len(found) == FED_QUEUES_MAX:
                break
            backlog, end = self._made.get(queue), ends.get(queue, 0)
            known = self._begun[queue] if backlog is None else backlog.known
            if known < end if backlog is None else backlog.wants_feed(end):
                found.append((queue, known))
            else:
                del underfed[queue]
        return found

    def drop_idle(
        self, queues: "OrderedDict[int, None]", ends: Mapping[int, int], *, is_fed: bool
    ) -> None:
        """Drop the first of some queues, as long as they have nothing to hand out and no backlog.

        When a group begins these may be tens of thousands: they get no backlog. Of a group that is
        fed, nothing goes out of a queue before its first feed, which makes the backlog.
        """
        made, begun = self._made, self._begun
        while queues:
            queue = next(iter(queues))
            if queue in made or (begun[queue] < ends.get(queue, 0) and not is_fed):
                return
            queues.popitem(last=False)

    def audit(self, found: Mapping[str, Iterable[tuple[int, int]]]) -> dict[str, int]:
        """Messages in each state; asserts that the counts of each queue add up, and agree with what
        was found: by state, queues and numbers of messages."""
        recounted: dict[tuple[int, str], int] = Counter()
        for word, messages in found.items():
            for queue, count in messages:
                recounted[queue, word] += count
        assert all(queue in self._begun for queue, _ in recounted), "messages of other queues"
        totals = Counter[str]()
        for queue in self._begun:
            backlog = self.look(queue)
            counts = backlog.counts
            for word in found:
                assert recounted[queue, word] == getattr(counts, word), (queue, word, counts)
            begun = backlog.next - backlog.begun - backlog.jumped
            assert sum(counts) == begun, f"{counts} of queue {queue} do not add up to {begun}"
            totals.update(counts._asdict())
        return dict(totals)

    def dump(self) -> list[list[Any]]:
        """All backlogs as plain values."""
        # Those that are not made differ in their beginnings alone, of which there are few.
        fresh: dict[int, list[Any]] = {}
        dumped: list[list[Any]] = []
        for queue, begun in self._begun.items():
            backlog = self._made.get(queue)
            if backlog is None and begun not in fresh:
                fresh[begun] = self._make(queue).dump()
            dumped.append([queue, *(fresh[begun] if backlog is None else backlog.dump())])
        return dumped

    def load(self, values: Iterable[list[Any]]) -> None:
        """Take the state that `dump` gave. Backlogs that are as they began are not made."""
        make = self._group_make()
        assert make is not None, "the group is gone"
        fresh: dict[int, list[Any]] = {}
        for queue, begun, *state in values:
            if begun not in fresh:
                _, *fresh[begun] = make(begun).dump()
            if state == fresh[begun]:
                self._begun[queue] = begun
            else:
                backlog = make(begun)
                backlog.load([begun, *state])
                self[queue] = backlog
