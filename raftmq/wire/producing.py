"""What producers ask beside PRODUCE: delayed messages taken back, and claimed sessions.

| kind | request, answer | body of the request | body of the answer |
|---|---|---|---|
| CANCEL | `CancelDelayed`, `DelayedCancelled` | - | - |
| SESSIONS | `ClaimSessions`, `SessionsClaimed` | - | - |

The answer to PRODUCE (`messages.Produced`) says whether a batch waits.

A claim takes the sessions of a producer over: batches of every epoch that was given before are
refused from then on, and the answer says what they stored. A repeat is safe: the last claim holds.
"""

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
