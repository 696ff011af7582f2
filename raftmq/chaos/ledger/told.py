"""The matches that feeds named to groups with a filter, from the committed log.

    Resubscribe(first filter of g)      earlier feeds of g are void
    Feed(g, base, count, mask)          names which messages match for g
    a hand-out of g                     fresh messages among those that were named as matches

Invariants:
- A message that goes out for the first time matches by a feed since the first filter came.
- A feed that was made with another filter than the log knows is not taken in.

Left out: whether the leader told the truth; groups whose filter is taken away are not judged until
they have a filter again.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from raftmq.machine.subscriptions import Resubscribe
from raftmq.pop.calls import Feed


class _Group(NamedTuple):
    topic: int
    name: str
    told: dict[int, set[int]]
    """By queue: fresh offsets that match by a feed since the first filter came."""


class ToldModel:
    """The filters of a data group's log, and the matches that feeds named under them."""

    def __init__(self) -> None:
        self._version = 0
        # (topic, name) → the number of the latest filter; none: everything matches.
        self._filters: dict[tuple[int, str], int] = {}
        self._groups: dict[int, _Group] = {}

    def open(self, number: int, topic: int, name: str) -> None:
        """A group is served from now on, unless it is already."""
        self._groups.setdefault(number, _Group(topic, name, {}))

    def close(self, number: int) -> None:
        """A group is gone."""
        self._groups.pop(number, None)

    def resubscribe(self, command: Resubscribe) -> list[int]:
        """Filters come, change and go; returns the groups that gained a filter or lost theirs."""
        turned: list[int] = []
        # A command of a leader that did not know the latest version changes nothing.
        if not command.base == self._version <= command.version:
            return turned
        self._version = command.version
        for change in command.changes:
            key = (change.topic, change.consumer_group)
            has_turned = bool(change.number) != (key in self._filters)
            for number, group in self._groups.items():
                if has_turned and (group.topic, group.name) == key:
                    group.told.clear()
                    turned.append(number)
            if change.number:
                self._filters[key] = change.number
            else:
                self._filters.pop(key, None)
        return turned

    def feed(self, command: Feed, count: int) -> Iterator[str]:
        """Follow a feed of which `count` messages were taken in; yields what is wrong with that."""
        group = self._groups[command.number]
        wanted = self._filters.get((group.topic, group.name), 0)
        if count and command.subscription not in (-1, wanted):
            yield f"Q23 {command.subscription} is the filter of a feed, and {wanted} holds"
        if count and wanted and command.mask is None:
            yield f"Q23 a feed says that all match, and filter {wanted} holds"
        bits = -1 if command.mask is None else int.from_bytes(command.mask, "little")
        matching = (command.base + n for n in range(count) if bits >> n & 1)
        if wanted:
            group.told.setdefault(command.queue, set()).update(matching)

    def why_not(self, number: int, queue: int, fresh: Iterable[int]) -> Iterator[str]:
        """Why these messages must not go out for the first time."""
        group = self._groups.get(number)
        if group is None or (group.topic, group.name) not in self._filters:
            return
        told = group.told.get(queue, set())
        for offset in fresh:
            if offset not in told:
                yield f"Q23 offset {offset} is handed out, and was not told to match the filter"
                return
            told.discard(offset)
