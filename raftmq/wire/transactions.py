"""The messages about transactions.

| kind | request, answer | body of the request | body of the answer |
|---|---|---|---|
| BEGIN | `BeginTransaction`, `messages.Done` | - | - |
| END | `EndTransaction`, `TransactionEnded` | - | - |
| TRANSACTIONS | `FindTransactions`, `FoundTransactions` | - | - |

The messages of a transaction are sent with PRODUCE: its number is their producer id, and their
delivery time 2^62 - 1. Each of these requests may be repeated.

A transaction with inputs is a *hand-off*: its commit acknowledges messages that consumers have in
hand, or is a rollback if one is no longer there. It has no producer group, and is rolled back by
itself when a lease of its inputs ends.
"""

import msgspec

from .messages import _Wire


class TransactionInput(_Wire, frozen=True):
    """Messages of one lease that a commit acknowledges."""

    number: int
    """The attachment's number."""
    consumer: int
    """The consumer that has the messages in hand."""
    token: int
    """The lease."""
    base: int
    """Offset of the first message."""
    bits: bytes
    """Which: little-endian, bit n is the message at `base + n`."""


class BeginTransaction(_Wire, frozen=True):
    """Open a transaction in one partition group, where all its messages will stand."""

    partition_group: int
    """The partition group."""
    transaction: int
    """Its number: random, 1 to 2^63 - 1."""
    producer_group: str
    """Whose producers can say how it ended: 1 to 127 of `A-Z a-z 0-9 . _ -`; empty with inputs."""
    note: str
    """What it is about, for them; up to 1,000 characters."""
    inputs: list[TransactionInput] = msgspec.field(default_factory=list)
    """What its commit acknowledges, up to 10,000 messages; all must be in hand."""


class EndTransaction(_Wire, frozen=True):
    """Commit or roll back a transaction; the first outcome holds."""

    partition_group: int
    """The partition group."""
    transaction: int
    """Its number."""
    is_commit: bool
    """False: roll it back."""


class TransactionEnded(_Wire, frozen=True):
    """It is on the disks of a majority."""

    is_committed: bool
    """The outcome that holds, which an earlier request may have decided."""
    messages: int
    """How many it had; 0 if it had ended before."""
    is_first: bool
    """True if this request decided."""
    is_fenced: bool = False
    """True if it was rolled back because an input was no longer in hand."""


class FindTransactions(_Wire, frozen=True):
    """Ask which transactions are open, linearizably."""

    partition_group: int
    """The partition group."""
    producer_group: str = ""
    """Only those of this producer group; empty: all."""
    age_ms_min: int = 0
    """Only those that are open for at least this long, by the leader's clock."""
    after: int = 0
    """For the next page: the transaction of the last entry of the one before."""


class TransactionView(_Wire, frozen=True):
    """A transaction that is open."""

    transaction: int
    """Its number."""
    producer_group: str
    """Whose it is."""
    note: str
    """What it is about."""
    opened_ms: int
    """Since when, milliseconds since 1970."""
    messages: int
    """How many it has so far."""
    inputs: int = 0
    """How many messages its commit acknowledges."""


class FoundTransactions(_Wire, frozen=True):
    """The answer to `FindTransactions`."""

    transactions: list[TransactionView]
    """The oldest first."""
    is_cut: bool = False
    """True: more follow; ask again, after the last one."""
