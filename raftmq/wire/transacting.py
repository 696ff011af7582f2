"""The messages about transactions.

| kind | request, answer | body of the request | body of the answer |
|---|---|---|---|
| BEGIN | `BeginTransaction`, `messages.Done` | - | - |
| END | `EndTransaction`, `TransactionEnded` | - | - |
| TRANSACTIONS | `FindTransactions`, `FoundTransactions` | - | - |

The messages of a transaction are sent with PRODUCE: its number is their producer id, and their
delivery time 2^62 - 1. Each of these requests may be repeated.
"""

from .messages import _Wire


class BeginTransaction(_Wire, frozen=True):
    """Open a transaction in one partition group, where all its messages will stand."""

    partition_group: int
    """The partition group."""
    transaction: int
    """Its number: random, 1 to 2^63 - 1."""
    producer_group: str
    """Whose producers can say how it ended; 1 to 127 characters."""
    note: str
    """What it is about, for them; up to 1,000 characters."""


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


class FindTransactions(_Wire, frozen=True):
    """Ask which transactions are open, linearizably."""

    partition_group: int
    """The partition group."""
    producer_group: str = ""
    """Only those of this producer group; empty: all."""
    age_ms_min: int = 0
    """Only those that are open for so long, by the leader's clock."""
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


class FoundTransactions(_Wire, frozen=True):
    """The answer to `FindTransactions`."""

    transactions: list[TransactionView]
    """The oldest first."""
    is_cut: bool = False
    """True: more follow; ask again, after the last one."""
