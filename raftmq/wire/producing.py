"""What producers ask beside PRODUCE: delayed messages taken back, claimed sessions, transactions.

| kind | request, answer | body of the request | body of the answer |
|---|---|---|---|
| CANCEL | `CancelDelayed`, `DelayedCancelled` | - | - |
| SESSIONS | `ClaimSessions`, `SessionsClaimed` | - | - |
| BEGIN | `BeginTransaction`, `messages.Done` | - | - |
| END | `EndTransaction`, `TransactionEnded` | - | - |
| TRANSACTIONS | `FindTransactions`, `FoundTransactions` | - | - |

The answer to PRODUCE (`messages.Produced`) says whether a batch waits.

A claim takes the sessions of a producer over: batches of every epoch that was given before are
refused from then on, and the answer says what they stored. A repeat is safe: the last claim holds.

The messages of a transaction are sent with PRODUCE: its number is their producer id, and their
delivery time 2^62 - 1. Each request about transactions may be repeated.

A transaction with inputs is a *hand-off*: its commit acknowledges messages that consumers have in
hand, or is a rollback if one is no longer in hand. A hand-off has no producer group; the data group
rolls it back when a lease of its inputs ends.
"""

import msgspec

from .messages import _Wire
from .numbers import Bounded


class CancelDelayed(_Wire, frozen=True):
    """Take back delayed messages of one partition group. It may be repeated."""

    partition_group: int
    """The partition group's number; the request goes to its leader."""
    queues: list[int]
    """For each message the number of its queue; 4,096 at the most."""
    dues: list[int]
    """For each message when it falls due, milliseconds since 1970: its delivery time as sent."""
    numbers: list[int]
    """For each message its number: `Produced.number` plus its position in the batch."""
    request: int = 0
    """A random number, equal in each repeat; a repeat then gets the first answer. 0: none."""


class DelayedCancelled(_Wire, frozen=True):
    """The cancellation is on the disks of a majority."""

    outcomes: list[int]
    """For each message: 1, it is never delivered; 0, no such message waits: it was cancelled
    before, or never existed; -1, its time has come, and it is delivered."""


class ClaimSessions(_Wire, frozen=True):
    """Take over a producer's sessions on queues of one partition group."""

    partition_group: int
    """The partition group's number; the request goes to its leader."""
    producer: int
    """The producer's id, 1 to 2^63 - 1."""
    queues: Bounded[int]
    """Numbers of queues of the group, each once."""
    label: int
    """The number of the work that is written, 1 to 2^63 - 1. Equal to the last label: go on with
    that work; higher: begin another work; lower: refused, `fenced`."""
    part: int = 0
    """The part of the label's work that begins, from 1; 0: the work is not cut into parts."""
    parts: int = 0
    """How many parts the label's work has; 0: not known. A claim that contradicts an earlier one of
    the same label is refused, `other_parts`."""


class SessionView(_Wire, frozen=True):
    """The session on one queue, as it was claimed."""

    epoch: int
    """The epoch that batches of the session must carry."""
    next_sequence: int
    """Number of messages of this label that are stored: the sequence of the next one."""
    origin: int
    """Offset of the first message of this label; -1: none is stored, or the first is delayed."""
    part: int = 0
    """The highest part of the label that was begun; 0: none was named."""


class SessionsClaimed(_Wire, frozen=True):
    """The answer: the claim is on the disks of a majority."""

    sessions: list[SessionView]
    """One for each queue, in the order of the request."""


class TransactionInput(_Wire, frozen=True):
    """Messages of one lease that a commit acknowledges."""

    number: int
    """The attachment's number."""
    consumer: int
    """The consumer that has the messages in hand."""
    token: int
    """The lease's token."""
    base: int
    """Offset of the first message."""
    bits: bytes
    """Bit n, little-endian, says that the message at `base + n` is meant."""


class BeginTransaction(_Wire, frozen=True):
    """Open a transaction in one partition group, where all its messages will stand."""

    partition_group: int
    """The partition group's number; the request goes to its leader."""
    transaction: int
    """The transaction's number: random, 1 to 2^63 - 1."""
    producer_group: str
    """The group whose producers can say whether to commit, if the sender is gone: 1 to 127 of
    `A-Z a-z 0-9 . _ -`; empty with inputs."""
    note: str
    """A note that tells these producers the subject; up to 1,000 characters."""
    inputs: Bounded[TransactionInput] = msgspec.field(default_factory=list)
    """The messages that a commit acknowledges, 10,000 at the most; all must be in hand."""


class EndTransaction(_Wire, frozen=True):
    """Commit or roll back a transaction; the first outcome holds."""

    partition_group: int
    """The partition group's number; the request goes to its leader."""
    transaction: int
    """The transaction's number."""
    is_commit: bool
    """False: roll it back."""
    producer_group: str = ""
    """The transaction's producer group; empty: a hand-off, or not known."""


class TransactionEnded(_Wire, frozen=True):
    """The outcome is on the disks of a majority."""

    is_committed: bool
    """The outcome that holds, which an earlier request may have decided."""
    messages: int
    """Number of the transaction's messages; 0 if it had ended before, or never began."""
    is_first: bool
    """True if this request decided the outcome."""
    is_fenced: bool = False
    """True if it was rolled back because an input was no longer in hand."""


class FindTransactions(_Wire, frozen=True):
    """Ask which transactions are open, linearizably."""

    partition_group: int
    """The partition group's number; the request goes to its leader."""
    producer_group: str = ""
    """Only transactions of this producer group; empty: all."""
    age_ms_min: int = 0
    """Only transactions that have been open for this number of milliseconds by the leader's clock,
    or longer."""
    after: int = 0
    """For the next page: the transaction of the last entry of the one before."""


class TransactionView(_Wire, frozen=True):
    """A transaction that is open."""

    transaction: int
    """The transaction's number."""
    producer_group: str
    """The producer group; empty: the transaction is a hand-off."""
    note: str
    """The note of `BeginTransaction`."""
    opened_ms: int
    """When it was opened, milliseconds since 1970."""
    messages: int
    """Number of its messages so far."""
    inputs: int = 0
    """Number of messages that a commit acknowledges; 0: the transaction is no hand-off."""


class FoundTransactions(_Wire, frozen=True):
    """The answer to `FindTransactions`."""

    transactions: list[TransactionView]
    """The oldest first."""
    is_cut: bool = False
    """True: more follow; ask again, after the last one."""
