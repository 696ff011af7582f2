"""The catalog's commands about topics."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from raftmq.errors import Reason
from raftmq.machine.queue_numbers import SYSTEM_GROUP
from raftmq.results import Refused

if TYPE_CHECKING:
    # Clients import the commands, and no catalog.
    from .state import CatalogState, Topic


class CreateTopic(msgspec.Struct, frozen=True, array_like=True, tag="create_topic"):
    """Create a topic."""

    name: str
    """1 to 127 of `A-Z a-z 0-9 . _ -`, starting with a letter, digit or underscore."""
    queues: int
    """How many queues, 1 to 65,536."""
    beside: str = ""
    """A topic: queue n of both lies in the same data group, as long as both have one; empty: the
    topic begins where its turn is."""


class AlterTopic(msgspec.Struct, frozen=True, array_like=True, tag="alter_topic"):
    """Give a topic more queues."""

    name: str
    """The topic."""
    queues: int
    """The new number of queues, not below the present one."""
    id: int = 0
    """The topic's number: nothing is done to a later one of its name. 0, which older software
    wrote: that of the name."""


class DeleteTopic(msgspec.Struct, frozen=True, array_like=True, tag="delete_topic"):
    """Delete a topic. Its messages can no longer be reached, and go with the log's retention."""

    name: str
    """The topic."""
    id: int = 0
    """As of `AlterTopic`."""


def unknown_topic(name: str) -> Refused:
    """The refusal of a command that names an unknown topic."""
    return Refused(Reason.UNKNOWN_TOPIC, f"there is no topic {name!r}: create it first")


def spread(catalog: "CatalogState", beside: "Topic | None", first: int, end: int) -> list[int]:
    """The groups of a topic's queues from `first` up to `end`: those of `beside`'s, then those with
    the fewest queues of the topic, in turn. Without `beside` queue 0 takes the next turn."""
    groups = [number for number in sorted(catalog.groups) if number != SYSTEM_GROUP]
    at = catalog.topic_last - 1 if beside is None else groups.index(beside.groups[0])
    having = [] if beside is None else beside.groups[:end]
    turns = [groups[(at + n + len(having)) % len(groups)] for n in range(len(groups))]
    return having[first:] + dealt(turns, having, end - max(first, len(having)))


def dealt(turns: Sequence[int], having: Iterable[int], count: int) -> list[int]:
    """The partition groups of `count` more queues of a topic: those with the fewest of its queues,
    in turn.

    Args:
        turns: all groups, the one whose turn it is first.
        having: the groups of the queues that the topic has.

    >>> dealt([2, 3, 1], [1, 2, 3, 1], 4), dealt([2, 3, 4, 1], [1, 2, 3, 1], 4)
    ([2, 3, 1, 2], [4, 2, 3, 4])
    """
    counts, found = Counter(having), list[int]()
    while len(found) < count:
        least = min(counts[group] for group in turns)
        due = [group for group in turns if counts[group] == least]
        counts.update(due)
        found += due
        at = turns.index(due[-1]) + 1
        turns = [*turns[at:], *turns[:at]]
    return found[:count]
