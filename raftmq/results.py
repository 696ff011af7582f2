"""The results of applying records: plain values, the same on every replica."""

from typing import Any, NamedTuple

from .errors import Reason


class Appended(NamedTuple):
    """A batch has its place in a queue."""

    queue: int
    """The queue's number."""
    base_offset: int
    """Offset of the batch's first message."""
    count: int  # type: ignore[assignment]  # hides tuple.count, which has no use here
    """Messages in the batch."""
    timestamp: int
    """The leader's stamp in milliseconds; for a duplicate, the stamp of the repeating attempt."""
    duplicate: bool
    """True if the batch was in the queue already: this record takes no place of its own."""
    key_hashes_at: int = 0
    """Where the messages' key hashes start in the batch; 0: no message has a key."""


class Delayed(NamedTuple):
    """A batch waits until its messages fall due; they have no place in their queue yet."""

    queue: int
    """The queue's number."""
    number: int
    """The number of the first message; the others follow: see `delays`."""
    count: int  # type: ignore[assignment]  # hides tuple.count, which has no use here
    """Messages in the batch."""
    timestamp: int
    """The leader's stamp in milliseconds."""
    duplicate: bool
    """True if the batch came before; its messages may have been placed meanwhile."""


class Refused(NamedTuple):
    """A batch or command was refused: nothing changed."""

    reason: Reason
    """Why, as a closed set."""
    message: str
    """Why, in words: what was wrong and what would be right."""
    last: int = 0
    """If the request's number was overtaken: the number that overtook it."""


class Changed(NamedTuple):
    """A command took effect, or had taken effect before."""

    value: Any = None
    """The command's return value, as plain values that CBOR can carry."""


Result = Appended | Delayed | Refused | Changed


class UnsupportedVersion(Exception):
    """A committed record is of a format that this software does not know.

    Skipping the record would let replicas differ, so the node stops and asks for an upgrade.
    """
