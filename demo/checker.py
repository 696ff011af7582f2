"""The proof: sent and acked messages, compared with those that each consumer group read.

A `Ledger` notes each message before it is sent and when it is acked. A `Witness`, one for each
consumer group, notes each message that was read, in the order of reading. Neither asks the cluster
anything. The property `row` identifies a message; all its other parts are compared.

| finding | a message that |
|---|---|
| `LOST` | was acked and not read |
| `DUPLICATED` | was read a second time |
| `ALTERED` | differs from the sent one in its body, key, tag or a property |
| `INVENTED` | was never sent, or was refused for good |
| `REORDERED` | was read after a later one of the same key |
| `MISPLACED` | was read at another queue or offset than its receipt says |

A message whose outcome is unknown may be read once, or not at all.

Invariants:
- Memory is bounded by the number of messages sent: about 50 bytes each, and 9 for each group.
  Bodies and properties are kept as digests of 64 bits.
- A finding that was made is never taken back; all are counted, the first few are kept in words.

Left out: order between messages of different keys, and of messages without a key: it is not
promised.
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
    """Kinds of findings: see the table of this module."""

    LOST = "lost"
    DUPLICATED = "duplicated"
    ALTERED = "altered"
    INVENTED = "invented"
    REORDERED = "reordered"
    MISPLACED = "misplaced"


@dataclass(slots=True)
class Finding:
    """All messages of one group with the same fault."""

    count: int = 0
    """Number of messages."""
    examples: list[str] = field(default_factory=list)
    """The first messages, in words."""


class Ledger:
    """The producer's books: sent and acked messages, and their places."""

    def __init__(self, rows: int) -> None:
        """`rows`: messages are numbered from 0 to `rows` - 1."""
        self.rows = rows
        """Highest number of messages."""
        self.sent = 0
        """Number of sent messages."""
        self.acked = 0
        """Number of acked messages."""
        self.keyless = 0
        """Number of sent messages without a key."""
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
        """Note the receipt of a message; `offset` None: stored at an unknown place."""
        assert self._is_sent[row], f"row {row} was acked and not sent"
        assert not self._is_acked[row], f"row {row} was acked already"
        self._is_acked[row] = 1
        self.acked += 1
        if offset is not None:
            self._place[row] = queue << _QUEUE_SHIFT | offset

    def refuse(self, row: int) -> None:
        """Note that a message is not stored and never will be: it must not be read."""
        assert self._is_sent[row], f"row {row} was refused and not sent"
        self._is_refused.add(row)

    def is_refused(self, row: int) -> bool:
        """Whether the message was refused."""
        return row in self._is_refused

    def is_sent(self, row: object) -> bool:
        """Whether a message of that number was sent; `row` may have any type."""
        return type(row) is int and 0 <= row < self.rows and self._is_sent[row] == 1

    def is_acked(self, row: int) -> bool:
        """Whether the message's receipt came."""
        return self._is_acked[row] == 1

    def key(self, row: int) -> str | None:
        """The key that the message was sent with; None: no key."""
        return self._key[row]

    def place(self, row: int) -> int:
        """Queue and offset of the receipt, packed; -1: no receipt, or one that names no place."""
        return self._place[row]

    def differences(
        self, row: int, body: bytes, key: str | None, tag: str | None, props: Mapping[str, Value]
    ) -> list[str]:
        """Names of the parts that differ from the sent message."""
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
    """The messages that one consumer group read."""

    def __init__(self, ledger: Ledger, name: str, *, is_ordered: bool = True) -> None:
        self.name = name
        """Name of the consumer group, or of an instance."""
        self.is_ordered = is_ordered
        """Whether order by key is promised."""
        self.read = 0
        """Number of messages read, with and without faults."""
        self.findings: dict[Kind, Finding] = {kind: Finding() for kind in Kind}
        """The findings so far."""
        self._ledger = ledger
        self._place = array("q", [_NOWHERE]) * ledger.rows
        self._is_read = bytearray(ledger.rows)
        self._last_of_key: dict[str, int] = {}

    @property
    def is_satisfied(self) -> bool:
        """Whether there is no finding so far."""
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
        """Take in the next message read."""
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
        # The sent key: an altered one would make the neighbours look out of order.
        sent_key = self._ledger.key(row)
        if sent_key is not None and self.is_ordered:
            self._check_order(row, sent_key, place)

    def has_read(self, row: object) -> bool:
        """Whether the message was read already; `row` may have any type."""
        return isinstance(row, int) and self._ledger.is_sent(row) and self._is_read[row] == 1

    def finish(self) -> None:
        """End the reading: look for missing and misplaced messages. Called once."""
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
