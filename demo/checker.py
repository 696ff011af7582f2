"""The proof: what was sent and acked, against what each consumer group read.

A `Ledger` is told of each message before it is sent and when it is acked. A `Witness`, one for each
consumer group, is told of each message that was read, in the order of reading. Neither asks the
cluster anything. A message is known by its property `row`; what else there is to it is compared.

| finding | a message that |
|---|---|
| `LOST` | was acked and not read |
| `DUPLICATED` | was read a second time |
| `ALTERED` | differs from what was sent: the body, key, tag or a property |
| `INVENTED` | was never sent, or was refused for good |
| `REORDERED` | was read after a later one of the same key |
| `MISPLACED` | was read at another queue or offset than its receipt says |

A message whose outcome is unknown may be read once, or not at all.

Invariants:
- Memory is bounded by the number of messages sent: about 50 bytes each, and 9 for each group.
  Bodies and properties are kept as digests of 64 bits.
- A finding that was made is never taken back; all are counted, the first few are kept in words.

Left out: order between messages of different keys, and of messages without a key: nobody promised
any.
"""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b

import msgspec

EXAMPLES_MAX = 3
_NOWHERE = -1
_QUEUE_SHIFT = 44

Value = int | float | str | bytes | bool
_pack = msgspec.msgpack.Encoder(order="sorted").encode


class Kind(Enum):
    """What can be wrong: see the table of this module."""

    LOST = "lost"
    DUPLICATED = "duplicated"
    ALTERED = "altered"
    INVENTED = "invented"
    REORDERED = "reordered"
    MISPLACED = "misplaced"


@dataclass(slots=True)
class Finding:
    """All messages of one group with which the same is wrong."""

    count: int = 0
    """How many."""
    examples: list[str] = field(default_factory=list)
    """The first of them, in words."""


class Ledger:
    """What the producer knows: sent, acked, where."""

    def __init__(self, rows: int) -> None:
        """`rows`: messages are numbered from 0 to one less."""
        self.rows = rows
        """How many messages there may be."""
        self.sent = 0
        """How many were sent."""
        self.acked = 0
        """How many were acked."""
        self.keyless = 0
        """How many of those sent have no key."""
        self._is_sent = bytearray(rows)
        self._is_acked = bytearray(rows)
        self._is_refused: set[int] = set()
        self._body = array("Q", bytes(8 * rows))
        self._props = array("Q", bytes(8 * rows))
        self._place = array("q", [_NOWHERE]) * rows
        # References: a key or tag that occurs often is one object.
        self._key: list[str | None] = [None] * rows
        self._tag: list[str | None] = [None] * rows
        self._texts: dict[str, str] = {}

    def send(
        self, row: int, body: bytes, key: str | None, tag: str | None, props: Mapping[str, Value]
    ) -> None:
        """Note a message that is about to be sent."""
        assert not self._is_sent[row], f"row {row} was sent already"
        self._is_sent[row] = 1
        self._body[row] = _digest(body)
        self._props[row] = _digest(_pack(props))
        self._key[row] = None if key is None else self._texts.setdefault(key, key)
        self._tag[row] = None if tag is None else self._texts.setdefault(tag, tag)
        self.sent += 1
        self.keyless += key is None

    def ack(self, row: int, queue: int, offset: int | None) -> None:
        """Note the receipt of a message; `offset` None: stored, where is not known."""
        assert self._is_sent[row], f"row {row} was acked and not sent"
        assert not self._is_acked[row], f"row {row} was acked already"
        self._is_acked[row] = 1
        self.acked += 1
        if offset is not None:
            self._place[row] = queue << _QUEUE_SHIFT | offset

    def refuse(self, row: int) -> None:
        """Note that a message is not stored and never will be: nobody may read it."""
        assert self._is_sent[row], f"row {row} was refused and not sent"
        self._is_refused.add(row)

    def is_refused(self, row: int) -> bool:
        """True if it was refused."""
        return row in self._is_refused

    def is_sent(self, row: object) -> bool:
        """True if there is a message of that number; whatever `row` is."""
        return type(row) is int and 0 <= row < self.rows and self._is_sent[row] == 1

    def is_acked(self, row: int) -> bool:
        """True if its receipt came."""
        return self._is_acked[row] == 1

    def key(self, row: int) -> str | None:
        """The key it was sent with; None: without one."""
        return self._key[row]

    def place(self, row: int) -> int:
        """Queue and offset of its receipt, packed; -1: there is none, or it does not say."""
        return self._place[row]

    def differences(
        self, row: int, body: bytes, key: str | None, tag: str | None, props: Mapping[str, Value]
    ) -> list[str]:
        """The names of what is not as it was sent."""
        found = []
        if _digest(body) != self._body[row]:
            found.append("body")
        if key != self._key[row]:
            found.append("key")
        if tag != self._tag[row]:
            found.append("tag")
        if _digest(_pack(props)) != self._props[row]:
            found.append("properties")
        return found


class Witness:
    """What one consumer group saw."""

    def __init__(self, ledger: Ledger, name: str, *, is_ordered: bool = True) -> None:
        self.name = name
        """The consumer group, or the instance of one."""
        self.is_ordered = is_ordered
        """Whether it is promised order by key."""
        self.read = 0
        """How many messages it read, whatever was wrong with them."""
        self.findings: dict[Kind, Finding] = {kind: Finding() for kind in Kind}
        """What is wrong, so far."""
        self._ledger = ledger
        self._place = array("q", [_NOWHERE]) * ledger.rows
        self._is_read = bytearray(ledger.rows)
        self._last_of_key: dict[str, int] = {}

    @property
    def is_satisfied(self) -> bool:
        """True if nothing is wrong, so far."""
        return all(finding.count == 0 for finding in self.findings.values())

    def see(
        self,
        body: bytes,
        key: str | None,
        tag: str | None,
        props: Mapping[str, Value],
        *,
        queue: int,
        offset: int,
    ) -> None:
        """Take in the next message that was read."""
        self.read += 1
        row = props.get("row")
        place = queue << _QUEUE_SHIFT | offset
        if not self._ledger.is_sent(row):
            words = f"row {row!r} was never sent, read at {_words(place)}: {body[:40]!r}"
            self._find(Kind.INVENTED, words)
            return
        assert isinstance(row, int)
        changed = self._ledger.differences(row, body, key, tag, props)
        if changed:
            self._find(Kind.ALTERED, f"row {row} at {_words(place)}: another {', '.join(changed)}")
        if self._is_read[row]:
            first = _words(self._place[row])
            self._find(Kind.DUPLICATED, f"row {row} at {_words(place)}, and before at {first}")
            return
        self._is_read[row] = 1
        self._place[row] = place
        # The key it was sent with: an altered one would make its neighbours look out of order.
        sent_key = self._ledger.key(row)
        if sent_key is not None and self.is_ordered:
            self._check_order(row, sent_key, place)

    def has_read(self, row: object) -> bool:
        """True if it read this message already; whatever `row` is."""
        return isinstance(row, int) and self._ledger.is_sent(row) and self._is_read[row] == 1

    def finish(self) -> None:
        """Nothing more will be read: look for what is missing or in the wrong place. Once."""
        for row in range(self._ledger.rows):
            if self._is_read[row]:
                self._check_place(row)
                if self._ledger.is_refused(row):
                    words = f"row {row} was refused, and read at {_words(self._place[row])}"
                    self._find(Kind.INVENTED, words)
            elif self._ledger.is_acked(row):
                self._find(Kind.LOST, f"row {row}, acked at {_words(self._ledger.place(row))}")

    def _check_order(self, row: int, key: str, place: int) -> None:
        last = self._last_of_key.get(key, -1)
        if row < last:
            words = f"row {row} at {_words(place)} after row {last}, both of key {key}"
            self._find(Kind.REORDERED, words)
        else:
            self._last_of_key[key] = row

    def _check_place(self, row: int) -> None:
        receipt, place = self._ledger.place(row), self._place[row]
        if receipt not in (_NOWHERE, place):
            words = f"row {row} at {_words(place)}, its receipt says {_words(receipt)}"
            self._find(Kind.MISPLACED, words)

    def _find(self, kind: Kind, words: str) -> None:
        finding = self.findings[kind]
        finding.count += 1
        if len(finding.examples) < EXAMPLES_MAX:
            finding.examples.append(words)


def _words(place: int) -> str:
    if place == _NOWHERE:
        return "an unknown place"
    return f"queue {place >> _QUEUE_SHIFT}, offset {place & ((1 << _QUEUE_SHIFT) - 1)}"


def _digest(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest())
