"""The audit log: who did which act of administration, from where, when, with which result.

An act that is a command of the catalog comes with its author in one record (`catalog.Authored`),
and its entry is made when the command is applied. An act that other logs carry out is noted here
before it begins, and again when its outcome is known:

| record | entry |
|---|---|
| `Authored(act, CreateTopic("orders", 8))` | 7: `create_topic`, result `done` |
| the same again, by `Once` | - |
| `BeginAct(act)` | 8: `redrive_dead`, result `begun` |
| `EndAct(8, "done")` | 8: the result is `done` |

The node that took the request writes the words of an entry, so a later version of the software may
choose other words without a difference between replicas.

At the bound the user with most entries loses its oldest one, so a user who makes many entries
pushes out its own:

| entries of alice, of bob, of carol | entry of | loses its oldest |
|---|---|---|
| 9,990, 5, 5 | bob | alice |
| 5,000, 5,000, 0 | carol | alice or bob: of these two, the one whose oldest entry is older |

Invariants:
- A number is never used twice, and numbers rise: one that is missing is of an entry that went.
- Entries and their texts are bounded. The newest entry stays, and with `n` users so do the newest
  `ENTRIES_MAX // n` of each.
- The entry that goes depends on the kept entries alone, so replicas stay equal over snapshots.
- An entry with the result `begun` says that its act may or may not have happened.
- No entry holds a key, a digest or a salt: the words are made of names and numbers.

Sources: the stages of an event in Kubernetes' audit log, RequestReceived and ResponseComplete.
"""

from bisect import bisect_left, bisect_right, insort
from collections import deque
from typing import Any

import msgspec

from raftmq.results import Changed, Result

ENTRIES_MAX = 10_000
"""Entries that are kept: 0.8 MB of a snapshot, and 10 MB if all their texts are as long as they
may be."""
WORD_BYTES_MAX = 40
"""The longest result, kind of act and kind of resource."""
AUTHOR_BYTES_MAX = 127
"""The longest name of a user, and the longest address."""
NAME_BYTES_MAX = 255
"""The longest name of a resource: `group@instance`, both of 127 characters, fits."""
DETAIL_BYTES_MAX = 400
"""The longest detail: a rule with two names of 127 characters fits."""

BEGUN, DONE, UNCHANGED = "begun", "done", "unchanged"
"""Results; others are the code of the refusal."""


class AdminAct(msgspec.Struct, frozen=True, array_like=True):
    """An act of administration in words, and its author."""

    user: str
    """The user; empty: access control is off."""
    address: str
    """The address that the request came from; empty: the node's own machine."""
    what: str = ""
    """The kind of act, such as `create_topic`. Empty: the act makes no entry, and only the author
    of its creations is noted."""
    resource: str = ""
    """The kind of resource, such as `topic`."""
    name: str = ""
    """The name of the resource; empty: the cluster."""
    detail: str = ""
    """Further words, for people."""


class BeginAct(msgspec.Struct, frozen=True, array_like=True, tag="begin_act"):
    """Note an act that another log is about to carry out; the value is the entry's number."""

    act: AdminAct
    """The act."""


class EndAct(msgspec.Struct, frozen=True, array_like=True, tag="end_act"):
    """Note the outcome of an act that has begun; the value is whether that changed its entry."""

    number: int
    """The number of its entry."""
    result: str
    """`DONE`, or the code of the refusal."""


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """An entry of the audit log."""

    number: int
    """Its number, from 1; never used again."""
    at_ms: int
    """When, by the leader's stamp in milliseconds."""
    act: AdminAct
    """Who did what."""
    result: str
    """`DONE`, `UNCHANGED`, `BEGUN`, or the code of the refusal."""


class Audit:
    """The last entries."""

    def __init__(self) -> None:
        self.last = 0
        """The number of the newest entry; 0: there was none."""
        self.entries: dict[int, Entry] = {}
        """Entries by number, the newest last."""
        # User → the numbers of its entries, the oldest first.
        self._numbers: dict[str, deque[int]] = {}
        # A row for each user, sorted: the last one is of the user that loses the next entry.
        self._rows: list[tuple[int, int, str]] = []

    def add(self, act: AdminAct, now: int, result: str) -> int:
        """Add an entry; returns its number."""
        self.last += 1
        entry = self.entries[self.last] = Entry(self.last, now, _cut(act), result)
        user = entry.act.user
        if user in self._numbers:
            del self._rows[bisect_left(self._rows, self._row(user))]
        self._numbers.setdefault(user, deque()).append(self.last)
        insort(self._rows, self._row(user))
        self._drop_surplus()
        assert self.last in self.entries, "the newest entry went"
        return self.last

    def end(self, number: int, result: str) -> Result:
        """Note the outcome of an act, unless it is known, or its entry is gone."""
        entry = self.entries.get(number)
        if entry is None or entry.result != BEGUN:
            return Changed(False)
        self.entries[number] = msgspec.structs.replace(entry, result=_cut_text(result))
        return Changed(True)

    def between(self, after: int, before: int) -> list[Entry]:
        """The entries with numbers between these two, the newest first."""
        numbers = list(self.entries)
        found = numbers[bisect_right(numbers, after) : bisect_left(numbers, before)]
        return [self.entries[number] for number in reversed(found)]

    def dump(self) -> list[Any]:
        """All of it as plain values."""
        return [self.last, list(self.entries.values())]

    def load(self, state: list[Any]) -> None:
        """Take the state that `dump` gave."""
        self.last, entries = state
        self.entries = {entry.number: entry for entry in msgspec.convert(entries, list[Entry])}
        for number, entry in self.entries.items():
            self._numbers.setdefault(entry.act.user, deque()).append(number)
        self._rows = sorted(map(self._row, self._numbers))

    def _row(self, user: str) -> tuple[int, int, str]:
        """Sorts users: more entries later, and among equals the one with the older oldest entry."""
        numbers = self._numbers[user]
        return len(numbers), -numbers[0], user

    def _drop_surplus(self) -> None:
        while len(self.entries) > ENTRIES_MAX:
            _, _, user = self._rows.pop()
            numbers = self._numbers[user]
            del self.entries[numbers.popleft()]
            if numbers:
                insort(self._rows, self._row(user))
            else:
                del self._numbers[user]


def _cut(act: AdminAct) -> AdminAct:
    return AdminAct(
        _cut_text(act.user, AUTHOR_BYTES_MAX),
        _cut_text(act.address, AUTHOR_BYTES_MAX),
        _cut_text(act.what),
        _cut_text(act.resource),
        _cut_text(act.name, NAME_BYTES_MAX),
        _cut_text(act.detail, DETAIL_BYTES_MAX),
    )


def _cut_text(text: str, bytes_max: int = WORD_BYTES_MAX) -> str:
    if len(text) * 4 <= bytes_max:
        return text
    return text.encode()[:bytes_max].decode(errors="ignore")
