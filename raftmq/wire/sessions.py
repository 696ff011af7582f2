"""The messages about claimed sessions of producers.

| kind | request, answer | body of the request | body of the answer |
|---|---|---|---|
| SESSIONS | `ClaimSessions`, `SessionsClaimed` | - | - |

A claim takes the sessions of a producer over: batches of every epoch that was given before are
refused from then on, and the answer says what they stored. A repeat is safe: the last claim holds.
"""

from .messages import _Wire
from .numbers import Bounded


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
